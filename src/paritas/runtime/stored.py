"""Tensors of a graph, wherever they lie; read in blocks of rows when they are asked for, widened to fp32."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from paritas.runtime import external

BLOCK = 1 << 20  # elements in memory at a time
_FLOATS: Mapping[int, str] = {
    onnx.TensorProto.FLOAT: "fp32",
    onnx.TensorProto.FLOAT16: "fp16",
    onnx.TensorProto.BFLOAT16: "bf16",
    onnx.TensorProto.DOUBLE: "fp64",
}


@dataclass(frozen=True)
class Stored:
    """A tensor of the graph.

    Attributes:
        name: as the graph calls it.
        shape: as stored.
        dtype: ``fp32``, ``fp16``, ``bf16``, ``fp64``, or ONNX's own word for another type.
        bytes: on disk.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    _proto: onnx.TensorProto = field(repr=False, compare=False)
    _extent: external.Extent | None = field(repr=False, compare=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def place(self) -> tuple[object, ...]:
        """Where its bytes lie: two tensors of one place are the same bytes."""
        return (self.name,) if self._extent is None else (self._extent.file, self._extent.start)

    @property
    def is_float(self) -> bool:
        """A type that weights are computed with."""
        return self.dtype in _FLOATS.values()

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows along the last axis, of all other axes together; a vector is one row."""
        long = [n for n in self.shape if n != 1]
        if len(long) < 2:
            return 1, self.size
        return self.size // long[-1], long[-1]

    def blocks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """``(first row, rows)`` of :attr:`matrix`, in order."""
        rows, columns = self.matrix
        step = max(1, BLOCK // max(1, columns))
        inline = self._whole() if self._extent is None else None  # read once: protobuf copies it each time
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            yield start, self.rows(start, stop) if inline is None else inline[start:stop].astype(np.float32, copy=False)

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows ``[start, stop)`` of :attr:`matrix`, as fp32."""
        _, columns = self.matrix
        if self._extent is None:
            return self._whole()[start:stop].astype(np.float32, copy=False)
        kind = ir.DataType(self._proto.data_type).numpy()
        offset = self._extent.start + start * columns * kind.itemsize
        values = np.fromfile(self._extent.file, kind, (stop - start) * columns, offset=offset)
        return values.reshape(-1, columns).astype(np.float32, copy=False)

    def _whole(self) -> NDArray[Any]:
        raw = self._proto.raw_data
        whole = np.frombuffer(raw, ir.DataType(self._proto.data_type).numpy()) if raw else self.array()
        return whole.reshape(self.matrix)

    def array(self) -> NDArray[Any]:
        """The whole tensor in its own type; sub-byte types are unpacked."""
        if self._extent is None:
            return np.asarray(onnx.numpy_helper.to_array(self._proto))
        raw = np.fromfile(self._extent.file, np.uint8, self.bytes, offset=self._extent.start).tobytes()
        inline = onnx.TensorProto(dims=self.shape, data_type=self._proto.data_type, raw_data=raw)
        return np.asarray(onnx.numpy_helper.to_array(inline))

    def mapped(self) -> NDArray[Any]:
        """As :meth:`array`; of a file, nothing is read but what is looked at, where the type has whole bytes."""
        kind = ir.DataType(self._proto.data_type)
        if self._extent is None or kind.bitwidth % 8 or not self.size:
            return self.array()
        return np.memmap(self._extent.file, kind.numpy(), "r", self._extent.start, self.shape)

    def vector(self) -> NDArray[np.float32]:
        """All values in one row, as fp32."""
        return self.array().reshape(-1).astype(np.float32, copy=False)


def tensors(proto: onnx.ModelProto, folder: Path) -> Mapping[str, Stored]:
    """Every initializer of the model, those of subgraphs too, and the values of Constant nodes.

    Raises:
        ParitasError: ``package-data-hostile``, ``package-data-truncated``.
    """
    extents = {extent.name: extent for extent in external.extents(proto, folder)}
    return {name: _stored(name, tensor, extents) for name, tensor in _named(proto.graph)}


def _named(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _named(attribute.g)
            for inner in attribute.graphs:
                yield from _named(inner)
        if node.op_type == "Constant" and node.attribute:
            yield node.output[0], _constant(node.attribute[0])


def _constant(attribute: onnx.AttributeProto) -> onnx.TensorProto:
    if attribute.HasField("t"):
        return attribute.t
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return onnx.TensorProto(data_type=onnx.TensorProto.STRING, string_data=[value])
    kind = np.float32 if attribute.name.startswith("value_float") else np.int64
    return onnx.numpy_helper.from_array(np.asarray(value, kind))


def _stored(name: str, proto: onnx.TensorProto, extents: Mapping[str, external.Extent]) -> Stored:
    shape = tuple(proto.dims)
    outside = proto.data_location == onnx.TensorProto.EXTERNAL
    bits = ir.DataType(proto.data_type).bitwidth if proto.data_type != onnx.TensorProto.STRING else 8
    word = _FLOATS.get(proto.data_type) or onnx.TensorProto.DataType.Name(proto.data_type).lower()
    size = -(-bits * math.prod(shape) // 8)
    return Stored(name, shape, word, size, proto, extents.get(proto.name) if outside else None)
