"""Integers beside the weights they stand for: is each the nearest point of its own grid?

What bits allow is told by the weight's own scales and zero points. Rounding to nearest leaves half a step; a weight
beyond the ends of the grid is clipped. Every quantiser that rounds to nearest, however it chose its scales (largest
value, search, least squares, zero points of a half), passes to the last element; a scale that is wrong by a percent, a
zero point that is off by one, a block of other integers do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paritas.runtime.quantized import Grid, Quantized

Rows = NDArray[np.float32]

NARROW_SCALES = {"fp32": 2.0**-22, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""What a scale may be off by because it was rounded to its dtype after the integers were chosen."""

SOURCE = 2.0**-9
"""What a weight may be off by because it was rounded to bf16 or fp16 before it was quantised."""

_NOISE = 1e-3  # steps, of fp32 arithmetic
_CLIPPED = 0.125  # of the range of the integers: how far beyond its end a weight may be clipped to it
_BLOCK = 1 << 20
_EVERYWHERE, _BALANCED, _TOGETHER = 0.02, 0.5, 0.9
_FEW = 3  # astray integers of a block, of which fewer have no direction


@dataclass(frozen=True)
class Rounding:
    """What quantisation did to a weight.

    Attributes:
        elements: how many.
        error: relative distance (L2) of what is stored from the checkpoint's values.
        worst: the largest distance from the nearest value that the grid has, in steps; up to 0.5 is rounding.
        clipped: the furthest that a weight lies beyond its grid, in steps.
        astray: elements that are not the nearest point of their grid.
        row, column: of the worst element, in the stored weight.
        shift, swell: of the astray ones, the mean direction in which they are off: up or down; away from zero or to it.
        together: of the astray ones of a block, how far they are off in one direction, on the average of the blocks: 1
            where each block has its own wrong scale or zero point.
    """

    elements: int
    error: float
    worst: float
    clipped: float
    astray: int
    row: int
    column: int
    shift: float = 0.0
    swell: float = 0.0
    together: float = 0.0

    @property
    def compensated(self) -> bool:
        """Astray everywhere and in all directions, as rounding does that makes up for its own errors (GPTQ).

        A wrong scale is off to or from zero, a wrong zero point in one direction, other integers in some places; where
        each block has another wrong one, so it is within the blocks.
        """
        balanced = max(abs(self.shift), abs(self.swell)) < _BALANCED and self.together < _TOGETHER
        return self.astray > _EVERYWHERE * self.elements and balanced

    def fault(self, weight: Quantized) -> str | None:
        """Why the weight is not the checkpoint's, quantised; None if it is."""
        if self.astray:
            return (
                f"{self.astray:,} of {self.elements:,} integers are not the nearest to the checkpoint's weights, "
                f"the worst {self.worst:.2f} steps away at row {self.row}, column {self.column} (up to 0.5 is rounding)"
            )
        if self.clipped > limit(weight.bits):
            return f"weights are clipped that lie {self.clipped:.1f} steps beyond the grid"
        return None


def limit(bits: int) -> float:
    """Steps beyond the grid that may be clipped."""
    return max(1.0 + _NOISE, _CLIPPED * 2**bits)


def rounding(weight: Quantized, places: Sequence[tuple[int, Rows, NDArray[np.intp]]]) -> Rounding:
    """Measure a weight.

    Args:
        weight: what is stored.
        places: a first row of it, a parameter's values ``[rows, columns]``, and which of their rows are stored there.
    """
    distance = length = 0.0
    elements = astray = 0
    worst, clipped = (0.0, 0, 0), 0.0
    shift = swell = 0.0
    aligned = np.zeros(2)
    for first, values, rows in places:
        for start in range(0, len(rows), step := max(1, _BLOCK // weight.columns)):
            part = rows[start : start + step]
            grid = weight.grid(first + start, first + start + len(part))
            want, got = values[part].astype(np.float64), grid.values.astype(np.float64)
            off, beyond, wrong = _steps(weight, grid, want)
            way = np.sign(off) * wrong
            from_zero = way * np.sign(grid.integers - grid.zeros)
            shift, swell = shift + float(way.sum()), swell + float(from_zero.sum())
            aligned += _aligned(way, from_zero, weight.block or weight.columns)
            off = np.abs(off)
            distance += float(((got - want) ** 2).sum())
            length += float((want**2).sum())
            elements, astray = elements + want.size, astray + int(wrong.sum())
            clipped = max(clipped, float(beyond.max()))
            at = int(np.where(wrong, off, -1).argmax()) if wrong.any() else int(off.argmax())
            row, column = divmod(at, weight.columns)
            candidate = (float(off.flat[at]), first + start + row, column)
            worst = max(worst, candidate)
    error = (distance / length) ** 0.5 if length else float("inf")
    count = max(astray, 1)
    return Rounding(
        elements,
        error,
        worst[0],
        clipped,
        astray,
        worst[1],
        worst[2],
        shift / count,
        swell / count,
        float(aligned[0] / max(aligned[1], 1)),
    )


def _aligned(way: NDArray[np.float64], from_zero: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    """Astray integers that go with most of their block, and all of those, where a block has more than a few."""
    widths = ((0, 0), (0, -way.shape[1] % block))
    one, other = (np.pad(each, widths).reshape(len(each), -1, block) for each in (way, from_zero))
    counts = np.abs(one).sum(axis=2)
    most = np.maximum(np.abs(one.sum(axis=2)), np.abs(other.sum(axis=2)))
    return np.array([most[counts >= _FEW].sum(), counts[counts >= _FEW].sum()])


def _steps(
    weight: Quantized, grid: Grid, want: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Signed distance from the nearest, distance beyond the grid, and which elements are astray; in steps."""
    step = grid.steps.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.where(step != 0, want / step, np.where(want == 0, 0.0, np.inf)) + grid.zeros
    inside = np.clip(exact, weight.least, weight.least + 2**weight.bits - 1).astype(np.float64)
    off = grid.integers.astype(np.float64) - inside
    slack = (NARROW_SCALES.get(weight.scale_dtype, 0.0) + SOURCE) * np.abs(inside - grid.zeros) + _NOISE
    return off, np.abs(exact - inside), np.abs(off) > 0.5 + slack
