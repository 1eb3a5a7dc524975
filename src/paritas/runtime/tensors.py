"""An input or output of a graph as it is declared, and the refusal of one that no decoder has."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from paritas.errors import Invalid

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
FLOATS_OR_UNSAID = (*FLOATS, onnx.TensorProto.UNDEFINED)  # exporters may leave out the types of outputs
INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


@dataclass(frozen=True)
class Port:
    """An input or output; ``dims`` has None where the size is not fixed, and is empty where no shape is given."""

    name: str
    element: int
    dims: tuple[int | None, ...]

    @classmethod
    def of(cls, value: onnx.ValueInfoProto) -> "Port":
        """As declared in the graph."""
        tensor = value.type.tensor_type
        dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
        return cls(value.name, tensor.elem_type, dims)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its elements; bf16 too."""
        return onnx.helper.tensor_dtype_to_np_dtype(self.element)

    def __str__(self) -> str:
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.dims)
        return f"{onnx.TensorProto.DataType.Name(self.element).lower()}[{dims}]"


def refused(code: str, fact: str, model: Path) -> Invalid:
    """The graph ``model`` is no decoder that can be fed from token ids."""
    return Invalid(
        code,
        fact,
        place=str(model),
        hint="`paritas inspect` shows the inputs and outputs; run a graph of a decoder alone.",
    )
