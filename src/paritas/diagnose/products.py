"""Products of integers whose scale comes after them, written as products with a dequantised weight.

In fp32 arithmetic the two are the same. A product that is scaled afterwards is no value that the reference has, and
everything that looks for the output of a projection would find it too early.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from paritas.runtime.package import Package


def dequantised_first(package: Package) -> Package:
    """The package with MatMul of Cast integers and Mul by their scale as DequantizeLinear and MatMul.

    Args:
        package: with its graph in fp32 arithmetic (:func:`paritas.runtime.exact.exact`).
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(package.proto)
    walk = _Walk(copy)
    found = {id(product.scaled): product for node in copy.graph.node if (product := walk.product(node)) is not None}
    if not found:
        return package
    gone = {id(node) for product in found.values() for node in product.gone}
    written: list[onnx.NodeProto] = []
    for node in copy.graph.node:
        if (product := found.get(id(node))) is not None:
            written += product.nodes()
        elif id(node) not in gone:
            written.append(node)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in written]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return replace(package, rewritten=copy)


@dataclass(frozen=True)
class _Product:
    """One product.

    Attributes:
        values: what is multiplied.
        weight: integers, ``[inputs, outputs]``.
        scales: of the weight.
        zeros: its zero points; empty if there are none.
        scaled: the node that multiplies by the scale.
        gone: the nodes between.
        by_column: whether there is a scale for each output.
    """

    values: str
    weight: str
    scales: str
    zeros: str
    scaled: onnx.NodeProto
    gone: tuple[onnx.NodeProto, ...]
    by_column: bool

    def nodes(self) -> list[onnx.NodeProto]:
        """Both nodes that stand in its place."""
        output = self.scaled.output[0]
        weight = f"{output}.dequantised"
        given = [self.weight, self.scales, *([self.zeros] if self.zeros else [])]
        dequantise = onnx.helper.make_node("DequantizeLinear", given, [weight])
        if self.by_column:
            dequantise.attribute.append(onnx.helper.make_attribute("axis", 1))
        return [
            dequantise,
            onnx.helper.make_node("MatMul", [self.values, weight], [output], output),
        ]


class _Walk:
    """A graph to walk in."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._stored = {tensor.name: tensor for tensor in model.graph.initializer}
        self._maker = {name: node for node in model.graph.node for name in node.output}
        self._takers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in model.graph.node:
            for name in node.input:
                self._takers[name].append(node)

    def product(self, node: onnx.NodeProto) -> _Product | None:
        """The product that a MatMul is the middle of."""
        weight = self._weight(node.input[1]) if node.op_type == "MatMul" else None
        if weight is None:
            return None
        way = [node]
        while (taker := self._only_taker(way[-1].output[0])) is not None and taker.op_type == "Cast":
            way.append(taker)
        if taker is None or taker.op_type != "Mul":
            return None
        scales = next((self._scales(name) for name in taker.input if name != way[-1].output[0]), None)
        if scales is None:
            return None
        by_column = int(np.prod(self._stored[scales].dims, dtype=np.int64)) > 1
        return _Product(node.input[0], weight[0], scales, weight[1], taker, tuple(way), by_column)

    def _only_taker(self, name: str) -> onnx.NodeProto | None:
        found = self._takers[name]
        return found[0] if len(found) == 1 else None

    def _weight(self, name: str) -> tuple[str, str] | None:
        """Integers and zero points."""
        node = self._maker.get(name)
        if node is not None and node.op_type == "Sub":
            both = [self._widened(each) for each in node.input]
            return None if both[0] is None or both[1] is None else (both[0], both[1])
        own = self._widened(name)
        return None if own is None else (own, "")

    def _widened(self, name: str) -> str | None:
        """The stored integers behind a Cast."""
        node = self._maker.get(name)
        integers = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
        if node is None or node.op_type != "Cast" or node.input[0] not in self._stored:
            return None
        return node.input[0] if self._stored[node.input[0]].data_type in integers else None

    def _scales(self, name: str) -> str | None:
        """The stored scales that a value is, but for factors of 1."""
        if name in self._stored:
            return name
        node = self._maker.get(name)
        if node is None or node.op_type != "Mul":
            return None
        left = [each for each in node.input if not self._is_one(each)]
        return self._scales(left[0]) if len(left) == 1 else None

    def _is_one(self, name: str) -> bool:
        node = self._maker.get(name)
        values = [a.t for a in node.attribute if a.name == "value"] if node and node.op_type == "Constant" else []
        return bool(values) and bool((numpy_helper.to_array(values[0]) == 1).all())
