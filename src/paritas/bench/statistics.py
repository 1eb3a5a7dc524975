"""Ratios pair by pair, and what of them is more than chance: the first package against itself tells."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paritas.bench.task import Figures


@dataclass(frozen=True)
class Ratio:
    """The first package's cost by another's, cycle by cycle: above 1, the other one costs less.

    Attributes:
        median, least, most: over the cycles.
        different: the median lies further from 1 than any ratio of the first package to itself.
    """

    median: float
    least: float
    most: float
    different: bool


def spread(first: Sequence[Figures], control: Sequence[Figures]) -> dict[str, float]:
    """How far, at most, the first package's costs lie apart from its own: 1.05 is five per cent, either way.

    Args:
        first, control: its figures, and its figures again, a cycle each.
    """
    pairs = _pairs(first, control)
    return {cost: math.exp(max(abs(math.log(ratio)) for ratio in ratios)) for cost, ratios in pairs.items()}


def ratios(first: Sequence[Figures], other: Sequence[Figures], control: Mapping[str, float]) -> dict[str, Ratio]:
    """By cost, for all that both have.

    Args:
        first, other: figures, a cycle each.
        control: what :func:`spread` gives.
    """
    return {cost: _ratio(found, control[cost]) for cost, found in _pairs(first, other).items() if cost in control}


def _ratio(found: Sequence[float], chance: float) -> Ratio:
    median = statistics.median(found)
    return Ratio(median, min(found), max(found), abs(math.log(median)) > math.log(chance))


def _pairs(first: Sequence[Figures], other: Sequence[Figures]) -> dict[str, list[float]]:
    common = [cost for cost in first[0] if all(each.get(cost, 0) > 0 for each in (*first, *other))]
    return {cost: [one[cost] / two[cost] for one, two in zip(first, other, strict=True)] for cost in common}
