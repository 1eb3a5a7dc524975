"""Packages that are right: every tiny checkpoint, and graphs that say the same in another way."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

import tiny
from mutants.blind import D, interleaved
from mutants.graphs import after, attributes, before, both, found, giving, in_turn, of, using, values
from mutants.mutant import Change, Control
from rounding import blocks, half

LINEAR = r"(proj|fc\d|dense\w*)\.weight$"


def other_names(model: onnx.ModelProto) -> None:
    """Every value and initializer, but inputs and outputs, has a number for a name; nodes have none."""
    kept = {each.name for each in (*model.graph.input, *model.graph.output)} | {""}
    numbers: dict[str, str] = {}

    def renamed(name: str) -> str:
        return name if name in kept else numbers.setdefault(name, f"v{len(numbers)}")

    for node in model.graph.node:
        node.name = ""
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = renamed(name)
    for tensor in model.graph.initializer:
        tensor.name = renamed(tensor.name)
    del model.graph.value_info[:]


def constants_as_nodes(model: onnx.ModelProto) -> None:
    """Small initializers as Constant nodes; the default of an input stays one."""
    inputs = {value.name for value in model.graph.input}
    small = [each for each in model.graph.initializer if np.prod(each.dims, dtype=int) <= 8 and each.name not in inputs]
    for tensor in small:
        model.graph.initializer.remove(tensor)
        node = onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        model.graph.node.insert(0, node)


def gemm_for_matmul(model: onnx.ModelProto) -> None:
    """Each linear layer as rows, Gemm of the weight as the checkpoint has it, and the shape again."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    minus = numpy_helper.from_array(np.array([-1], np.int64), "minus.one")
    model.graph.initializer.append(minus)
    for node in found(model, both(of("MatMul"), using(LINEAR))):
        x, weight = node.input
        array = numpy_helper.to_array(tensors[weight])
        if f"{weight}.T" not in {tensor.name for tensor in model.graph.initializer}:
            model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array.T), f"{weight}.T"))
            model.graph.initializer.append(numpy_helper.from_array(np.array([-1, len(array)]), f"{weight}.rows"))
            model.graph.initializer.append(numpy_helper.from_array(np.array([array.shape[1]]), f"{weight}.width"))
            model.graph.initializer.remove(tensors[weight])
        y = node.output[0]
        make = onnx.helper.make_node
        steps = [
            make("Reshape", [x, f"{weight}.rows"], [f"{y}.rows"]),
            make("Gemm", [f"{y}.rows", f"{weight}.T"], [f"{y}.product"], transB=1),
            make("Shape", [x], [f"{y}.shape"], start=0, end=2),
            make("Concat", [f"{y}.shape", f"{weight}.width"], [f"{y}.whole"], axis=0),
            make("Reshape", [f"{y}.product", f"{y}.whole"], [y]),
        ]
        at = list(model.graph.node).index(node)
        model.graph.node.remove(node)
        for step in reversed(steps):
            model.graph.node.insert(at, step)


def weights_turned_in_the_graph(model: onnx.ModelProto) -> None:
    """Each linear weight as the checkpoint has it, with a Transpose before the MatMul."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in found(model, both(of("MatMul"), using(LINEAR))):
        tensor = tensors[node.input[1]]
        turned = np.ascontiguousarray(numpy_helper.to_array(tensor).T)
        tensor.CopyFrom(numpy_helper.from_array(turned, tensor.name))
    before(both(of("MatMul"), using(LINEAR)), 1, "Transpose", perm=[1, 0])(model)


def an_initializer_that_nobody_takes(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 5), np.float32), "left.over"))


def scale_folded(model: onnx.ModelProto) -> None:
    """Half of the attention's scale lies in q_proj."""
    values(r"self_attn\.q_proj\.weight$", lambda weight: weight * 0.5)(model)
    attributes(of("GroupQueryAttention", "Attention"), scale=lambda scale: 2 * scale)(model)


def gate_folded(model: onnx.ModelProto) -> None:
    """A factor of 2 went from down_proj to up_proj."""
    values(r"up_proj\.weight$", lambda weight: weight * 2)(model)
    values(r"down_proj\.weight$", lambda weight: weight / 2)(model)


def norm_folded(model: onnx.ModelProto) -> None:
    """The weight of each norm before the MLP lies in gate_proj and up_proj."""
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for layer in range(3):
        weight = tensors[f"model.layers.{layer}.post_attention_layernorm.weight"]
        columns = rf"layers\.{layer}\.mlp\.(gate|up)_proj\.weight$"
        values(columns, lambda matrix, weight=weight: matrix * weight[:, None])(model)
        values(rf"layers\.{layer}\.post_attention_layernorm\.weight$", np.ones_like)(model)


