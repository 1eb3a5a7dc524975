"""The same graph in fp32 arithmetic: what it computes when nothing but its stored numbers is rounded.

A copy for a session, never written to disk. Its external data is the package's own file: weights of fp16 and bf16 are
widened by a Cast behind each of them, integers stay integers and are multiplied in fp32.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from paritas.errors import Invalid
from paritas.runtime.package import Package
from paritas.runtime.proto import nodes, operator
from paritas.runtime.stored import tensors

NARROW = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
_WORDS: dict[int, str] = {onnx.TensorProto.FLOAT16: "fp16", onnx.TensorProto.BFLOAT16: "bf16"}
_FLOAT = onnx.TensorProto.FLOAT
_TYPES = frozenset({"to", "dtype", "output_dtype", "softmax_precision", "stash_type", "output_datatype"})
"""Attributes that name a type."""

_FP32 = 1
"""``accuracy_level`` of MatMulNBits: activations are multiplied as fp32."""

LEVEL = ("session.qdq_matmulnbits_accuracy_level", str(_FP32))
"""The same for DequantizeLinear before a MatMul, which ONNX Runtime fuses; of itself it would round activations."""

_SMALL = 1 << 12  # bytes

_ROUGH = frozenset(
    {
        "QMoE",
        "MatMulBnb4",
        "DynamicQuantizeMatMul",
        "MatMulIntegerToFloat",
        "QAttention",
        "QGemm",
        "QLinearMatMul",
        "QLinearAdd",
        "QLinearMul",
        "QLinearSigmoid",
        "ConvInteger",
        "QLinearConv",
        "MatMulFpQ4",
        "QEmbedLayerNormalization",
    }
)
"""Operators that round inside, and that have no attribute or neighbour that would stop it."""


def activations(proto: onnx.ModelProto) -> tuple[str, ...]:
    """How the graph rounds what it computes, in words; empty if it computes in fp32."""
    found: set[str] = set()
    for node in nodes(proto):
        if node.op_type == "MatMulNBits":
            level = next((a.i for a in node.attribute if a.name == "accuracy_level"), 0)
            found |= {f"accuracy_level {level}"} if level > _FP32 else set()
        if node.op_type == "DequantizeLinear" and any(a.name == "block_size" and a.i for a in node.attribute):
            found.add("DequantizeLinear, which ONNX Runtime fuses with accuracy_level 4")
        if node.op_type in ("DynamicQuantizeLinear", "QuantizeLinear", *_ROUGH):
            found.add(node.op_type)
    return (*sorted(_WORDS[kind] for kind in narrow_types(proto)), *sorted(found))


def narrow_types(proto: onnx.ModelProto) -> set[int]:
    """fp16 and bf16, as far as values of the graph have them (a table of narrow weights alone is not meant).

    A Cast alone makes no build of less than fp32: where nothing is stored, given or returned in the narrow type, what
    goes through it is a fault of an fp32 build, and is held to that gate.
    """
    ports = {value.type.tensor_type.elem_type for value in (*proto.graph.input, *proto.graph.output)}
    casts = {a.i for node in nodes(proto) if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
    stored = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    used = {stored.get(name, 0) for node in nodes(proto) if node.op_type != "Cast" for name in node.input}
    meant = (ports | set(stored.values())) & NARROW
    return (ports | used | (casts & meant)) & NARROW


def exact(package: Package) -> Package:
    """The package with its graph in fp32 arithmetic.

    Raises:
        Invalid: ``precision-not-exact``: an operator rounds what it computes and cannot be told not to.
    """
    copy = multiplied_exactly(package)
    _widen(copy.proto)
    return copy


def multiplied_exactly(package: Package) -> Package:
    """The package with activations that are no integers; fp16 and bf16 stay what they are.

    Raises:
        Invalid: as :func:`exact`.
    """
    if rough := sorted({operator(node) for node in nodes(package.proto) if node.op_type in _ROUGH}):
        raise Invalid(
            "precision-not-exact",
            f"{', '.join(rough)} cannot be computed in fp32, so its rounding cannot be told from a fault",
            place=str(package.model),
            hint="Export it with MatMulNBits or DequantizeLinear, or in fp32.",
        )
    copy = onnx.ModelProto()
    copy.CopyFrom(package.proto)
    _hold_small(copy, package.model.parent)
    _integers(copy.graph)
    return replace(package, rewritten=copy)


def _hold_small(model: onnx.ModelProto, folder: Path) -> None:
    """Shapes and axes are taken into the graph: for a graph in memory the runtime looks for them nowhere else."""
    held = tensors(model, folder)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL and held[tensor.name].bytes <= _SMALL:
            tensor.CopyFrom(onnx.numpy_helper.from_array(held[tensor.name].array(), tensor.name))


def _integers(graph: onnx.GraphProto) -> None:
    """Weights stay integers, activations do not become any."""
    maker = {name: node for node in graph.node for name in node.output}
    written: list[onnx.NodeProto] = []
    for node in graph.node:
        match node.op_type:
            case "MatMulNBits":
                kept = [a for a in node.attribute if a.name != "accuracy_level"]
                del node.attribute[:]
                node.attribute.extend([*kept, onnx.helper.make_attribute("accuracy_level", _FP32)])
                written.append(node)
            case "DynamicQuantizeLinear":
                written += _unrounded(node)
            case "MatMulInteger":
                written += _product(node)
            case "DequantizeLinear" if (rounding := maker.get(node.input[0])) and rounding.op_type == "QuantizeLinear":
                written.append(onnx.helper.make_node("Identity", [rounding.input[0]], list(node.output)))
            case _:
                written.append(node)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") or attribute.graphs else ():
                _integers(inner)
    del graph.node[:]
    graph.node.extend(written)


def _unrounded(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Values, scale and zero point as if they had been rounded to themselves."""
    values = (np.array(1, np.float32), np.array(0, np.float32))
    yield onnx.helper.make_node("Identity", [node.input[0]], [node.output[0]])
    for name, value in zip(node.output[1:], values, strict=False):
        yield onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(value))


