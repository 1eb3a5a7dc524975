"""A row of the heatmap as an SVG: one path for each colour, so that a row of hundreds of cells stays small."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from paritas.verify.verdict import DIVERGES_FLOORS, PROVEN_FLOORS

LEVELS: tuple[tuple[float, str], ...] = (
    (0.1, "0.1"),
    (1.0, "1"),
    (PROVEN_FLOORS, f"{PROVEN_FLOORS:g}"),
    (DIVERGES_FLOORS, f"{DIVERGES_FLOORS:g}"),
    (1e2, "100"),
    (1e3, "1e3"),
    (1e4, "1e4"),
    (1e5, "1e5"),
    (1e6, "1e6"),
    (math.inf, "more"),
)
"""Floors up to which a colour goes, and how a legend calls it. One more colour is for what is not finite."""

_TICKS = 5


@dataclass(frozen=True)
class Tick:
    """A number at an axis, at ``percent`` of its length."""

    text: str
    percent: float


def level(log10: float | None) -> int:
    """The index of a colour."""
    if log10 is None:
        return 0
    if not math.isfinite(log10):
        return len(LEVELS)
    return next(index for index, (most, _) in enumerate(LEVELS) if log10 <= math.log10(most))


def paths(cells: Sequence[float | None]) -> list[tuple[int, str]]:
    """Colour -> the path of its cells, each a unit wide and a unit high."""
    parts: dict[int, list[str]] = {}
    start = 0
    for colour, run in groupby(map(level, cells)):
        width = len(list(run))
        parts.setdefault(colour, []).append(f"M{start} 0h{width}v1h-{width}z")
        start += width
    return [(colour, "".join(parts[colour])) for colour in sorted(parts)]


def numbers(cells: Sequence[float | None]) -> str:
    """The cells for the page's script: hundredths of a log10, ``-`` where nothing differs, ``x`` if not finite."""
    return " ".join("-" if c is None else f"{c * 100:.0f}" if math.isfinite(c) else "x" for c in cells)


def ticks(length: int) -> list[Tick]:
    """Round numbers along an axis of ``length`` positions, each at the left edge of its position."""
    step = next(size for size in _steps() if length / size <= _TICKS)
    return [Tick(f"{position:,}", 100 * position / length) for position in range(0, length, step)]


def _steps() -> Iterator[int]:
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10
