"""64-bit hashes of the rows, or of the columns, of a matrix of fp32 values.

The hash of a row is the sum of its bit patterns, each times an odd number of its place, modulo 2^64. It needs no byte
order in memory, so that the columns of a matrix are hashed in one pass over its rows, without transposing it.
"""

from collections.abc import Iterable
from functools import cache

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
_STEP = 1 << 17  # elements at a time: what fits a core's cache as 64-bit numbers


@cache
def _table(size: int) -> Hashes:
    return np.random.default_rng(20261129).integers(0, 2**63, size, np.uint64) * np.uint64(2) + np.uint64(1)


def _factors(count: int) -> Hashes:
    return _table(max(1 << 18, 1 << max(0, count - 1).bit_length()))[:count]


def of_rows(rows: NDArray[np.float32]) -> Hashes:
    """One hash a row."""
    factors = _factors(rows.shape[1])
    bits = np.ascontiguousarray(rows).view(np.uint32)
    step = max(1, _STEP // max(1, rows.shape[1]))
    parts = [np.einsum("ij,j->i", bits[i : i + step].astype(np.uint64), factors) for i in range(0, len(bits), step)]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def of_columns(blocks: Iterable[tuple[int, NDArray[np.float32]]], shape: tuple[int, int]) -> Hashes:
    """One hash a column of a matrix that comes in blocks of rows: those that :func:`of_rows` gives the transposed."""
    factors = _factors(shape[0])
    total = np.zeros(shape[1], np.uint64)
    step = max(1, _STEP // max(1, shape[1]))
    for start, block in blocks:
        bits = np.ascontiguousarray(block).view(np.uint32)
        for i in range(0, len(bits), step):
            part = bits[i : i + step].astype(np.uint64)
            total += np.einsum("i,ij->j", factors[start + i : start + i + len(part)], part)
    return total
