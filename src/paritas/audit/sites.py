"""Where a graph attends: one attention operator a layer, and the way back from it to the projections."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from paritas.audit.view import PASSES, View, attributes, operand

NORMS = frozenset(
    {
        "SimplifiedLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "RMSNormalization",
        "LayerNormalization",
        "SkipLayerNormalization",
    }
)
PROJECTIONS = frozenset({"MatMul", "Gemm", "FusedMatMul", "MatMulNBits", "FusedGemm"})
_FUSED = {"GroupQueryAttention": 3, "MultiHeadAttention": 6, "Attention": 4}  # operator -> its input of past keys
ATTENDS = frozenset(_FUSED)
_COS = {"GroupQueryAttention": 7}


@dataclass(frozen=True)
class Trail:
    """The way from an operator's input back to the projection.

    Attributes:
        weight: the projection's initializer; None if the way was lost.
        steps: ``rotary``, ``norm``, ``bias`` in the order in which values pass them.
        scale: product of the constants that values are multiplied by.
        rotary: the RotaryEmbedding node, if one was passed.
        outputs: which output of a Split the values come from, or None.
    """

    weight: str | None
    steps: tuple[str, ...]
    scale: float
    rotary: onnx.NodeProto | None
    outputs: int | None


@dataclass(frozen=True)
class Site:
    """One attention operator.

    Attributes:
        layer: by the cache it takes, else by its place in the graph.
        node: the operator.
        values: its attributes.
        q, k, v: the ways back; k and v are None where q, k and v come packed.
    """

    layer: int
    node: onnx.NodeProto
    values: dict[str, Any]
    q: Trail
    k: Trail | None
    v: Trail | None

    @property
    def operator(self) -> str:
        """Its name."""
        return self.node.op_type

    @property
    def norms(self) -> tuple[str, ...]:
        """Weights of the norms of queries and keys that the operator itself takes."""
        return tuple(filter(None, self.node.input[14:16])) if self.operator == "GroupQueryAttention" else ()

    def tables(self) -> Iterator[tuple[str, str]]:
        """Names of the cosines and sines that its queries or keys are rotated with."""
        place = _COS.get(self.operator)
        if place is not None and self.values.get("do_rotary") and len(self.node.input) > place + 1:
            yield self.node.input[place], self.node.input[place + 1]
        for trail in (self.q, self.k):
            if trail and trail.rotary is not None:
                first = 2 if trail.rotary.domain == "com.microsoft" else 1
                yield trail.rotary.input[first], trail.rotary.input[first + 1]

    def positions(self) -> Iterator[str]:
        """Names of the position ids that rotations take."""
        if self.operator == "GroupQueryAttention" and self.values.get("do_rotary"):
            yield from filter(None, self.node.input[9:10])
        for trail in (self.q, self.k):
            if trail and trail.rotary is not None:
                place = 1 if trail.rotary.domain == "com.microsoft" else 3
                if len(trail.rotary.input) > place and trail.rotary.input[place]:
                    yield trail.rotary.input[place]


def sites(view: View) -> Sequence[Site]:
    """Every fused attention operator of the main graph."""
    nodes = [node for node in view.nodes if node.op_type in _FUSED and len(node.input) > 1 and not _projects(node)]
    return [_site(view, node, order) for order, node in enumerate(nodes)]


def _projects(node: onnx.NodeProto) -> bool:
    """Whether it is the older operator of the same name, which takes the projections' weights."""
    return node.op_type == "Attention" and node.domain == "com.microsoft"


def _site(view: View, node: onnx.NodeProto, order: int) -> Site:
    layer = _layer(view, node)
    packed = len(node.input) < 3 or not node.input[1] or not node.input[2]
    return Site(
        layer=order if layer is None else layer,
        node=node,
        values=attributes(node),
        q=_trail(view, node.input[0]),
        k=None if packed else _trail(view, node.input[1]),
        v=None if packed else _trail(view, node.input[2]),
    )


def _layer(view: View, node: onnx.NodeProto) -> int | None:
    """By the graph input that the past keys come from."""
    inputs = {value.name for value in view.proto.graph.input}
    for name in (*node.input[_FUSED[node.op_type] :], node.input[1]):
        seen = 0
        while name in view.maker and seen < 6:
            maker, seen = view.maker[name], seen + 1
            if maker.op_type not in (*PASSES, "Concat", "Slice", "Expand"):
                break
            name = maker.input[0]
        if name in inputs and (number := re.search(r"\d+", name)):
            return int(number[0])
    return None


def _is_cache(view: View, name: str) -> bool:
    """Whether a value is an input of the graph, but for its shape and type."""
    while (node := view.maker.get(name)) is not None and node.op_type in PASSES:
        name = node.input[0]
    return any(value.name == name for value in view.proto.graph.input)


def _trail(view: View, name: str) -> Trail:
    steps: list[str] = []
    scale, rotary, outputs = 1.0, None, None
    for _ in range(40):
        node = view.maker.get(name)
        if node is None:
            break
        if node.op_type in PROJECTIONS:
            return Trail(_weight(view, node), tuple(reversed(steps)), scale, rotary, outputs)
        step = _shared(steps, name, node) if node.op_type in _FUSED else _step(view, node)
        if step is None:
            break
        last = name
        word, name, factor = step
        scale *= factor
        if word:
            steps.append(word)
        if word == "rotary":
            rotary = node
        if node.op_type == "Split":
            outputs = list(node.output).index(last)
    return Trail(None, tuple(reversed(steps)), scale, rotary, outputs)


def _shared(steps: list[str], name: str, node: onnx.NodeProto) -> tuple[str, str, float] | None:
    """Keys and values that another layer's operator has cached are what came to it, and what it did to them."""
    if name not in node.output[1:3]:
        return None
    keys = name == node.output[1]
    if keys and attributes(node).get("do_rotary"):
        steps.append("rotary")
    if keys and node.op_type == "GroupQueryAttention" and any(node.input[14:16]):
        steps.append("norm")
    return "", node.input[1 if keys else 2], 1.0


def shares_keys(view: View, site: Site) -> str | None:
    """The operator of another layer that has cached the keys of this one; None if it is one by itself."""
    maker = view.maker.get(site.node.input[1])
    return maker.op_type if maker is not None and maker.op_type in _FUSED else None


def _weight(view: View, node: onnx.NodeProto) -> str | None:
    stored = view.initializer(node.input[1])
    return stored.name if stored else None


def _step(view: View, node: onnx.NodeProto) -> tuple[str, str, float] | None:
    """What a node does to the values that pass it: a word, the value before it, a factor."""
    first = node.input[0] if node.input else ""
    if node.op_type in (*PASSES, "Split", "Slice", "Expand"):
        return "", first, 1.0
    if node.op_type in ("TensorScatter", "Concat") and len(node.input) > 1:  # what is new goes into a cache
        return ("", node.input[1], 1.0) if _is_cache(view, first) else None
    if node.op_type == "RotaryEmbedding":
        return "rotary", first, 1.0
    if node.op_type in NORMS:
        return "norm", first, 1.0
    if node.op_type in ("Mul", "Div") and (given := operand(view, node)):
        return "", given[0], given[1] if node.op_type == "Mul" else 1 / given[1]
    if node.op_type == "Add":
        for one, other in ((0, 1), (1, 0)):
            if view.initializer(node.input[other]) is not None:
                return "bias", node.input[one], 1.0
    return None