def neighbours_with_their_rows(model: onnx.ModelProto) -> None:
    """Rows of q and k are in the order in which neighbours are rotated."""
    values(r"self_attn\.[qk]_proj\.weight$", interleaved)(model)
    if any(node.op_type == "GroupQueryAttention" for node in model.graph.node):
        attributes(of("GroupQueryAttention"), rotary_interleaved=1)(model)
    else:
        attributes(of("RotaryEmbedding"), interleaved=1)(model)


def heads_reordered(model: onnx.ModelProto) -> None:
    """The three query heads of each group in another order, in q_proj and in o_proj."""
    rows = np.concatenate([np.arange(head * D, (head + 1) * D) for head in (2, 0, 1, 4, 5, 3)])
    values(r"self_attn\.q_proj\.weight$", lambda weight: weight[:, rows])(model)
    values(r"self_attn\.o_proj\.weight$", lambda weight: weight[rows])(model)


def neurons_reordered(model: onnx.ModelProto) -> None:
    """The MLP's neurons back to front."""
    values(r"(gate|up)_proj\.weight$", lambda weight: weight[:, ::-1])(model)
    values(r"down_proj\.weight$", lambda weight: weight[::-1])(model)


def experts_reordered(model: onnx.ModelProto) -> None:
    """The experts back to front, and the router's columns with them."""
    values(r"mlp\.experts\.\w+\.(weight|bias)$", lambda stack: stack[::-1])(model)
    values(r"mlp\.gate\.(weight|bias)$", lambda columns: columns[..., ::-1])(model)


def norm_doubled(model: onnx.ModelProto) -> None:
    """What each norm before attention gives is doubled, and q, k and v take half of it."""
    after(using(r"input_layernorm\.weight$"), "Mul", np.float32(2))(model)
    values(r"self_attn\.[qkv]_proj\.weight$", lambda weight: weight / 2)(model)


def cast_and_back(model: onnx.ModelProto) -> None:
    """Through fp64 behind each o_proj."""
    last = both(of("MatMul"), using(r"o_proj\.weight"))
    names = [node.output[0] for node in found(model, last)]
    after(last, "Cast", to=onnx.TensorProto.FLOAT)(model)
    for name in names:
        after(giving(rf"^{re.escape(name)}\.before\.Cast$"), "Cast", to=onnx.TensorProto.DOUBLE)(model)


def nodes_in_another_order(model: onnx.ModelProto) -> None:
    """As late as their users allow: another order of the same graph."""
    nodes = list(model.graph.node)
    left, order = {name: sum(name in node.input for node in nodes) for node in nodes for name in node.output}, []
    while nodes:
        ready = next(n for n in reversed(nodes) if all(left[name] == 0 for name in n.output))
        nodes.remove(ready)
        order.append(ready)
        for name in {*ready.input} & left.keys():
            left[name] -= 1
    del model.graph.node[:]
    model.graph.node.extend(reversed(order))


def add_of_zero(model: onnx.ModelProto) -> None:
    """A bias of zeros behind each down_proj."""
    after(both(of("MatMul"), using(r"down_proj\.weight")), "Add", np.zeros(tiny.HIDDEN, np.float32))(model)


def silu_written_out(model: onnx.ModelProto) -> None:
    """SiLU as x / (1 + exp(-x))."""
    for node in found(model, of("Sigmoid")):
        x, y = node.input[0], node.output[0]
        one = f"{y}.one"
        model.graph.initializer.append(numpy_helper.from_array(np.array(1, np.float32), one))
        make, at = onnx.helper.make_node, list(model.graph.node).index(node)
        model.graph.node.remove(node)
        steps = [
            make("Neg", [x], [f"{y}.neg"]),
            make("Exp", [f"{y}.neg"], [f"{y}.exp"]),
            make("Add", [f"{y}.exp", one], [f"{y}.sum"]),
            make("Reciprocal", [f"{y}.sum"], [y]),
        ]
        for step in reversed(steps):
            model.graph.node.insert(at, step)


COUNTS_PADDING = before(of("CumSum"), 0, "Max", np.array(1, np.int64))
"""A row with padding is all at later positions, and only distances matter."""

