"""Attention that is written out in products and a softmax: what becomes of its scores, and how to change it."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate_part
from paritas.audit.masks import feeds
from paritas.audit.view import PASSES, View
from paritas.audit.written import Written, written
from paritas.diagnose.case import Case
from paritas.diagnose.edit import Edit, RefusedError

Visible = NDArray[np.bool_]
_SEEN = -1e3
_FACTORS = ("Mul", "Div")
_FEW = 4


@dataclass(frozen=True)
class WrittenPlace:
    """A written-out attention.

    Attributes:
        layer: its number.
        found: where its queries and keys meet, and its softmax.
        chain: nodes from the product to the softmax.
        outside: factor of queries and keys before they meet.
        scale: of the scores, all factors included.
        softcap: of the scores.
    """

    layer: int
    found: Written
    chain: tuple[onnx.NodeProto, ...]
    outside: float
    scale: float
    softcap: float | None

    def set_scale(self, edit: Edit, value: float) -> None:
        """Multiply the product, so that all factors together are ``value``."""
        product = self.found.product or ""
        number = edit.add_initializer("scale", np.array(value / self.scale, np.float32))
        scaled = edit.insert_node("Mul", [product, number])
        edit.redirect(product, scaled, f"Mul by {value / self.scale:.9g} after the scores {product}: inserted")

    def set_softcap(self, edit: Edit, cap: float | None) -> None:
        """Cap the scaled scores, before any are hidden.

        Raises:
            RefusedError: they are capped already.
        """
        if self.softcap is not None or cap is None:
            raise RefusedError("the scores are capped already")
        last = self.found.product or ""
        for node in self.chain:
            if node.op_type not in (*_FACTORS, *PASSES) or node.input[0] != last:
                break
            last = node.output[0]
        number = edit.add_initializer("softcap", np.array(cap, np.float32))
        inner = edit.insert_node("Tanh", [edit.insert_node("Div", [last, number])])
        capped = edit.insert_node("Mul", [inner, number])
        edit.redirect(last, capped, f"cap of the scores {last} at {cap:g}: inserted")

    def mask(self) -> tuple[str, str] | None:
        """The node's output that puts the mask in, and the mask; None if that is not a sum."""
        for node in self.chain:
            if node.op_type == "Add":
                own = {output for each in self.chain for output in each.output} | {self.found.product}
                others = [name for name in node.input if name not in own]
                if len(others) == 1:
                    return node.output[0], others[0]
        return None


def written_places(case: Case) -> Sequence[WrittenPlace]:
    """Every written-out attention of the graph."""
    made = {record.name: record for record in case.identity.initializers if record.tensors}
    places = (_place(case.view, found) for found in written(case.view, made))
    return [place for place in places if place is not None]


def _place(view: View, found: Written) -> WrittenPlace | None:
    if found.product is None or found.softmax is None:
        return None
    chain = tuple(nodes_between(view, found.product, found.softmax.input[0]))
    inside, cap = _chain(view, found.product, chain)
    outside = _factor(view, found.q.value, found.q_end) * _factor(view, found.k.value, found.k_end)
    return WrittenPlace(found.layer, found, chain, outside, inside * outside, cap)


def nodes_between(view: View, start: str, end: str) -> list[onnx.NodeProto]:
    """Nodes behind ``end`` that hang on ``start``, in order."""
    behind = {id(node) for node in view.behind(end)}
    mine, found = {start}, list[onnx.NodeProto]()
    for node in view.nodes:
        if id(node) in behind and node.op_type != "Shape" and not mine.isdisjoint(node.input):
            mine.update(node.output)
            found.append(node)
    return found


def _factor(view: View, start: str, end: str) -> float:
    """Product of the constants that a value is multiplied by on its way."""
    nodes = nodes_between(view, start, end)
    way = {start, *(output for node in nodes for output in node.output)}
    return math.prod(_constant(view, node, way) or 1.0 for node in nodes)


def _constant(view: View, node: onnx.NodeProto, way: Collection[str]) -> float | None:
    """What a node on the way multiplies by, where that is one number, also one that the graph makes of a shape."""
    if node.op_type not in _FACTORS:
        return None
    others = [name for name in node.input if name not in way]
    if len(others) != 1 or (node.op_type == "Div" and node.input[0] == others[0]):
        return None
    number = view.number(others[0])
    if number is None and others[0] in view.maker:
        number = _made(view, others[0])
    return number if number is None or node.op_type == "Mul" else 1 / number


def _made(view: View, name: str) -> float | None:
    key = ("number", name)
    if key not in view.memory:
        values = evaluate_part(view, [name], feeds(view, _FEW, 0), _FEW)
        view.memory[key] = float(values[0].reshape(-1)[0]) if values is not None and values[0].size == 1 else None
    return view.memory[key]


def _chain(view: View, product: str, chain: Sequence[onnx.NodeProto]) -> tuple[float, float | None]:
    """Factor of the scores, and their cap: what is multiplied back after a tanh."""
    factor, cap, capping = 1.0, None, False
    way = {product, *(output for node in chain for output in node.output)}
    for node in chain:
        value = _constant(view, node, way)
        if node.op_type == "Tanh":
            capping = True
        elif value is not None and capping:
            cap, capping = value, False
            factor *= value  # takes back the division before the tanh
        elif value is not None:
            factor *= value
    return factor, cap


def shown(case: Case, place: WrittenPlace, new: int, past: int, padded: int) -> Visible | None:
    """``[new, total]``, true where a query sees a key: scores of zero are put through to the softmax."""
    facts = case.live.facts[place.layer]
    scores = np.zeros((1, facts.heads, new, past + new), np.float32)
    inputs = {**feeds(case.view, new, past, padded), place.found.product or "": scores}
    softmax = place.found.softmax
    values = None if softmax is None else evaluate_part(case.view, [softmax.input[0]], inputs, new)
    if values is None or values[0].shape[-2:] != (new, past + new):
        return None
    return values[0].reshape(-1, new, past + new)[0] > _SEEN


def gives_zero(case: Case, place: WrittenPlace) -> bool:
    """Whether a query that sees nothing gets zeros: some exporters write that behind the softmax."""
    softmax = place.found.softmax
    if softmax is None:
        return False
    name, facts = softmax.output[0], case.live.facts[place.layer]
    while True:
        takers = case.view.takers.get(name, ())
        follow = [node for node, _ in takers if node.op_type == "Where" or node.op_type in PASSES]
        if not follow:
            break
        name = follow[0].output[0]
    scores = np.full((1, facts.heads, 1, _FEW + 1), -np.inf, np.float32)
    values = evaluate_part(case.view, [name], {softmax.input[0]: scores, **feeds(case.view, 1, _FEW)}, 1)
    return values is not None and not np.asarray(values[0]).any()
