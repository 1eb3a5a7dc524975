"""Weights as expressions over checkpoint tensors: fp32 inside, read in blocks of rows, cast once when they are written.

A weight says where it comes from (:attr:`Weight.sources`), so that every tensor of the checkpoint and every
initializer of the graph can be accounted for; and how it is stored (:attr:`Weight.storage`), which travels with it
until a target writes it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint import Extent, Tensor
from paritas.errors import ParitasError

BLOCK_BYTES = 2 << 20  # of fp32 at a time, where the expression allows it: what stays in a processor's cache
_STRIP = 16  # rows that are transposed at a time: a cache line of the result


class Float(StrEnum):
    """A weight is stored in this type, each number rounded once."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy's."""
        return np.dtype({"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}[self])


class Method(StrEnum):
    """How the scale of a block is chosen; each number is then rounded to the nearest point of the block's grid."""

    RTN = "rtn"
    SEARCH = "search"


@dataclass(frozen=True)
class Blocks:
    """A matrix is stored as integers, with a scale for every block of numbers in a row.

    Attributes:
        bits: of an integer, 4 or 8.
        block: numbers that share a scale; a row's last block is filled up with zeros.
        symmetric: the middle integer is zero; else every block has a zero point.
        method: how scales are chosen.
        accuracy: ``accuracy_level`` of MatMulNBits: 1 multiplies activations as fp32, 4 rounds them to int8.
        scales: how scales are stored; activations are of the same type.
    """

    bits: int
    block: int
    symmetric: bool = True
    method: Method = Method.RTN
    accuracy: int = 4
    scales: Float = Float.FP32

    def __str__(self) -> str:
        zeros = "symmetric" if self.symmetric else "zero points"
        return f"int{self.bits} in blocks of {self.block}, {zeros}, {self.method}"


Storage = Float | Blocks


class Weight(ABC):
    """A tensor that is computed when it is written.

    Attributes:
        shape: of the result.
        sources: names of the checkpoint tensors it is made of; empty for a computed table.
        whole: it has to be in memory at once.
        held: bytes of the result that lie in memory from when another weight is written until it is.
        storage: how it is stored.
    """

    shape: tuple[int, ...]
    sources: tuple[str, ...]
    whole: bool = False
    held: int = 0
    storage: Storage = Float.FP32

    @abstractmethod
    def blocks(self) -> Iterator[NDArray[Any]]:
        """Consecutive blocks of rows, in fp32; concatenated they are the tensor."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the tensor in the file. What is stored in blocks of integers is no tensor; its parts are."""
        assert isinstance(self.storage, Float)
        return self.storage.dtype

    @property
    def extent(self) -> Extent | None:
        """Where the very numbers lie in a file of the checkpoint; None where they are computed."""
        return None

    @property
    def size(self) -> int:
        """Elements of the result."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Of the tensor in the file."""
        return self.size * self.dtype.itemsize

    @property
    def parameters(self) -> int:
        """Numbers of the checkpoint that it stands for."""
        return self.size if self.sources else 0

    @property
    def T(self) -> "Weight":  # noqa: N802 - numpy's name
        """The transposed matrix."""
        return Transposed(self).stored_as(self.storage)

    def __add__(self, offset: float) -> "Weight":
        """The sum with a number, formed in fp32 (in the checkpoint's bf16 it would be rounded to 8 bits)."""
        return self if offset == 0.0 else _Offset(self, np.float32(offset))

    def stored_as(self, storage: Storage) -> "Weight":
        """The same numbers, stored in another way."""
        if storage == self.storage:
            return self
        other = copy(self)
        other.storage = storage
        return other


def check_finite(block: NDArray[Any], name: str, sources: Sequence[str]) -> None:
    """Refuse NaN and Inf.

    Raises:
        ParitasError: ``weight-not-finite``, with the checkpoint tensor.
    """
    finite = np.isfinite(block)
    if not finite.all():
        bad = block.size - int(np.count_nonzero(finite))
        raise ParitasError(
            "weight-not-finite",
            f"{bad:,} NaN or Inf value{'s' if bad > 1 else ''} in {', '.join(sources) or name}",
            place=name,
            hint="The checkpoint itself is broken (a failed merge or training run): no export of it can be right.",
        )


class Stored(Weight):
    """A checkpoint tensor as it is."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tensor.shape
        self.sources = (tensor.name,)
        self._tensor = tensor

    @property
    def extent(self) -> Extent | None:
        """The whole tensor."""
        return self._tensor.extent(0, self.shape[0]) if self.shape else None

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

    @property
    def extent(self) -> Extent | None:
        """The range, if it is one."""
        return self._tensor.extent(*self._ranges[0]) if len(self._ranges) == 1 else None

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


class View(Weight):
    """The bytes of an initializer that is written before it, in another shape: they lie in the file once."""

    def __init__(self, of: str, weight: Weight, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.sources = weight.sources
        self.of = of
        self._weight = weight

    @property
    def dtype(self) -> np.dtype[Any]:
        """The same."""
        return self._weight.dtype

    @property
    def bytes(self) -> int:
        """None of its own."""
        return 0

    @property
    def parameters(self) -> int:
        """None of its own."""
        return 0

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Nothing is written."""
        return iter(())


class _Offset(Weight):
    def __init__(self, weight: Weight, offset: np.float32) -> None:
        self.shape = weight.shape
        self.sources = weight.sources
        self._weight = weight
        self._offset = offset

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        for block in self._weight.blocks():
            yield block + self._offset


class Transposed(Weight):
    """A matrix the other way round."""

    whole = True

    def __init__(self, weight: Weight) -> None:
        rows, columns = weight.shape
        self.shape = (columns, rows)
        self.sources = weight.sources
        self._weight = weight

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Rows of the whole: each of them needs every row of the source."""
        whole = np.empty(self.shape, np.float32)
        start = 0
        for block in self._weight.blocks():
            for first in range(0, len(block), _STRIP):
                strip = block[first : first + _STRIP]
                whole[:, start + first : start + first + len(strip)] = strip.T
            start += len(block)
        yield from _by_rows(self.shape, lambda first, last: whole[first:last])


def _by_rows(shape: tuple[int, ...], rows: Callable[[int, int], NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    row_bytes = 4 * math.prod(shape[1:])
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    count = shape[0] if shape else 1  # a single number is a row
    for start in range(0, count, step):
        yield rows(start, min(start + step, count))
