"""A parameter that a package computes with and that the reference computes with otherwise."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from paritas.audit.finding import layers as layers_word
from paritas.audit.finding import names
from paritas.diagnose.edit import Edit

Break = Callable[[], AbstractContextManager[None]]
Repair = Callable[[Edit], None]


class NotBrokenError(Exception):
    """The reference cannot be given a package's value."""


@dataclass(frozen=True)
class Difference:
    """One parameter at one place.

    Attributes:
        parameter: what it is: ``weight``, ``norm-epsilon``, ``rope-table``, ``window``, ...
        where: module, tensor or operator.
        layer: its number; None for what belongs to no layer.
        package: its value there; a number, a word or an array.
        reference: the right one.
        fact: both values in words, without the place.
        facts: what else was read, for the kinds to tell faults apart.
        breaks: within, the live reference has the package's value; None if that cannot be done.
        repairs: gives the package the reference's value; None if that cannot be done.
    """

    parameter: str
    where: str
    layer: int | None
    package: Any
    reference: Any
    fact: str
    breaks: Break | None
    repairs: Repair | None
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


def place(found: Sequence[Difference]) -> str:
    """Layers, where every one has a number, and what is there; else the names."""
    numbers = [each.layer for each in found if each.layer is not None]
    if len(numbers) < len(found) or len(found) == 1:
        whole = list(dict.fromkeys(each.where for each in found if each.layer is None or len(found) == 1))
        return "; ".join([*([layers_word(numbers)] if numbers and len(found) > 1 else []), names(whole)])
    parts = list(dict.fromkeys(each.where.split(f"{each.layer}.", 1)[-1] for each in found))
    return f"{layers_word(numbers)}: {names(parts)}"


@contextmanager
def broken(found: Sequence[Difference]) -> Any:
    """Within, the reference has all of the package's values."""
    with ExitStack() as stack:
        for each in found:
            if each.breaks is not None:
                stack.enter_context(each.breaks())
        yield


def repair(edit: Edit, found: Sequence[Difference]) -> None:
    """Give the package all of the reference's values."""
    for each in found:
        if each.repairs is not None:
            each.repairs(edit)
