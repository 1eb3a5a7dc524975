"""Round to nearest: a block's scale from its extremes alone, as ONNX Runtime's own quantiser and llama.cpp's q4_0.

Without zero points the number farthest from zero becomes the lowest integer, so that all integers are used; a number
as far on the other side is clipped by one step. With zero points the block's range, zero included, becomes the
integers'.
"""

import numpy as np
from numpy.typing import NDArray

from paritas.quant.grid import Blocked, Grid, as_stored, inverse, nearest
from paritas.weights import Blocks


def quantise(values: Blocked, how: Blocks) -> Grid:
    """Numbers ``[rows, blocks, block]`` on the grids that their extremes give."""
    scales, zeros = extremes(values, how)
    scales = as_stored(scales, how)
    integers = nearest(values, scales, zeros, how.bits).astype(np.uint8)
    return Grid(integers, scales, None if how.symmetric else zeros.astype(np.uint8))


def extremes(values: Blocked, how: Blocks) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scale and zero of every block, fp32 ``[rows, blocks]``."""
    low, high = values.min(axis=2), values.max(axis=2)
    middle = np.float32(1 << (how.bits - 1))
    if how.symmetric:
        np.copyto(high, low, where=high <= -low)
        return high / -middle, np.full_like(low, middle)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    most = np.float32((1 << how.bits) - 1)
    scales = (high - low) / most
    return scales, np.clip(np.rint(-low * inverse(scales)), 0, most)
