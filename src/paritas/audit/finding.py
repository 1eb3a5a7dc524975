"""One fact about a package, and how places are named in it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
ORDER: tuple[Severity, ...] = ("error", "warning", "note")
_SHOWN = 3  # names in a place before it is cut


@dataclass(frozen=True)
class Finding:
    """One fact about a package.

    Attributes:
        code: stable, kebab-case, never reused for something else.
        severity: ``error`` changes what is computed, ``warning`` may, ``note`` does not.
        where: file, key, tensor or layers.
        message: the fact, with its numbers.
        remedy: what to do about it.
    """

    code: str
    severity: Severity
    where: str
    message: str
    remedy: str


def layers(numbers: Iterable[int]) -> str:
    """``layers 0-4, 6``."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    words = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
    return f"layer{'' if len(ranges) == 1 and ranges[0][0] == ranges[0][1] else 's'} {words}"


def names(found: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def layer_of(name: str) -> int | None:
    """The layer that a name speaks of: ``model.layers.3.mlp``, ``/model/layers.3/``, ``blk.3.``, ``h.3.``."""
    found = re.search(r"(?:layers?|blk|blocks|h)[._/](\d+)(?:[._/]|$)", name)
    return int(found[1]) if found else None