def _product(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The activations, which are no integers any more, times the integers less their zero point."""
    own = f"{node.output[0]}.weight"
    yield onnx.helper.make_node("Cast", [node.input[1]], [f"{own}.fp32"], to=_FLOAT)
    right = f"{own}.fp32"
    if len(node.input) > 3 and node.input[3]:
        yield onnx.helper.make_node("Cast", [node.input[3]], [f"{own}.zero"], to=_FLOAT)
        yield onnx.helper.make_node("Sub", [right, f"{own}.zero"], [f"{own}.shifted"])
        right = f"{own}.shifted"
    yield onnx.helper.make_node("MatMul", [node.input[0], right], list(node.output))


def _widen(model: onnx.ModelProto) -> None:
    """Every fp16 and bf16 value becomes fp32; initializers keep their bytes and get a Cast."""
    graph = model.graph
    narrow = [tensor.name for tensor in graph.initializer if tensor.data_type in NARROW]
    wide = {name: widened(name) for name in narrow}
    _widen_graph(graph, wide)
    for function in model.functions:
        for node in function.node:
            _widen_node(node, {})
    casts = [onnx.helper.make_node("Cast", [name], [wide[name]], to=_FLOAT) for name in narrow]
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*casts, *rest])


def widened(name: str) -> str:
    """What an initializer of fp16 or bf16 is called behind its Cast."""
    return f"{name}.fp32"


def _widen_graph(graph: onnx.GraphProto, wide: Mapping[str, str]) -> None:
    """``wide``: initializers of outer graphs that were narrow -> their fp32 values."""
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in NARROW:
            value.type.tensor_type.elem_type = _FLOAT
    del graph.value_info[:]
    for node in graph.node:
        _widen_node(node, wide)


def _widen_node(node: onnx.NodeProto, wide: Mapping[str, str]) -> None:
    for place, name in enumerate(node.input):
        node.input[place] = wide.get(name, name)
    for attribute in node.attribute:
        if attribute.name in _TYPES and attribute.i in NARROW:
            attribute.i = _FLOAT
        if attribute.HasField("t") and attribute.t.data_type in NARROW:
            attribute.t.CopyFrom(_wide(attribute.t))
        if attribute.HasField("g"):
            _widen_inner(attribute.g, wide)
        for inner in attribute.graphs:
            _widen_inner(inner, wide)


def _widen_inner(graph: onnx.GraphProto, wide: Mapping[str, str]) -> None:
    """A subgraph's own initializers lie in the graph's file as a rule: they are small."""
    for tensor in graph.initializer:
        if tensor.data_type in NARROW:
            tensor.CopyFrom(_wide(tensor))
    _widen_graph(graph, wide)


def _wide(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
