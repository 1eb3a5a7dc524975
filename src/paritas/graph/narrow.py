"""A graph that computes in fp16 or bf16: its values become narrow, but for what the arithmetic needs in fp32.

Norms compute in fp32 from their input to their product with a weight that stays fp32: a folded ``1 + weight`` is never
rounded. Angles of RoPE that are computed in the graph stay fp32 up to their cosines. What experts give is summed in
fp32. A single number that the narrow type does not have (a multiplier of 0.22) multiplies in fp32, as Python's numbers
do in torch. Logits leave the graph as fp32. Everything else (weights, tables, caches) is rounded once.
"""

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.weights import Float

_TYPES = {Float.FP16: ir.DataType.FLOAT16, Float.BF16: ir.DataType.BFLOAT16}
_OF_TWO_TYPES = frozenset({"SimplifiedLayerNormalization", "RMSNormalization"})
"""Norms that take a narrow input beside a weight of fp32, and give fp32."""
_NORMS = _OF_TWO_TYPES | {"LayerNormalization"}
_ANGLES = frozenset({"Cos", "Sin"})
_FLOAT = ir.DataType.FLOAT


def narrow(graph: Graph, dtype: Float) -> None:
    """Change a finished graph of fp32 in place."""
    if dtype is Float.FP32:
        return
    _Narrowing(graph, _TYPES[dtype]).run()


