"""Attention that is written out in products and a softmax: what becomes of its scores, and how to change it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate_part
from paritas.audit.masks import feeds
from paritas.audit.view import PASSES, View, operand
from paritas.audit.written import Written, written
from paritas.diagnose.case import Case
from paritas.diagnose.edit import Edit, RefusedError

Visible = NDArray[np.bool_]
_SEEN = -1e3
_FACTORS = ("Mul", "Div")


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
    chain = tuple(_between(view, found.product, found.softmax.input[0]))
    inside, cap = _chain(view, chain)
    outside = _factor(view, found.q.value, found.q_end) * _factor(view, found.k.value, found.k_end)
    return WrittenPlace(found.layer, found, chain, outside, inside * outside, cap)


def _between(view: View, start: str, end: str) -> list[onnx.NodeProto]:
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
    return math.prod(_constant(view, node) or 1.0 for node in _between(view, start, end))


def _constant(view: View, node: onnx.NodeProto) -> float | None:
    given = operand(view, node) if node.op_type in _FACTORS else None
    return None if given is None else given[1] if node.op_type == "Mul" else 1 / given[1]


def _chain(view: View, chain: Sequence[onnx.NodeProto]) -> tuple[float, float | None]:
    """Factor of the scores, and their cap: what is multiplied back after a tanh."""
    factor, cap, capping = 1.0, None, False
    for node in chain:
        value = _constant(view, node)
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
