"""A scale for each block by search: several are tried, each is fitted by least squares, and the best is taken.

A block's extremes are one choice of many: a slightly smaller scale clips the largest number and rounds the others
less. Every candidate's integers give the scale that fits them best in the weighted squares; the candidate that explains
most of them wins, and its integers are rounded once more to the nearest of the fitted grid. The weights are those of
llama.cpp's quantisers where no activations are known: large numbers count more (``weight = mean square + square``).
"""

import numpy as np
from numpy.typing import NDArray

from paritas.quant import rtn
from paritas.quant.grid import Blocked, Grid, as_stored, nearest
from paritas.weights import Blocks

Each = NDArray[np.float32]
"""A number for each block, ``[rows, blocks]``."""

_REACH = {4: 0.2, 8: 0.01}
"""How far candidates lie from the extremes' scale, as a share of it."""
_COUNT = 9
_BEYOND = {4: 1.5, 8: 8.0}
"""Steps beyond the grid that a number may be clipped."""


def quantise(values: Blocked, how: Blocks) -> Grid:
    """Numbers ``[rows, blocks, block]`` on the grids that the search finds; zero points are those of the extremes."""
    scales, zeros = rtn.extremes(values, how)
    square = values * values
    weights = square + square.mean(axis=2, keepdims=True)
    weighed = weights * values
    fitted, gain = scales.copy(), np.full_like(scales, -1)
    for share in np.linspace(1 - _REACH[how.bits], 1 + _REACH[how.bits], _COUNT, dtype=np.float32):
        tried, explained = _fit(values, weights, weighed, scales * share, zeros, how.bits)
        better = explained > gain
        np.copyto(fitted, tried, where=better)
        np.copyto(gain, explained, where=better)
    fitted = as_stored(_within(values, fitted, zeros, how.bits), how)
    integers = nearest(values, fitted, zeros, how.bits).astype(np.uint8)
    return Grid(integers, fitted, None if how.symmetric else zeros.astype(np.uint8))


def _fit(
    values: Blocked, weights: Blocked, weighed: Blocked, scales: Each, zeros: Each, bits: int
) -> tuple[Each, Each]:
    """The scale that fits the integers of a candidate best, and how much of the weighted squares it explains."""
    steps = nearest(values, scales, zeros, bits)
    steps -= zeros[:, :, None]
    along = np.einsum("rbk,rbk->rb", weighed, steps)
    steps *= steps
    own = np.einsum("rbk,rbk->rb", weights, steps)
    fitted = np.divide(along, own, out=np.zeros_like(along), where=own > 0)
    return fitted, fitted * along


def _within(values: Blocked, scales: Each, zeros: Each, bits: int) -> Each:
    """Scales no smaller than clips the extremes by so many steps as may be."""
    below, above = zeros + np.float32(_BEYOND[bits]), (1 << bits) - 1 - zeros + np.float32(_BEYOND[bits])
    low, high = values.min(axis=2), values.max(axis=2)
    least, mirrored = np.maximum(-low / below, high / above), np.maximum(high / below, -low / above)
    np.copyto(least, mirrored, where=scales < 0)
    return np.copysign(np.maximum(np.abs(scales), least), scales)
