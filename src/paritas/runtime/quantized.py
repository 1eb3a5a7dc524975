"""Weights that are stored as integers: dequantised here, independently of any runtime, in blocks of rows.

The layouts are those of ``com.microsoft.MatMulNBits`` and ``GatherBlockQuantized`` (rows packed low bits first, a
scale for every block of columns) and of ONNX's ``DequantizeLinear`` and ``MatMulInteger`` (plain integers, a scale
for all, for each row or column, or for each block).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.runtime.stored import Stored

Rows = NDArray[np.float32]
_PASSES = frozenset({"Reshape", "Identity", "Cast"})


@dataclass(frozen=True)
class Grid:
    """Rows of integers and what they stand for: ``(integers - zeros) * steps``, each ``[rows, columns]``."""

    integers: Rows
    zeros: Rows
    steps: Rows

    @property
    def values(self) -> Rows:
        """Dequantised."""
        return (self.integers - self.zeros) * self.steps


@dataclass(frozen=True)
class Quantized(ABC):
    """A weight of rows (outputs) and columns (inputs), stored as integers.

    Attributes:
        name: of the integers' initializer.
        bits: of one integer.
        rows, columns: of the weight.
        block: columns that share a scale; 0 if whole rows do.
        members: every initializer that it is made of.
        gathered, multiplied: whether the graph takes rows of it, and whether it multiplies by it.
    """

    name: str
    bits: int
    rows: int
    columns: int
    block: int
    members: tuple[str, ...]
    gathered: bool
    multiplied: bool
    _integers: Stored = field(repr=False)
    _scales: Stored = field(repr=False)
    _zeros: Stored | None = field(repr=False)

    @cached_property
    def _arrays(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        """Integers, scales, zero points, as they are stored."""
        return self._integers.mapped(), self._scales.mapped(), None if self._zeros is None else self._zeros.mapped()

    @abstractmethod
    def grid(self, start: int, stop: int) -> Grid:
        """Rows ``[start, stop)``."""

    def read(self, start: int, stop: int) -> tuple[Rows, Rows]:
        """Rows ``[start, stop)`` dequantised, and the step of each element."""
        grid = self.grid(start, stop)
        return grid.values, np.abs(grid.steps)

    @property
    def least(self) -> int:
        """The smallest integer that it can store; the largest is ``least + 2 ** bits - 1``."""
        return -(1 << (self.bits - 1)) if self._integers.dtype in ("int4", "int8", "int2") else 0

    @property
    def format(self) -> str:
        """``int4 in blocks of 32, symmetric, fp32 scales``."""
        shared = (
            f"in blocks of {self.block}" if self.block else "a scale a row" if self._scales.size > 1 else "one scale"
        )
        zeros = "symmetric" if self._zeros is None else f"{self._zeros.dtype} zero points"
        return f"int{self.bits} {shared}, {zeros}, {self._scales.dtype} scales"

    @property
    def scale_dtype(self) -> str:
        """Of its scales: ``fp32``, ``fp16``, ``bf16``."""
        return self._scales.dtype


class Packed(Quantized):
    """As ``MatMulNBits`` and ``GatherBlockQuantized`` have it: row by row, a scale a block."""

    def grid(self, start: int, stop: int) -> Grid:
        """Rows ``[start, stop)``."""
        integers, scales, zeros = self._arrays
        blocks = -(-self.columns // self.block)
        scales = scales.reshape(self.rows, blocks)[start:stop].astype(np.float32)
        integers = self._unpacked(integers, start, stop, blocks * self.block)
        zeros = self._zero_points(zeros, start, stop, blocks)
        steps = np.repeat(scales, self.block, axis=1)[:, : self.columns]
        shift = np.repeat(zeros, self.block, axis=1)[:, : self.columns]
        return Grid(integers[:, : self.columns].astype(np.float32), shift, steps)

    def _zero_points(self, zeros: NDArray[Any] | None, start: int, stop: int, blocks: int) -> Rows:
        if zeros is None or self._zeros is None:
            return np.full((stop - start, blocks), self.least + (1 << (self.bits - 1)), np.float32)
        if self._zeros.is_float:
            return zeros.reshape(self.rows, blocks)[start:stop].astype(np.float32)
        return self._unpacked(zeros, start, stop, blocks).astype(np.float32)

    def _unpacked(self, stored: NDArray[Any], start: int, stop: int, width: int) -> NDArray[Any]:
        values = np.asarray(stored.reshape(self.rows, -1)[start:stop])
        if stored.dtype != np.uint8 or self.bits == 8:
            return values[:, :width].astype(np.int32)
        shifts = np.arange(8 // self.bits, dtype=np.uint8) * self.bits
        mask = (1 << self.bits) - 1
        return ((values[:, :, None] >> shifts) & mask).reshape(stop - start, -1)[:, :width].astype(np.int32)


@dataclass(frozen=True)
class Plain(Quantized):
    """As ``DequantizeLinear`` and ``MatMulInteger`` have it: an integer an element.

    Attributes:
        axis: along which scales differ, or along which their blocks lie.
        transposed: stored ``[columns, rows]``, as a matrix that is multiplied by from the right.
    """

    axis: int = 1
    transposed: bool = False

    def grid(self, start: int, stop: int) -> Grid:
        """Rows ``[start, stop)``."""
        part = np.s_[:, start:stop] if self.transposed else np.s_[start:stop]
        integers, scales, zeros = self._arrays
        each = [integers, self._spread(zeros), self._spread(scales)]
        rows = [np.asarray(values[part], np.float32) for values in each]
        return Grid(*(np.ascontiguousarray(values.T) if self.transposed else values for values in rows))

    def _spread(self, stored: NDArray[Any] | None) -> NDArray[Any]:
        """Scales or zero points, one for each element."""
        shape = self._integers.shape
        values = np.zeros((), np.float32) if stored is None else stored
        if self.block and values.ndim == 2:
            values = np.repeat(values, self.block, axis=self.axis)
            return values[: shape[0], : shape[1]]
        if values.size > 1:
            values = values.reshape([-1 if axis == self.axis else 1 for axis in range(2)])
        return np.broadcast_to(values, shape)


def quantized(nodes: Iterable[onnx.NodeProto], tensors: Mapping[str, Stored]) -> Mapping[str, Quantized]:
    """Integers' initializer -> weight, for every operator that multiplies by one or gathers from one."""
    graph = _Graph(list(nodes), tensors)
    found: dict[str, Quantized] = {}
    for node in graph.nodes:
        for weight in _of(node, graph):
            before = found.get(weight.name)
            found[weight.name] = weight if before is None else _joined(before, weight)
    return found


