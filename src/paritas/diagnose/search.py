"""The smallest set of suspects that explains a package: tried on the whole model, greedily, in pairs, one left out."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paritas.audit.view import View
from paritas.diagnose.case import Case
from paritas.diagnose.diagnosis import Experiment
from paritas.diagnose.difference import Difference, repair
from paritas.diagnose.edit import Edit, RefusedError
from paritas.diagnose.kinds import Group
from paritas.diagnose.witness import Clock, Witness
from paritas.progress import Progress, silent
from paritas.verify.verdict import PROVEN_FLOORS

GAIN = 0.05
"""The least gain, in logarithms to the base 10 of floors, for which a suspect is taken."""

PAIRS = 24
"""Suspects of which pairs are tried."""


@dataclass(frozen=True)
class Found:
    """What a search ends with.

    Attributes:
        groups: the smallest set, in the order in which they were found.
        floors: worst difference with all of them repaired.
        experiments: in the order in which they were made.
    """

    groups: tuple[Group, ...]
    floors: float
    experiments: tuple[Experiment, ...]

    @property
    def reaches(self) -> bool:
        """Whether the set reaches the gate."""
        return self.floors <= PROVEN_FLOORS


def find(case: Case, suspects: Sequence[Group], witness: Witness, progress: Progress = silent) -> Found:
    """The smallest set of ``suspects`` whose repair brings the package to the gate, or as near to it as they can.

    Args:
        case: the package.
        suspects: groups of differences.
        witness: on which it is measured.
        progress: told of every experiment.
    """
    search = _Search(case, witness, progress)
    if not witness.fails:
        return Found((), witness.floors, ())
    able = [group for group in suspects if any(each.repairs is not None for each in group.differences)]
    chosen, floors = search.forward((), witness.floors, able)
    if floors > PROVEN_FLOORS:
        chosen, floors = search.whole(chosen, floors, able)
    chosen, floors = search.leave_out(chosen, floors)
    return Found(chosen, floors, tuple(search.experiments))


class _Search:
    def __init__(self, case: Case, witness: Witness, progress: Progress) -> None:
        self._case, self._witness, self._progress = case, witness, progress
        self.experiments: list[Experiment] = []
        self._known: dict[frozenset[int], float] = {}

    def forward(
        self, chosen: tuple[Group, ...], floors: float, left: Sequence[Group]
    ) -> tuple[tuple[Group, ...], float]:
        """Take the best suspect, or the best two at once, or a part of one, until nothing helps."""
        left = [group for group in left if group not in chosen]
        for candidates in (self._singles, self._pairs, self._parts):
            tried = [(self._measure((*chosen, *extra), floors), extra) for extra in candidates(left)]
            if not tried:
                continue
            best, extra = min(tried, key=lambda each: each[0])
            if best <= PROVEN_FLOORS or _gains(floors, best):
                taken = (*chosen, *extra)
                return (taken, best) if best <= PROVEN_FLOORS else self.forward(taken, best, left)
        return chosen, floors

    def _singles(self, left: Sequence[Group]) -> Iterator[tuple[Group, ...]]:
        return ((group,) for group in left)

    def _pairs(self, left: Sequence[Group]) -> Iterator[tuple[Group, ...]]:
        return itertools.combinations(left[:PAIRS], 2)

    def _parts(self, left: Sequence[Group]) -> Iterator[tuple[Group, ...]]:
        parts = [part for group in left if len(group.differences) > 1 for part in group.split()]
        return ((part,) for part in parts[: 4 * PAIRS])

    def whole(self, chosen: tuple[Group, ...], floors: float, able: Sequence[Group]) -> tuple[tuple[Group, ...], float]:
        """Everything at once: several faults may hide each other."""
        every = tuple(able)
        reached = self._measure(every, floors)
        return (every, reached) if reached <= PROVEN_FLOORS or _gains(floors, reached) else (chosen, floors)

    def leave_out(self, chosen: tuple[Group, ...], floors: float) -> tuple[tuple[Group, ...], float]:
        """Without each in turn: what is not missed was not needed."""
        for group in sorted(chosen, key=lambda each: len(each.differences)):
            rest = tuple(each for each in chosen if each is not group)
            if not rest:
                continue
            without = self._measure(rest, floors)
            if without <= PROVEN_FLOORS or (floors > PROVEN_FLOORS and not _gains(without, floors)):
                chosen, floors = rest, without
        return chosen, floors

    def _measure(self, groups: Sequence[Group], before: float) -> float:
        key = frozenset(id(each) for group in groups for each in group.differences)
        if key in self._known:
            return self._known[key]
        clock = Clock()
        after = self._witness.measure(edited(self._case.view, groups))
        self._known[key] = after
        change = "; ".join(f"{group.suspect.code} at {group.suspect.where}" for group in groups)
        codes = tuple(group.suspect.code for group in groups)
        self.experiments.append(Experiment(change, "package", codes, before, after, clock.seconds()))
        self._progress("trying repairs", len(self.experiments), len(self.experiments) + 1)
        return after


def edited(view: View, groups: Sequence[Group]) -> Edit:
    """A package's graph with the suspects repaired; a repair that the graph does not admit is left out."""
    edit = Edit(view)
    for group in groups:
        for difference in group.differences:
            attempt(edit, difference)
    return edit


def attempt(edit: Edit, difference: Difference) -> bool:
    """Repair one difference, if the graph admits it."""
    try:
        repair(edit, (difference,))
    except RefusedError:
        return False
    return True


def _gains(before: float, after: float) -> bool:
    return math.log10(max(before, 1e-9)) - math.log10(max(after, 1e-9)) > GAIN
