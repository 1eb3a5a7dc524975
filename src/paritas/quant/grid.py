"""Blocks of numbers as integers with a scale each, and the bytes that operators take them as.

``value = (integer - zero) * scale``, as ``com.microsoft.MatMulNBits`` and ``GatherBlockQuantized`` define it; integers
are unsigned, and where there are no zero points the zero is the middle, ``2 ** (bits - 1)``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paritas.weights import Blocks, Float

Blocked = NDArray[np.float32]
"""Numbers ``[rows, blocks, block]``."""


@dataclass(frozen=True)
class Grid:
    """Rows as integers.

    Attributes:
        integers: uint8 ``[rows, blocks, block]``.
        scales: fp32 ``[rows, blocks]``; of either sign.
        zeros: uint8 ``[rows, blocks]``; None where the middle is zero.
    """

    integers: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8] | None

    def values(self, bits: int) -> Blocked:
        """What the integers stand for, ``[rows, blocks, block]``."""
        zeros = np.float32(1 << (bits - 1)) if self.zeros is None else self.zeros[:, :, None].astype(np.float32)
        return (self.integers.astype(np.float32) - zeros) * self.scales[:, :, None]


def blocked(rows: NDArray[np.float32], block: int) -> Blocked:
    """``[rows, columns]`` in blocks of columns, the last one filled up with zeros."""
    count, columns = rows.shape
    blocks = -(-columns // block)
    if columns == blocks * block:
        return rows.reshape(count, blocks, block)
    filled = np.zeros((count, blocks * block), np.float32)
    filled[:, :columns] = rows
    return filled.reshape(count, blocks, block)


def inverse(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """``1 / scales``, and 0 where a block has nothing but zeros."""
    out = np.zeros_like(scales)
    return np.divide(np.float32(1), scales, out=out, where=scales != 0)


def nearest(values: Blocked, scales: NDArray[np.float32], zeros: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """The integers that stand for the values best, as fp32; scales and zeros ``[rows, blocks]``."""
    integers = values * inverse(scales)[:, :, None]
    integers += zeros[:, :, None]
    np.rint(integers, out=integers)
    return np.clip(integers, 0, (1 << bits) - 1, out=integers)


def as_stored(scales: NDArray[np.float32], how: Blocks) -> NDArray[np.float32]:
    """Scales rounded to the type that they are stored in; integers are chosen for these."""
    return scales if how.scales is Float.FP32 else scales.astype(how.scales.dtype).astype(np.float32)


def packed(integers: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """The last axis in bytes, low bits first; filled up with zeros to a whole byte."""
    if bits == 8:
        return integers
    if integers.shape[-1] % 2:
        integers = np.concatenate([integers, np.zeros_like(integers[..., :1])], axis=-1)
    return integers[..., 0::2] | (integers[..., 1::2] << np.uint8(4))