class _Graph:
    """Who makes a value and who takes it."""

    def __init__(self, nodes: Sequence[onnx.NodeProto], tensors: Mapping[str, Stored]) -> None:
        self.nodes, self._tensors = nodes, tensors
        self._maker = {name: node for node in nodes for name in node.output}
        self._takers: dict[str, list[onnx.NodeProto]] = {}
        for node in nodes:
            for name in node.input:
                self._takers.setdefault(name, []).append(node)

    def takers(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Of the node's first output, also behind nodes that only reshape it."""
        found = self._takers.get(node.output[0], [])
        return [taker for each in found for taker in (self.takers(each) if each.op_type in _PASSES else [each])]

    def behind(self, name: str) -> Stored | None:
        """The stored tensor that a value is, seen through nodes that only reshape it."""
        seen: set[str] = set()  # a broken graph may go round in a circle
        while name not in self._tensors and (node := self._maker.get(name)) is not None and node.op_type in _PASSES:
            if name in seen:
                return None
            seen.add(name)
            name = node.input[0]
        return self._tensors.get(name)

    def gathered(self, name: str) -> Stored | None:
        """The stored table of which a value is some rows."""
        node = self._maker.get(name)
        return self.behind(node.input[0]) if node is not None and node.op_type == "Gather" else None

    def columns_kept(self, node: onnx.NodeProto) -> int | None:
        """Where a Slice ends that alone takes the node's output ``[..., columns]``, from its first column on."""
        takers = self._takers.get(node.output[0], [])
        if len(takers) != 1 or takers[0].op_type != "Slice" or len(takers[0].input) < 4:
            return None
        given = [self._tensors.get(name) for name in takers[0].input[1:4]]
        start, end, _ = (int(each.array().item()) if each and each.size == 1 else None for each in given)
        return end if start == 0 else None

    def scales_after(self, node: onnx.NodeProto) -> Stored | None:
        """The weight's scales by which a product of integers is multiplied later, times the activations' own."""
        for taker in self.takers(node):
            for name in taker.input if taker.op_type == "Mul" else ():
                made = self._maker.get(name)
                stored = (
                    [self.behind(each) for each in made.input] if made is not None and made.op_type == "Mul" else []
                )
                if found := [each for each in stored if each is not None]:
                    return found[0]
        return None


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Attribute name -> value; texts decoded. A function's node may leave a value to its caller: that is left out."""
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.ref_attr_name}
    return {key: value.decode() if isinstance(value, bytes) else value for key, value in values.items()}


