"""Norms: their epsilon, and whether they take the mean away."""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from paritas.audit.finding import layer_of
from paritas.audit.sites import NORMS
from paritas.audit.view import PASSES, View, attributes, operand
from paritas.diagnose.asked_norms import EPSILONS, epsilon_of, like, subtracts_mean
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.sums import reference

_CENTRED = {
    "LayerNormalization": "SimplifiedLayerNormalization",
    "SkipLayerNormalization": "SkipSimplifiedLayerNormalization",
}
_PLAIN = {
    "SimplifiedLayerNormalization": ("LayerNormalization", ""),
    "RMSNormalization": ("LayerNormalization", ""),
    "SkipSimplifiedLayerNormalization": ("SkipLayerNormalization", "com.microsoft"),
}
_FARTHEST = 24


@dataclass(frozen=True)
class Norm:
    """A norm of the graph and the reference's.

    Attributes:
        path: of the reference's module.
        layer: its number.
        node: that multiplies by the weight.
        place: of the weight among its inputs.
        width: of what is normalised.
        module: the reference's.
    """

    path: str
    layer: int | None
    node: onnx.NodeProto
    place: int
    width: int
    module: Any


def norm_differences(case: Case) -> Iterator[Difference]:
    """Epsilon and kind of every norm."""
    for norm in (*_with_weight(case), *_without_weight(case)):
        yield from _epsilon(case, norm)
        yield from _kind(case, norm)


def _is_norm(module: Any | None) -> bool:
    return module is not None and "norm" in type(module).__name__.lower()


def _with_weight(case: Case) -> Iterator[Norm]:
    for slot in case.slots:
        path, _, name = slot.tensor.rpartition(".")
        module = case.live.module(path)
        if name == "weight" and _is_norm(module):
            yield Norm(path, slot.layer, slot.use.node, slot.use.place, slot.stop - slot.start, module)


def _without_weight(case: Case) -> Iterator[Norm]:
    """Norms without a weight in the checkpoint: the graph has ones there, and who takes them tells which they are."""
    known = {slot.use.record.name for slot in case.slots}
    takers = {id(slot.use.node): slot.held.rpartition(".")[0] for slot in case.slots}
    for record in case.identity.initializers:
        if record.name in known or record.constant is None:
            continue
        for node, place in case.view.takers.get(record.name, ()):
            path = _given_to(case, node, takers)
            if path is not None and node.op_type in NORMS and _is_norm(case.live.module(path)):
                yield Norm(path, layer_of(path), node, place, record.shape[-1], case.live.module(path))


def _given_to(case: Case, node: onnx.NodeProto, takers: Mapping[int, str]) -> str | None:
    """The reference's module whose output alone a module takes that takes what a node gives."""
    found = [takers[id(taker)] for taker in _takers(case.view, node.output[0]) if id(taker) in takers]
    sums = (reference(case).sums.get(path, {}) for path in found)
    return next((name for each in sums if len(each) == 1 for name in each), None)


def _takers(view: View, value: str) -> Iterator[onnx.NodeProto]:
    """Nodes that take a value, also what only casts or reshapes it."""
    for node, _ in view.takers.get(value, ()):
        yield node
        if node.op_type in PASSES:
            yield from _takers(view, node.output[0])


def _epsilon(case: Case, norm: Norm) -> Iterator[Difference]:
    got, wanted = _fused_epsilon(norm) or _written_epsilon(case, norm), epsilon_of(norm.module, norm.width)
    if wanted is None or got is None:
        return
    value, output, place = got
    if math.isclose(value, wanted, rel_tol=1e-3):
        return
    yield Difference(
        parameter="norm-epsilon",
        where=norm.path,
        layer=norm.layer,
        package=value,
        reference=wanted,
        fact=f"epsilon is {value:.6g}, the reference's {wanted:.6g}",
        breaks=lambda: _with_epsilon(case, norm, value),
        repairs=(lambda edit: edit.set_attribute(output, "epsilon", wanted))
        if place is None
        else (lambda edit: edit.set_operand(output, place, np.array(wanted, np.float32), "epsilon")),
    )


def _with_epsilon(case: Case, norm: Norm, value: float) -> AbstractContextManager[None]:
    name = next((each for each in EPSILONS if isinstance(getattr(norm.module, each, None), float)), None)
    if name is not None:
        return case.live.set(norm.module, name, value)
    return case.live.replacing(norm.path, lambda module: like(module, norm.width, epsilon=value))


def _fused_epsilon(norm: Norm) -> tuple[float, str, int | None] | None:
    node = norm.node
    if node.op_type not in NORMS:
        return None
    return float(attributes(node).get("epsilon", 1e-5)), node.output[0], None


def _written_epsilon(case: Case, norm: Norm) -> tuple[float, str, int | None] | None:
    """Of ``x / Sqrt(mean + epsilon) * weight``: the constant that is added before the root."""
    node, view = norm.node, case.view
    if node.op_type != "Mul":
        return None
    for seen, maker in enumerate(view.behind(node.input[1 - norm.place])):
        if seen > _FARTHEST:
            return None
        if maker.op_type == "Add" and (given := operand(view, maker)):
            roots = {taker.op_type for taker, _ in view.takers[maker.output[0]]}
            if roots & {"Sqrt", "Pow", "Rsqrt"}:
                return given[1], maker.output[0], list(maker.input).index(given[0]) ^ 1
    return None


def _kind(case: Case, norm: Norm) -> Iterator[Difference]:
    node = norm.node
    if node.op_type not in NORMS:
        return
    got, wanted = node.op_type in _CENTRED, subtracts_mean(norm.module, norm.width)
    if got == wanted:
        return
    words = ("RMSNorm", "LayerNorm")
    operator, domain = _PLAIN[node.op_type] if wanted else (_CENTRED[node.op_type], node.domain)
    output = node.output[0]
    yield Difference(
        parameter="norm-kind",
        where=norm.path,
        layer=norm.layer,
        package=words[got],
        reference=words[wanted],
        fact=f"is a {words[got]}, the reference's a {words[wanted]}",
        breaks=lambda: case.live.replacing(norm.path, lambda module: like(module, norm.width, centred=got)),
        repairs=lambda edit: edit.set_operator(output, operator, domain),
    )
