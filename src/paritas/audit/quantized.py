"""Weights that are stored as integers: dequantised here, independently of any runtime, in blocks of rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.tensors import Stored
from paritas.audit.view import View, attributes

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Quantized:
    """A weight of rows (outputs) and columns (inputs), stored as integers in blocks along a row.

    Attributes:
        name: of the integers' initializer.
        bits: of one integer.
        rows, columns: of the weight.
        block: columns that share a scale.
        members: every initializer that it is made of.
    """

    name: str
    bits: int
    rows: int
    columns: int
    block: int
    members: tuple[str, ...]
    _integers: Stored = field(repr=False)
    _scales: Stored = field(repr=False)
    _zeros: Stored | None = field(repr=False)

    def read(self, start: int, stop: int) -> tuple[Rows, Rows]:
        """Rows ``[start, stop)`` dequantised, and the step of each element."""
        blocks = -(-self.columns // self.block)
        scales = self._scales.array().reshape(self.rows, blocks)[start:stop].astype(np.float32)
        integers = self._unpacked(self._integers, start, stop, blocks * self.block)
        zeros = self._zero_points(start, stop, blocks)
        step = np.repeat(scales, self.block, axis=1)[:, : self.columns]
        shift = np.repeat(zeros, self.block, axis=1)[:, : self.columns]
        return (integers[:, : self.columns].astype(np.float32) - shift) * step, np.abs(step)

    def _zero_points(self, start: int, stop: int, blocks: int) -> Rows:
        if self._zeros is None:
            symmetric = 0 if self._signed(self._integers) else 1 << (self.bits - 1)
            return np.full((stop - start, blocks), symmetric, np.float32)
        if self._zeros.is_float:
            return self._zeros.array().reshape(self.rows, blocks)[start:stop].astype(np.float32)
        return self._unpacked(self._zeros, start, stop, blocks).astype(np.float32)

    def _signed(self, stored: Stored) -> bool:
        return stored.dtype in ("int4", "int8")

    def _unpacked(self, stored: Stored, start: int, stop: int, width: int) -> NDArray[Any]:
        values = stored.array()
        if stored.dtype in ("int4", "uint4", "int8") or self.bits == 8:
            return values.reshape(self.rows, -1)[start:stop, :width].astype(np.int32)
        packed = values.reshape(self.rows, -1)[start:stop]
        per = 8 // self.bits
        shifts = np.arange(per, dtype=np.uint8) * self.bits
        mask = (1 << self.bits) - 1
        return ((packed[:, :, None] >> shifts) & mask).reshape(stop - start, -1)[:, :width].astype(np.int32)


def quantized(view: View) -> Mapping[str, Quantized]:
    """Integers' initializer -> weight, for every operator that multiplies by one or gathers from one."""
    found: dict[str, Quantized] = {}
    for node in view.nodes:
        for weight in _of(node, view):
            found[weight.name] = weight
    return found


def _of(node: onnx.NodeProto, view: View) -> Iterator[Quantized]:
    given = [view.tensors.get(name) for name in node.input]
    values = attributes(node)
    if node.op_type == "MatMulNBits" and given[1] and given[2]:
        zeros = given[3] if len(given) > 3 else None
        yield _made(given[1], given[2], zeros, values.get("bits", 4), values["N"], values["K"], values["block_size"])
    elif node.op_type == "GatherBlockQuantized" and given[0] and given[2]:
        zeros = given[3] if len(given) > 3 else None
        yield from _table(given[0], given[2], zeros, values)
    elif node.op_type == "DequantizeLinear" and given[0] and given[1] and len(given[0].shape) == 2:
        yield from _blocked(given[0], given[1], given[2] if len(given) > 2 else None, values)


def _table(integers: Stored, scales: Stored, zeros: Stored | None, values: Mapping[str, Any]) -> Iterator[Quantized]:
    block = int(values.get("block_size", 128))
    bits = int(values.get("bits", 4))
    rows = integers.shape[0]
    columns = integers.size // rows * (8 // bits if integers.dtype == "uint8" else 1)
    if values.get("quantize_axis", 1) in (1, -1) and len(scales.shape) == 2:
        yield _made(integers, scales, zeros, bits, rows, columns, block)


def _blocked(integers: Stored, scales: Stored, zeros: Stored | None, values: Mapping[str, Any]) -> Iterator[Quantized]:
    block = int(values.get("block_size", 0))
    bits = 4 if "int4" in integers.dtype else 8
    rows, columns = integers.shape
    if block and values.get("axis", 1) in (1, -1):
        yield _made(integers, scales, zeros, bits, rows, columns, block)


def _made(
    integers: Stored, scales: Stored, zeros: Stored | None, bits: int, rows: int, columns: int, block: int
) -> Quantized:
    members = tuple(each.name for each in (integers, scales, zeros) if each)
    return Quantized(integers.name, bits, rows, columns, block, members, integers, scales, zeros)