class _Narrowing:
    def __init__(self, graph: Graph, kind: ir.DataType) -> None:
        self.graph, self.kind = graph, kind
        self.numpy = np.dtype(np.float16 if kind is ir.DataType.FLOAT16 else ml_dtypes.bfloat16)
        self.given_wide: set[str] = set()
        self.wide = {id(node) for node in (*_angles(graph.ir), *_sums(graph.ir))}

    def run(self) -> None:
        """Every initializer, node, input and output."""
        for name in [name for name, value in self.graph.ir.initializers.items() if value.dtype is _FLOAT]:
            self._initializer(name)
        for node in list(self.graph.ir):
            self._node(self.graph.ir, node)
        for value in self.graph.ir.inputs:
            self._retype(value)
        for index, value in enumerate(self.graph.ir.outputs):
            if value.name in self.given_wide:
                continue
            if value.name == "logits":
                self._widen_output(index, value)
            else:
                self._retype(value)

    def _initializer(self, name: str) -> None:
        """Narrow, unless only what computes in fp32 takes it; where both do, each has its own."""
        value = self.graph.ir.initializers[name]
        uses = [(use.node, use.idx) for use in value.uses()]
        narrow_uses = [(node, index) for node, index in uses if not self._takes_fp32(node, index)]
        if not narrow_uses:
            return
        if len(narrow_uses) < len(uses):
            self._copy(value, f"{name}.{self.kind.name.lower()}", narrow_uses)
        else:
            self._store(value)

    def _copy(self, value: ir.Value, name: str, uses: list[tuple[ir.Node, int]]) -> None:
        if value.name in self.graph.weights:
            raise TypeError(f"{value.name} is wanted in two types")
        own = ir.Value(name=name, shape=value.shape, type=value.type, const_value=value.const_value)
        self.graph.ir.register_initializer(own)
        for node, index in uses:
            node.replace_input_with(index, own)
        self._store(own)

    def _store(self, value: ir.Value) -> None:
        name = str(value.name)
        self._retype(value)
        if (weight := self.graph.weights.get(name)) is not None:
            self.graph.weights[name] = weight.stored_as(Float.FP16 if self.kind is ir.DataType.FLOAT16 else Float.BF16)
            value.const_value = ir.ExternalTensor("", None, None, self.kind, shape=ir.Shape(weight.shape), name=name)
        elif value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().astype(self.numpy), name=name)

    def _takes_fp32(self, node: ir.Node, index: int) -> bool:
        if id(node) in self.wide or (node.op_type in _NORMS and index > 0):
            return True
        return self._inexact(node.inputs[index])

    def _inexact(self, value: ir.Value | None) -> bool:
        """Whether it is a single number that the narrow type does not have."""
        if value is None or value.const_value is None or value.name in self.graph.weights or value.dtype is not _FLOAT:
            return False
        number = value.const_value.numpy()
        return number.size == 1 and bool((number.astype(self.numpy).astype(np.float32) != number).any())

    def _node(self, graph: ir.Graph, node: ir.Node) -> None:
        if id(node) in self.wide:
            if node.op_type in _ANGLES:
                self._cast_output(graph, node)
            return
        if node.op_type in _NORMS:
            if node.op_type not in _OF_TWO_TYPES:
                self._cast_input(graph, node, 0)
            self._cast_output(graph, node)
        elif exact := [index for index, value in enumerate(node.inputs) if self._inexact(value)]:
            for index in set(range(len(node.inputs))) - set(exact):
                self._cast_input(graph, node, index)
            self._cast_output(graph, node)
        elif node.op_type == "Cast" and node.attributes["to"].as_int() == _FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", self.kind)
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.GRAPH:
                self._body(attribute.as_graph())
                self._cast_output(graph, node)

    def _body(self, body: ir.Graph) -> None:
        """Of the loop over experts: the sum that it carries stays fp32."""
        for node in list(body):
            if node.op_type == "ScatterND":
                self._cast_input(body, node, 2)
            else:
                self._node(body, node)

    def _cast_input(self, graph: ir.Graph, node: ir.Node, index: int) -> None:
        wide = ir.node("Cast", [node.inputs[index]], {"to": int(_FLOAT)}, name=f"{node.name}.widened.{index}")
        wide.outputs[0].name = f"{node.name}.widened.{index}"  # a name that no graph within this one has
        node.replace_input_with(index, wide.outputs[0])
        graph.insert_before(node, wide)

    def _cast_output(self, graph: ir.Graph, node: ir.Node) -> None:
        value = node.outputs[0]
        value.type = ir.TensorType(_FLOAT)
        uses = [(use.node, use.idx) for use in value.uses()]
        if value.is_graph_output():  # it leaves as it is; what else takes it (the head a hidden state) takes it narrow
            self.given_wide.add(str(value.name))
            if not uses:
                return
        cast = ir.node("Cast", [value], {"to": int(self.kind)}, name=f"{node.name}.rounded")
        cast.outputs[0].name = f"{value.name}.{self.kind.name.lower()}"
        for user, index in uses:
            user.replace_input_with(index, cast.outputs[0])
        graph.insert_after(node, cast)

    def _widen_output(self, index: int, value: ir.Value) -> None:
        value.name = f"{value.name}.{self.kind.name.lower()}"
        cast = ir.node("Cast", [value], {"to": int(_FLOAT)}, name="logits.widened")
        cast.outputs[0].name, cast.outputs[0].shape = "logits", value.shape
        cast.outputs[0].type = ir.TensorType(_FLOAT)
        value.type = ir.TensorType(self.kind)
        self.graph.ir.append(cast)
        self.graph.ir.outputs[index] = cast.outputs[0]

    def _retype(self, value: ir.Value) -> None:
        if value.dtype is _FLOAT:
            value.type = ir.TensorType(self.kind)


def _angles(graph: ir.Graph) -> Iterator[ir.Node]:
    """Cosines and sines that are taken in the graph, and everything that they are computed from."""
    left = [node for node in graph if node.op_type in _ANGLES]
    seen: set[int] = set()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        left += [made for value in node.inputs if value is not None and (made := value.producer()) is not None]


def _sums(graph: ir.Graph) -> Iterator[ir.Node]:
    """What the loops over experts begin their sums with."""
    for node in graph:
        if node.op_type == "Loop":
            begun = [value.producer() for value in node.inputs[2:] if value is not None]
            yield from (made for made in begun if made is not None)