IDENTITY = after(of("MatMul"), "Identity")
SAME: dict[str, tuple[Change | None, Sequence[tuple[str, str]]]] = {
    "written again": (lambda _: None, [("gemma3", "ort"), ("kept-llama", "optimum")]),
    "other names": (other_names, [("llama", "ort"), ("gemma3", "onnx"), ("kept-llama", "mobius")]),
    "constants as nodes": (constants_as_nodes, [("qwen3", "ort"), ("gemma2", "onnx")]),
    "Identity behind each MatMul": (IDENTITY, [("mistral", "ort"), ("granite", "onnx"), ("kept-llama", "builder")]),
    "Gemm for MatMul": (gemm_for_matmul, [("llama", "onnx"), ("qwen3", "ort"), ("nemotron", "onnx")]),
    "weights turned in the graph": (weights_turned_in_the_graph, [("llama-biased", "ort"), ("olmo2", "onnx")]),
    "an initializer that nobody takes": (an_initializer_that_nobody_takes, [("llama", "ort"), ("gemma3", "onnx")]),
    "scale half in q_proj": (scale_folded, [("llama", "ort"), ("mistral", "onnx")]),
    "a factor from down_proj to up_proj": (gate_folded, [("llama", "onnx")]),
    "norm weights in gate_proj and up_proj": (norm_folded, [("mistral", "ort")]),
    "neighbours rotated, with their rows": (neighbours_with_their_rows, [("llama", "ort"), ("mistral", "onnx")]),
    "query heads of a group in another order": (heads_reordered, [("llama", "onnx")]),
    "neurons in another order": (neurons_reordered, [("qwen2", "ort")]),
    "experts in another order, with their router": (experts_reordered, [("qwen3_moe", "onnx"), ("gpt_oss", "ort")]),
    "norms doubled, projections halved": (norm_doubled, [("qwen2", "onnx")]),
    "through fp64 and back": (cast_and_back, [("llama", "ort")]),
    "nodes in another order": (nodes_in_another_order, [("gemma3", "onnx"), ("llama", "ort")]),
    "a bias of zeros": (add_of_zero, [("llama", "onnx")]),
    "positions count the padding": (COUNTS_PADDING, [("granite", "onnx")]),
    "SiLU written out": (silu_written_out, [("mistral", "onnx")]),
    "names and constants": (in_turn(constants_as_nodes, other_names), [("qwen2", "onnx")]),
}
ROUNDED: dict[str, tuple[Change, Sequence[tuple[str, str]]]] = {
    "int4": (blocks(4, 32, symmetric=True), [("llama", "ort"), ("gemma3", "ort")]),
    "int4 with zero points": (blocks(4, 16, symmetric=False), [("llama-biased", "onnx")]),
    "int8": (blocks(8, 32, symmetric=True), [("olmo2", "ort")]),
    "fp16": (half(), [("llama", "ort"), ("llama-biased", "onnx")]),
}
EXPORTED_AS: dict[str, Sequence[str]] = {
    "int4": (
        "llama",
        "mistral-window",
        "gemma2",
        "gemma3",
        "qwen2",
        "qwen3-yarn",
        "granite",
        "phi3-longrope",
        "smollm3",
        "cohere2",
        "glm4",
        "lfm2",
        "mixtral",
        "qwen2_moe",
        "gpt_oss",
        "gptj",
        "falcon-new",
        "starcoder2",
        "exaone4",
        "hyperclovax",
    ),
    "int8": ("llama-biased", "olmo2", "stablelm", "qwen3_moe", "apertus"),
    "fp16": (
        "llama-yarn",
        "gemma",
        "gemma3-multimodal",
        "qwen2-window",
        "qwen3",
        "phi",
        "nemotron",
        "olmo-clip",
        "helium",
        "gpt_neox",
        "olmoe",
        "falcon",
        "seed_oss",
    ),
    "bf16": ("llama-linear", "granitemoe", "jais2"),
}
KEPT_RIGHT = (
    ("kept-llama", "builder"),
    ("kept-llama", "mobius"),
    ("kept-llama", "mobius-static"),
    ("kept-llama", "optimum"),
)


def _controls() -> tuple[Control, ...]:
    plain = Control("as exported", "", "")
    ours = [replace(plain, checkpoint=name, source=target) for name in tiny.every() for target in ("ort", "onnx")]
    peers = [Control("as released", checkpoint, exporter) for checkpoint, exporter in KEPT_RIGHT]
    same = [Control(what, *where, graph=graph) for what, (graph, places) in SAME.items() for where in places]
    rounded = [Control(what, *where, rounded=how) for what, (how, places) in ROUNDED.items() for where in places]
    narrow = [
        Control(f"exported as {dtype}", name, "ort", dtype=dtype)
        for dtype, names in EXPORTED_AS.items()
        for name in names
    ]
    return (*same, *peers, *rounded, *narrow, *ours)


CONTROLS = _controls()
