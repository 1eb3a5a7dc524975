"""Rotations that hang on the length of a call (LongRoPE, dynamic scaling): both sides, call by call."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference, Repair
from paritas.diagnose.parameters.rope import rotate
from paritas.diagnose.parameters.tables import Table, apart, others
from paritas.diagnose.parameters.taken_rows import Step, Taking, as_taken, rows_taken, takings
from paritas.diagnose.parameters.written_rope import write_rows
from paritas.diagnose.rotation_graphs import borders, context, hangs_on_length
from paritas.diagnose.turning import KEY, QUERY, turning
from paritas.diagnose.written_place import written_places

Break = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class ByLength:
    """How a layer rotates in calls of different lengths.

    Attributes:
        near: the longest call within the first length at which the reference changes.
        far: of one token more.
    """

    near: Table
    far: Table


def rope_by_length_differences(case: Case) -> Iterator[Difference]:
    """Every layer whose rotation hangs on the length of the call in the reference, and is another in some call."""
    for site in case.sites:
        taken = dict(takings(site))
        if QUERY in taken and hangs_on_length(case, site.layer):
            yield from _compared(case, site.layer, taken, lambda edit, site=site: rotate(edit, case, site))
    for place in written_places(case):
        names = place.found.q_tables, place.found.k_tables
        if all(len(each) == 2 for each in names) and hangs_on_length(case, place.layer):
            taken = {half: _in_order(case, *each) for half, each in zip((QUERY, KEY), names, strict=True)}
            yield from _compared(case, place.layer, taken, lambda edit, place=place: write_rows(edit, case, place))


def _in_order(case: Case, one: str, other: str) -> Taking:
    """Cosines are those that are not zero at the first position."""
    first = rows_taken(case, Taking(one, other), Step(2))
    is_right = first is None or np.abs(first.cos[0, 0]).max() >= np.abs(first.sin[0, 0]).max()
    return Taking(one, other) if is_right else Taking(other, one)


def _compared(case: Case, layer: int, taken: dict[str, Taking], repairs: Repair) -> Iterator[Difference]:
    border, end = borders(case, layer)[0] - 1, context(case) - 1
    steps = [Step(2), Step(border), Step(border + 1), Step(4, 2), Step(1, border - 1), Step(1, border), Step(1, end)]
    found = [(step, half) for step in steps for half in taken if not _is_right(case, layer, taken[half], step)]
    if not found:
        return
    got = _by_length(case, taken[QUERY], border)
    wanted = ByLength(_reference(case, layer, border), _reference(case, layer, border + 1))
    begins_right, ends_right = ((step, QUERY) not in found for step in (steps[0], steps[-1]))
    wrong = None if got is None else _wrong_table(got, wanted)
    yield Difference(
        parameter="rope-by-length" if wrong is None else "rope-table",
        where=f"model.layers.{layer}.self_attn",
        layer=layer,
        package=got if wrong is None else wrong[0],
        reference=wanted if wrong is None else wrong[1],
        fact=_fact(border, got, wanted),
        breaks=lambda: turning(case.live, layer, {half: as_taken(case, each) for half, each in taken.items()}),
        repairs=repairs,
        facts={"begins_right": begins_right, "ends_right": ends_right, "others": others(case, layer, border)},
    )


def _wrong_table(got: ByLength, wanted: ByLength) -> tuple[Table, Table] | None:
    """Of the calls on either side the first whose table is neither of the reference's, and the right one.

    None where each is one of them: what is wrong is when which is taken.
    """
    for one, other in ((got.near, wanted.near), (got.far, wanted.far)):
        if not (one.turns_like(wanted.near) or one.turns_like(wanted.far)):
            return one, other
    return None


def _is_right(case: Case, layer: int, taking: Taking, step: Step) -> bool:
    """Whether the rows of a call are the reference's; True where they cannot be told."""
    turn = rows_taken(case, taking, step)
    right = case.live.rope(layer, np.arange(step.past, step.past + step.new))
    if turn is None or right is None:
        return True
    if turn.cos[0].shape != right[0].shape or turn.neighbours != case.live.facts[layer].neighbours:
        return False
    reach = np.arange(step.past, step.past + step.new)
    return not apart(_table(turn.cos[0], turn.sin[0]), _table(*right), reach)


def _table(cos: np.ndarray, sin: np.ndarray) -> Table:
    return Table(cos, sin, "fp32", ("", ""))


def _reference(case: Case, layer: int, length: int) -> Table:
    found = case.live.rope(layer, np.arange(length))
    assert found is not None
    return _table(*found)


def _by_length(case: Case, taking: Taking, border: int) -> ByLength | None:
    turns = [rows_taken(case, taking, Step(length)) for length in (border, border + 1)]
    near, far = (None if turn is None else _table(turn.cos[0], turn.sin[0]) for turn in turns)
    return None if near is None or far is None else ByLength(near, far)


def _fact(border: int, got: ByLength | None, wanted: ByLength) -> str:
    right = f"{wanted.near.words()} in calls of up to {border:,} positions, {wanted.far.words()} in longer ones"
    if got is None:
        return f"rotates otherwise than the reference: {right}"
    own = got.near.words()
    if apart(got.near, _table(got.far.cos[:-1], got.far.sin[:-1])):
        own = f"{own} in calls of up to {border:,} positions, {got.far.words()} in one more"
    return f"rotates by {own}; the reference by {right}"
