"""A matrix as the tensors that operators on blocks of integers take, made in one pass over its rows."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.ahead import WORKERS, ahead
from paritas.quant import rtn, search
from paritas.quant.grid import Blocked, Grid, blocked, packed
from paritas.weights import Blocks, Method, Weight, check_finite

_CACHED = 1 << 16  # numbers at a time: they and what is made of them stay in the processor's cache

SCRATCH_BYTES = 16 * WORKERS * 4 * _CACHED
"""What quantising takes at most beside its results: a dozen arrays of fp32 a worker, and blocks that wait."""

QUANTISERS: Mapping[Method, Callable[[Blocked, Blocks], Grid]] = {
    Method.RTN: rtn.quantise,
    Method.SEARCH: search.quantise,
}


class Packed:
    """A matrix ``[rows, columns]`` that is stored in blocks of integers.

    Attributes:
        how: it is stored.
        rows, columns: of the matrix.
        integers: uint8 ``[rows, blocks, bytes]``, low bits first: MatMulNBits' B.
        table: the same as ``[rows, bytes]``: GatherBlockQuantized's data.
        scales: ``[rows, blocks]``.
        zeros: uint8 ``[rows, bytes]``, packed as the integers are; None if the middle is zero.
    """

    def __init__(self, weight: Weight) -> None:
        if not isinstance(weight.storage, Blocks):
            raise TypeError("this weight is stored as floats")
        self.how = weight.storage
        self.rows, self.columns = weight.shape
        found = _Pass(weight, self.how)
        blocks = -(-self.columns // self.how.block)
        size = self.how.block * self.how.bits // 8
        self.integers = _Integers(found, (self.rows, blocks, size))
        self.table = _Integers(found, (self.rows, blocks * size))
        self.scales = _Scales(found, (self.rows, blocks))
        zeros = (self.rows, -(-blocks * self.how.bits // 8))
        self.zeros = None if self.how.symmetric else _Zeros(found, zeros)


class _Pass:
    """Reads the matrix once; what is small is held until it is written."""

    def __init__(self, weight: Weight, how: Blocks) -> None:
        self.weight, self.how = weight, how
        blocks = -(-weight.shape[1] // how.block)
        self._shapes = {"scales": (weight.shape[0], blocks), "zeros": (weight.shape[0], -(-blocks * how.bits // 8))}
        self._held: dict[str, NDArray[Any]] = {}

    def integers(self) -> Iterator[NDArray[np.uint8]]:
        """Packed, block of rows by block of rows."""
        scales = np.empty(self._shapes["scales"], np.float32)
        zeros = None if self.how.symmetric else np.empty(self._shapes["zeros"], np.uint8)
        start = 0
        for grid in ahead(lambda rows: quantised(rows, self.how), self._rows()):
            rows = slice(start, start := start + len(grid.scales))
            scales[rows] = grid.scales
            if zeros is not None and grid.zeros is not None:
                zeros[rows] = packed(grid.zeros, self.how.bits)
            yield packed(grid.integers, self.how.bits)
        self._held["scales"] = scales
        if zeros is not None:
            self._held["zeros"] = zeros

    def _rows(self) -> Iterator[NDArray[np.float32]]:
        for block in self.weight.blocks():
            check_finite(block, self.weight.sources[0], self.weight.sources)
            step = max(1, _CACHED // block.shape[1])
            for start in range(0, len(block), step):
                yield block[start : start + step]

    def part(self, name: str) -> NDArray[Any]:
        """Scales or zeros; they are let go."""
        if name not in self._held:
            for _ in self.integers():
                pass
        return self._held.pop(name)


def quantised(rows: NDArray[np.float32], how: Blocks) -> Grid:
    """Rows ``[rows, columns]`` as integers."""
    return QUANTISERS[how.method](blocked(rows, how.block), how)


class _Integers(Weight):
    def __init__(self, found: _Pass, shape: tuple[int, ...]) -> None:
        self.shape, self.sources = shape, found.weight.sources
        self._found = found

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8)

    @property
    def parameters(self) -> int:
        return self._found.weight.parameters

    def blocks(self) -> Iterator[NDArray[Any]]:
        yield from self._found.integers()


class _Scales(Weight):
    def __init__(self, found: _Pass, shape: tuple[int, ...]) -> None:
        self.shape, self.sources, self.storage = shape, found.weight.sources, found.how.scales
        self.held = 4 * self.size
        self._found = found

    @property
    def parameters(self) -> int:
        return 0

    def blocks(self) -> Iterator[NDArray[Any]]:
        yield self._found.part("scales")


class _Zeros(Weight):
    def __init__(self, found: _Pass, shape: tuple[int, ...]) -> None:
        self.shape, self.sources = shape, found.weight.sources
        self.held = self.bytes
        self._found = found

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8)

    @property
    def parameters(self) -> int:
        return 0

    def blocks(self) -> Iterator[NDArray[Any]]:
        yield self._found.part("zeros")
