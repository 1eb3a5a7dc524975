"""Small subgraphs that hang on no weight (positions, masks, RoPE tables), evaluated for given inputs."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.view import View

_LARGEST = 1 << 16  # elements of a constant that such a subgraph may hold
_FATAL = 4


def evaluate(view: View, names: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]] | None:
    """The values called ``names`` when the graph is given ``inputs``; None if that cannot be told.

    Only nodes that the values depend on are run. A subgraph that needs a weight or an input that is not given is
    not run at all.
    """
    names = list(names)
    nodes = {id(node): node for name in names for node in view.behind(name)}
    taken = {name for node in nodes.values() for name in _inputs(node)} | set(names)
    stored = {tensor.name: tensor for tensor in view.proto.graph.initializer if tensor.name in taken}
    given = {value.name: value for value in view.proto.graph.input if value.name in taken - stored.keys()}
    if set(given) - set(inputs) or any(view.tensors[name].size > _LARGEST for name in stored):
        return None
    graph = onnx.helper.make_graph(
        [node for node in view.nodes if id(node) in nodes],
        "part",
        list(given.values()),
        [onnx.ValueInfoProto(name=f"{name}") for name in names],
        [_inline(view, tensor) for tensor in stored.values()],
    )
    model = onnx.helper.make_model(graph, opset_imports=view.proto.opset_import, functions=view.proto.functions)
    model.ir_version = view.proto.ir_version
    return _run(model, names, {name: inputs[name] for name in given})


def _inputs(node: onnx.NodeProto) -> set[str]:
    """Values that a node takes, those that its subgraphs take from outside too."""
    found = {name for name in node.input if name}
    for attribute in node.attribute:
        for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
            inside = {name for inner in graph.node for name in inner.output}
            found |= {name for inner in graph.node for name in _inputs(inner)} - inside
            found |= {output.name for output in graph.output} - inside
    return found


def _inline(view: View, tensor: onnx.TensorProto) -> onnx.TensorProto:
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return tensor
    return onnx.numpy_helper.from_array(view.tensors[tensor.name].array(), tensor.name)


def _run(model: onnx.ModelProto, names: list[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]] | None:
    ort: Any = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(value) for value in session.run(names, feeds)]
    except Exception:  # the runtime's own classes have no common one; a part that does not run is not audited
        return None
