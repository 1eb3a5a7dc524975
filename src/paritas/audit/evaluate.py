"""Small subgraphs that hang on no weight (positions, masks, RoPE tables), evaluated for given inputs."""

import importlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.view import View
from paritas.runtime.stored import Stored

Values = NDArray[Any]
_LARGEST = 1 << 16  # elements of a constant that such a subgraph may hold
_FATAL = 4
_KINDS: Mapping[str, type[np.generic]] = {"fp16": np.float16, "fp64": np.float64}


def evaluate(view: View, names: Sequence[str], inputs: Mapping[str, Values]) -> list[Values] | None:
    """The values called ``names`` when the graph is given ``inputs``; None if that cannot be told.

    Only nodes that the values depend on are run. A subgraph that needs a weight or an input that is not given is
    not run at all.

    Args:
        view: the graph.
        names: of the values that are asked for.
        inputs: of inputs of the graph, or of any values inside of it: what lies before those is not run.
    """
    nodes = _before(view, names, inputs.keys())
    return _evaluated(view, names, nodes, inputs)


def evaluate_part(view: View, names: Sequence[str], inputs: Mapping[str, Values], new: int) -> list[Values] | None:
    """As :func:`evaluate`, where values may hang on products of weights too, but on their shapes alone.

    A mask that is as long as the hidden states is such a value. What a large weight makes is then replaced by zeros of
    its shape.

    Args:
        view: the graph.
        names: of the values that are asked for.
        inputs: of inputs of the graph, or of values inside of it.
        new: tokens of the step that ``inputs`` describe, of one row.
    """
    products = _large_products(view, names, inputs.keys())
    if any(by_value for _, by_value in products.values()):
        return None
    blank: dict[str, Values] = {}
    for name, (weight, _) in products.items():
        node = view.maker[name]
        width = _width(node, weight)
        kind = _KINDS.get(weight.dtype, np.float32)
        blank[name] = np.zeros((new, width) if node.op_type == "Gemm" else (1, new, width), kind)
    return evaluate(view, names, {**blank, **inputs})


def _large_products(view: View, names: Sequence[str], cuts: Collection[str]) -> dict[str, tuple[Stored, bool]]:
    """What large weights make before ``names``: the weight, and whether more than the product's shape is taken."""
    found: dict[str, tuple[Stored, bool]] = {}
    waiting, seen = [(name, True) for name in names], set[tuple[str, bool]]()
    while waiting:
        name, by_value = waiting.pop()
        node = view.maker.get(name)
        if name in cuts or (name, True) in seen or (name, by_value) in seen or node is None:
            continue
        seen.add((name, by_value))
        by_value = by_value and node.op_type not in ("Shape", "Size")
        large = (view.tensors[each] for each in node.input if each in view.tensors)
        weight = next((each for each in large if each.size > _LARGEST), None)
        if weight is None:
            waiting.extend((each, by_value) for each in _inputs(node))
        else:
            found[name] = weight, by_value or found.get(name, (weight, False))[1]
    return found


def _width(node: onnx.NodeProto, weight: Stored) -> int:
    """Numbers a token that a product with a weight has."""
    numbers = {attribute.name: attribute.i for attribute in node.attribute}
    return numbers.get("N") or weight.shape[0 if numbers.get("transB") else -1]


def _before(view: View, names: Sequence[str], cuts: Collection[str]) -> list[onnx.NodeProto]:
    """Nodes that make ``names`` out of ``cuts`` and the graph's inputs, in an order in which they can run."""
    waiting, seen, found = list(names), set(cuts), set[int]()
    while waiting:
        name = waiting.pop()
        node = view.maker.get(name)
        if name in seen or node is None:
            continue
        seen.add(name)
        if id(node) not in found:
            found.add(id(node))
            waiting.extend(_inputs(node))
    return [node for node in view.nodes if id(node) in found]


def _evaluated(
    view: View, names: Sequence[str], nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Values]
) -> list[Values] | None:
    taken = {name for node in nodes for name in _inputs(node)} | set(names)
    stored = {tensor.name: tensor for tensor in view.proto.graph.initializer if tensor.name in taken - inputs.keys()}
    needed = {value.name for value in view.proto.graph.input} & taken - stored.keys()
    if needed - inputs.keys() or any(view.tensors[name].size > _LARGEST for name in stored):
        return None
    given = {name: value for name, value in inputs.items() if name in taken}
    graph = onnx.helper.make_graph(
        list(nodes),
        "part",
        [_typed(name, value) for name, value in given.items()],
        [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names)],
        [_inline(view, tensor) for tensor in stored.values()],
    )
    for node in graph.node:  # a node may make a value that is given, beside one that is asked for
        for place, name in enumerate(node.output):
            if name in given:
                node.output[place] = f"{name} as it would be"
    model = onnx.helper.make_model(graph, opset_imports=view.proto.opset_import, functions=view.proto.functions)
    model.ir_version = view.proto.ir_version
    return _run(model, list(names), given)


def _typed(name: str, value: Values) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), None)


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


def _run(model: onnx.ModelProto, names: list[str], feeds: dict[str, Values]) -> list[Values] | None:
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
