"""Norms that hold each other's places: what a norm takes tells which it is, where weights and names say another one.

Two norms of a layer are alike but for their values. Where a graph multiplies what attention gives by the weight that
belongs behind the MLP, and the other way round, the weights have changed places, not the sums.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from paritas.audit.finding import layer_of
from paritas.diagnose.case import Case
from paritas.diagnose.slots import Slot
from paritas.diagnose.streams import Sum
from paritas.diagnose.sums import known, reference

_CLOSE = 1e-4


def norms_in_their_places(case: Case) -> tuple[Slot, ...]:
    """The places of weights, with those of norms of one layer exchanged that take each other's sums."""
    wanted = reference(case).sums
    exchanged = dict(_exchanged(_taken(case, wanted), wanted))

    def placed(slot: Slot) -> Slot:
        path, _, name = slot.held.rpartition(".")
        if path not in exchanged:
            return slot
        other = f"{exchanged[path]}.{name}"
        return replace(slot, tensor=other, held=other)

    return tuple(placed(slot) for slot in case.slots) if exchanged else case.slots


def _taken(case: Case, wanted: Mapping[str, Sum]) -> dict[str, Sum]:
    """Norm of a layer -> the sum that it takes in the graph."""
    graph = known(case, wanted)
    norms = [path for path in graph.consumers if "norm" in path.rpartition(".")[2] and layer_of(path) is not None]
    return {path: graph.sum(graph.consumers[path][0].value) for path in norms if wanted.get(path)}


def _exchanged(taken: Mapping[str, Sum], wanted: Mapping[str, Sum]) -> Iterator[tuple[str, str]]:
    """Both ways round."""
    for one, other in itertools.combinations(taken, 2):
        is_told = layer_of(one) == layer_of(other) and not _same(wanted[one], wanted[other])
        if is_told and _same(taken[one], wanted[other]) and _same(taken[other], wanted[one]):
            yield from ((one, other), (other, one))


def _same(one: Sum, other: Sum) -> bool:
    return one.keys() == other.keys() and all(math.isclose(one[n], other[n], rel_tol=_CLOSE) for n in one)
