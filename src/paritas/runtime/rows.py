"""An input that need not be given, and says of how many of a call's last positions there are logits."""

import numpy as np
import onnx

from paritas.runtime.tensors import Port

_NAME = "logits_to_keep"
ALL = 0


def read_kept(proto: onnx.ModelProto) -> str | None:
    """Its name: an int64 number with a default, where 0 stands for all, as in transformers.js; None without one."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    ports = (Port.of(value) for value in proto.graph.input if value.name in stored and _NAME in value.name)
    return next((port.name for port in ports if port.element == onnx.TensorProto.INT64 and not port.dims), None)


def giving_all(proto: onnx.ModelProto, kept: str, logits: str) -> onnx.ModelProto:
    """The same graph, asked for the logits of all positions: for a runtime that cannot give it the input ``kept``."""
    asked = onnx.ModelProto()
    asked.CopyFrom(proto)
    (default,) = (tensor for tensor in asked.graph.initializer if tensor.name == kept)
    default.CopyFrom(onnx.numpy_helper.from_array(np.array(ALL, np.int64), kept))
    (output,) = (value for value in asked.graph.output if value.name == logits)
    output.type.tensor_type.shape.dim[1].Clear()
    return asked