def _joined(one: Quantized, other: Quantized) -> Quantized:
    """One weight that is used in two ways. A table's columns are of whole blocks, a product's are the weight's."""
    one, other = sorted((one, other), key=lambda weight: weight.columns)
    return replace(one, gathered=one.gathered or other.gathered, multiplied=one.multiplied or other.multiplied)


def _of(node: onnx.NodeProto, graph: "_Graph") -> Iterator[Quantized]:
    given = [graph.behind(name) for name in node.input]
    values = attributes(node)
    given = [*given, None, None, None, None]
    match node.op_type:
        case "MatMulNBits" if given[1] and given[2] and given[4] is None:
            parts = _Parts(given[1], given[2], given[3])
            yield parts.packed(values.get("bits", 4), values["N"], values["K"], values["block_size"], gathered=False)
        case "GatherBlockQuantized" if given[0] and given[2]:
            yield from _table(_Parts(given[0], given[2], given[3]), values, graph.columns_kept(node))
        case "DequantizeLinear" if given[0] and given[1] and len(given[0].shape) == 2:
            yield _linear(_Parts(given[0], given[1], given[2]), values, graph.takers(node))
        case "DequantizeLinear" if given[1] and given[1].size == 1 and (table := graph.gathered(node.input[0])):
            if len(table.shape) == 2:
                yield _linear(_Parts(table, given[1], given[2]), {}, [], gathered=True)
        case "MatMulInteger" if given[1] and len(given[1].shape) == 2 and (scales := graph.scales_after(node)):
            yield _linear(_Parts(given[1], scales, given[3]), {}, [node])
        case _:
            pass


@dataclass(frozen=True)
class _Parts:
    integers: Stored
    scales: Stored
    zeros: Stored | None

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(each.name for each in (self.integers, self.scales, self.zeros) if each)

    def packed(self, bits: int, rows: int, columns: int, block: int, *, gathered: bool) -> Packed:
        stored = (self.integers, self.scales, self.zeros)
        return Packed(self.integers.name, bits, rows, columns, block, self.members, gathered, not gathered, *stored)


def _table(parts: _Parts, values: Mapping[str, Any], kept: int | None) -> Iterator[Quantized]:
    """``kept``: its columns, if those that fill up the last block are cut off behind it."""
    bits, block = int(values.get("bits", 4)), int(values.get("block_size", 128))
    rows = parts.scales.shape[0]
    columns = parts.integers.size // rows * (8 // bits if parts.integers.dtype == "uint8" else 1)
    columns = columns if kept is None else min(kept, columns)
    if values.get("quantize_axis", 1) in (1, -1) and values.get("gather_axis", 0) == 0 and len(parts.scales.shape) == 2:
        yield parts.packed(bits, rows, columns, block, gathered=True)


def _linear(
    parts: _Parts, values: Mapping[str, Any], takers: list[onnx.NodeProto], *, gathered: bool = False
) -> Quantized:
    """Its users tell which way round the matrix is."""
    gathered = gathered or any(node.op_type == "Gather" for node in takers)
    by_rows = gathered or any(attributes(node).get("transB") for node in takers)
    rows, columns = parts.integers.shape if by_rows else parts.integers.shape[::-1]
    axis = int(values.get("axis", 1)) % 2
    block = int(values.get("block_size", 0))
    bits = 4 if "int4" in parts.integers.dtype else 8
    stored = (parts.integers, parts.scales, parts.zeros)
    ways, name = (gathered, not gathered), parts.integers.name
    return Plain(name, bits, rows, columns, block, parts.members, *ways, *stored, axis, not by_rows)
