"""What the numbers mean: the gates, the verdict of a probe, of a package, and the signature of a fault.

One gate for every model and every exporter. A tolerance by model or family is where faults hide, so there
is none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from paritas.errors import Exit

PROVEN_FLOORS = 5.0
"""Up to here, in units of the reference's own noise, a difference is rounding."""

DIVERGES_FLOORS = 12.0
"""Beyond here it is a fault. In between it is neither, and is called unexplained."""


class Verdict(StrEnum):
    """Of a probe, and of a package."""

    PROVEN = "proven"
    UNEXPLAINED = "unexplained"
    DIVERGES = "diverges"
    INVALID = "invalid"
    NOT_TESTED = "not tested"


EXITS = {
    Verdict.PROVEN: Exit.PROVEN,
    Verdict.UNEXPLAINED: Exit.DIVERGES,
    Verdict.DIVERGES: Exit.DIVERGES,
    Verdict.INVALID: Exit.NOT_TESTED,
    Verdict.NOT_TESTED: Exit.NOT_TESTED,
}
"""The exit code of a command that ends with this verdict."""

# A known fault outweighs a runtime that could not be asked: the package is wrong either way.
_WORST_FIRST = (Verdict.DIVERGES, Verdict.INVALID, Verdict.UNEXPLAINED, Verdict.PROVEN)


def judge(floors: float) -> Verdict:
    """The verdict on a worst difference, in floors. NaN is no measurement, so it is never a pass."""
    if floors <= PROVEN_FLOORS:
        return Verdict.PROVEN
    if floors <= DIVERGES_FLOORS:
        return Verdict.UNEXPLAINED
    return Verdict.DIVERGES


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them. What was not tested counts neither way, unless nothing else was."""
    seen = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in seen), Verdict.NOT_TESTED)


@dataclass(frozen=True)
class Place:
    """The first position of one probe that is beyond the gate; None if none is.

    Attributes:
        probe: its id.
        position: index of the token within the sequence, padding not counted.
    """

    probe: str
    position: int | None


_DECODED = frozenset({"decode", "greedy", "chunks", "padding", "end", "switch-decode"})
_ONE_PASS = frozenset({"short", "window", "long", "switch"})
_ALONE: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset({"padding", "padding-right"}),
        "only padded rows differ: the mask, or positions that count the padding",
    ),
    (
        frozenset({"chunks"}),
        "only a prefill in parts differs: the cache, or mask and positions of a later call of several tokens",
    ),
    (
        frozenset({"switch-decode"}),
        "only decoding across the length at which RoPE changes differs: keys that were rotated before it",
    ),
    (
        frozenset({"switch", "switch-decode", "end"}),
        "only beyond the length at which RoPE changes: long RoPE",
    ),
)
"""Probes -> what it means if no other probe is bad; the narrowest first."""


def signature(places: Sequence[Place], windows: Sequence[int], switches: Sequence[int] = ()) -> str | None:
    """What the first bad position of each probe points to; None if no probe has one.

    Args:
        places: one for each probe that was judged, of one runtime.
        windows: the reference's sliding windows, in tokens.
        switches: the lengths beyond which its RoPE changes.
    """
    bad: dict[str, int] = {}
    for place in places:
        if place.position is not None and place.probe not in _ASIDE:
            bad[_kind(place.probe)] = min(place.position, bad.get(_kind(place.probe), place.position))
    if not bad:
        return None
    if "causality" in bad:  # before the others: no token is alone then, and their positions say nothing
        return "a later token moves earlier logits: the causal mask"
    if set(bad) == {"end"}:
        return "only the last positions differ: RoPE tables or a mask that end too early"
    for probes, text in _ALONE:
        if set(bad) <= probes:
            return text
    judged = {_kind(place.probe) for place in places}
    if set(bad) <= _DECODED and judged & _ONE_PASS:
        return "one pass agrees and step by step does not: the cache, or the positions of later calls"
    one_pass = [position for probe, position in bad.items() if probe in {*_ONE_PASS, "greedy"}]
    return _by_position(min(one_pass), windows, switches) if one_pass else None


_ASIDE = frozenset({"cache", "shipped"})
"""Probes that point to nothing: a layer before, or another arithmetic."""


def _kind(probe: str) -> str:
    """``switch-2`` is a ``switch``."""
    return probe.rstrip("0123456789").rstrip("-")


def _by_position(position: int, windows: Sequence[int], switches: Sequence[int]) -> str:
    at = f"first bad position {position}: "
    if position == 0:
        return at + "a scale, a norm, the embedding, the MLP or the head (nothing else acts on a lone token)"
    if any(abs(position - window) <= 1 for window in windows):
        return at + "the sliding-window mask"
    if any(abs(position - switch) <= 1 for switch in switches):
        return at + "long RoPE, which begins there"
    if position == 1:
        return at + "RoPE, or the attention's scale, softcap or q/k norm (a lone token cannot show them)"
    return at + "attention over distance: RoPE, a mask, or a length at which the model changes"
