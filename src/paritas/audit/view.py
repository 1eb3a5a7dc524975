"""A graph to walk in: who makes a value, who takes it, which constant it is."""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.runtime.proto import load
from paritas.runtime.stored import Stored, tensors

_SMALL = 1 << 12  # elements of a constant that is looked into
PASSES = frozenset({"Cast", "Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Dropout"})


class View:
    """The main graph of a model.

    Attributes:
        proto: the model, or what is given in place of the file's; external data is not opened.
        nodes: in the order in which they are stored, which is an order in which they can run.
        tensors: every initializer and Constant by name.
        maker: value -> the node that makes it.
        takers: value -> (node, which input) of each node that takes it.
        order: id of a node -> its place among them.
        memory: what subgraphs gave, which many layers share.
    """

    def __init__(self, model: Path, folder: Path, proto: onnx.ModelProto | None = None) -> None:
        self.proto = load(model) if proto is None else proto
        self.nodes: Sequence[onnx.NodeProto] = list(self.proto.graph.node)
        self.tensors: Mapping[str, Stored] = tensors(self.proto, folder)
        self.maker: dict[str, onnx.NodeProto] = {}
        self.takers: dict[str, list[tuple[onnx.NodeProto, int]]] = defaultdict(list)
        for node in self.nodes:
            for name in node.output:
                self.maker[name] = node
            for place, name in enumerate(node.input):
                self.takers[name].append((node, place))
        self.order = {id(node): place for place, node in enumerate(self.nodes)}
        self.memory: dict[tuple[object, ...], Any] = {}

    def constant(self, name: str) -> NDArray[Any] | None:
        """The value of a small constant, also through nodes that only reshape or cast it."""
        if name in self.tensors:
            stored = self.tensors[name]
            return stored.array() if stored.size <= _SMALL and stored.dtype != "string" else None
        node = self.maker.get(name)
        if node is not None and node.op_type in PASSES:
            return self.constant(node.input[0])
        return None

    def number(self, name: str) -> float | None:
        """The value of a constant of one element."""
        value = self.constant(name)
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None

    def initializer(self, name: str) -> Stored | None:
        """The stored tensor behind a value, through casts, transpositions and dequantisation."""
        while name not in self.tensors:
            node = self.maker.get(name)
            if node is None or node.op_type not in (*PASSES, "DequantizeLinear"):
                return None
            name = node.input[0]
        return self.tensors[name]

    def behind(self, name: str) -> Iterator[onnx.NodeProto]:
        """Every node that a value depends on, nearest first."""
        seen: set[int] = set()
        waiting = deque([name])
        while waiting:
            node = self.maker.get(waiting.popleft())
            if node is not None and id(node) not in seen:
                seen.add(id(node))
                yield node
                waiting.extend(node.input)

    def by_value(self, name: str) -> Iterator[onnx.NodeProto]:
        """Every node on whose values a value depends; what only gives a shape is left out."""
        seen: set[int] = set()
        waiting = deque([name])
        while waiting:
            node = self.maker.get(waiting.popleft())
            if node is not None and id(node) not in seen and node.op_type not in ("Shape", "Size"):
                seen.add(id(node))
                yield node
                waiting.extend(node.input)

    def roots(self, name: str) -> set[str]:
        """Graph inputs and initializers that a value depends on."""
        if name not in self.maker:
            return {name}
        return {each for node in self.behind(name) for each in node.input if each and each not in self.maker}


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Attribute name -> value; texts decoded."""
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {key: value.decode() if isinstance(value, bytes) else value for key, value in values.items()}


def operand(view: View, node: onnx.NodeProto) -> tuple[str, float] | None:
    """Of a node with two inputs: the value that varies, and the constant number it is combined with."""
    if len(node.input) != 2:
        return None
    for one, other in ((0, 1), (1, 0)):
        if (number := view.number(node.input[other])) is not None:
            return node.input[one], number
    return None


def small(value: NDArray[Any]) -> bool:
    """Whether a constant is a number or a shape rather than a table."""
    return value.size <= 1 or not np.issubdtype(value.dtype, np.floating)
