"""Weights as expressions over checkpoint tensors: fp32 inside, read in blocks of rows, cast once when they are written.

A weight says where it comes from (:attr:`Weight.sources`), so that every tensor of the checkpoint and every
initializer of the graph can be accounted for.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint import Tensor

BLOCK_BYTES = 8 << 20  # of fp32 in memory at a time, where the expression allows it


class Weight(ABC):
    """An fp32 tensor that is computed when it is written.

    Attributes:
        shape: of the result.
        sources: names of the checkpoint tensors it is made of; empty for a computed table.
        whole: it has to be in memory at once.
    """

    shape: tuple[int, ...]
    sources: tuple[str, ...]
    whole: bool = False

    @abstractmethod
    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Consecutive blocks of rows; concatenated they are the tensor."""

    @property
    def bytes(self) -> int:
        """Size of the result in fp32."""
        return 4 * int(np.prod(self.shape, dtype=np.int64))

    @property
    def T(self) -> "Weight":  # noqa: N802 - numpy's name
        """The transposed matrix."""
        return _Transposed(self)

    def __add__(self, offset: float) -> "Weight":
        """The sum with a number, formed in fp32 (in the checkpoint's bf16 it would be rounded to 8 bits)."""
        return self if offset == 0.0 else _Offset(self, np.float32(offset))


class Stored(Weight):
    """A checkpoint tensor as it is."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tensor.shape
        self.sources = (tensor.name,)
        self._tensor = tensor

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Rows as they are stored, widened to fp32."""
        yield from _by_rows(self.shape, self._tensor.rows)


class Rows(Weight):
    """Rows ``[start, stop)`` of a checkpoint tensor, range after range: one part of a packed projection."""

    def __init__(self, tensor: Tensor, ranges: Sequence[tuple[int, int]]) -> None:
        self.shape = (sum(stop - start for start, stop in ranges), *tensor.shape[1:])
        self.sources = (tensor.name,)
        self._tensor = tensor
        self._ranges = ranges

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """The ranges in turn, widened to fp32."""
        for first, last in self._ranges:
            shape = (last - first, *self.shape[1:])
            yield from _by_rows(shape, lambda start, stop, at=first: self._tensor.rows(at + start, at + stop))


class Computed(Weight):
    """A table that a formula gives, row by row: ``rows(start, stop)`` returns ``[stop - start, ...]``."""

    def __init__(self, shape: tuple[int, ...], rows: Callable[[int, int], NDArray[np.float32]]) -> None:
        self.shape = shape
        self.sources = ()
        self._rows = rows

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Rows of the formula."""
        yield from _by_rows(self.shape, self._rows)


class Stack(Weight):
    """Equal parts on a new first axis, [count, *part]; ``part(index)`` gives one, and one is in memory at a time."""

    def __init__(
        self, shape: tuple[int, ...], sources: tuple[str, ...], part: Callable[[int], NDArray[np.float32]]
    ) -> None:
        self.shape = shape
        self.sources = sources
        self.part = part

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Part after part."""
        for index in range(self.shape[0]):
            yield self.part(index)[np.newaxis]


class _Offset(Weight):
    def __init__(self, weight: Weight, offset: np.float32) -> None:
        self.shape = weight.shape
        self.sources = weight.sources
        self._weight = weight
        self._offset = offset

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        for block in self._weight.blocks():
            yield block + self._offset


class _Transposed(Weight):
    whole = True

    def __init__(self, weight: Weight) -> None:
        rows, columns = weight.shape
        self.shape = (columns, rows)
        self.sources = weight.sources
        self._weight = weight

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        # Every row of the result needs every row of the source: one whole matrix is in memory, twice for a moment.
        whole = np.empty(self.shape, np.float32)
        start = 0
        for block in self._weight.blocks():
            whole[:, start : start + len(block)] = block.T
            start += len(block)
        yield whole


def _by_rows(shape: tuple[int, ...], rows: Callable[[int, int], NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    row_bytes = 4 * int(np.prod(shape[1:], dtype=np.int64))
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, shape[0], step):
        yield rows(start, min(start + step, shape[0]))
