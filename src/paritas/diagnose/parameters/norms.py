"""Norms: their epsilon, and whether they take the mean away."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from paritas.audit.sites import NORMS
from paritas.audit.view import attributes, operand
from paritas.diagnose.asked_norms import EPSILONS, of_other_kind, subtracts_mean
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.slots import Slot

_CENTRED = {
    "LayerNormalization": "SimplifiedLayerNormalization",
    "SkipLayerNormalization": "SkipSimplifiedLayerNormalization",
}
_PLAIN = {
    "SimplifiedLayerNormalization": ("LayerNormalization", ""),
    "RMSNormalization": ("LayerNormalization", ""),
    "SkipSimplifiedLayerNormalization": ("SkipLayerNormalization", "com.microsoft"),
}
_FARTHEST = 8


def norm_differences(case: Case) -> Iterator[Difference]:
    """Epsilon and kind of every norm that has a weight."""
    for slot in case.slots:
        path, _, name = slot.tensor.rpartition(".")
        module = case.live.module(path)
        if module is None or name != "weight" or "norm" not in type(module).__name__.lower():
            continue
        yield from _epsilon(case, slot, path, module)
        yield from _kind(case, slot, path, module)


def _epsilon(case: Case, slot: Slot, path: str, module: Any) -> Iterator[Difference]:
    name = next((each for each in EPSILONS if isinstance(getattr(module, each, None), float)), None)
    got = _fused_epsilon(slot) or _written_epsilon(case, slot)
    if name is None or got is None:
        return
    value, output, place = got
    wanted = float(getattr(module, name))
    if math.isclose(value, wanted, rel_tol=1e-5):
        return
    yield Difference(
        parameter="norm-epsilon",
        where=path,
        layer=slot.layer,
        package=value,
        reference=wanted,
        fact=f"epsilon is {value:.6g}, the reference's {wanted:.6g}",
        breaks=lambda: case.live.set(module, name, value),
        repairs=(lambda edit: edit.set_attribute(output, "epsilon", wanted))
        if place is None
        else (lambda edit: edit.set_operand(output, place, np.array(wanted, np.float32), "epsilon")),
    )


def _fused_epsilon(slot: Slot) -> tuple[float, str, int | None] | None:
    node = slot.use.node
    if node.op_type not in NORMS:
        return None
    return float(attributes(node).get("epsilon", 1e-5)), node.output[0], None


def _written_epsilon(case: Case, slot: Slot) -> tuple[float, str, int | None] | None:
    """Of ``x / Sqrt(mean + epsilon) * weight``: the constant that is added before the root."""
    node, view = slot.use.node, case.view
    if node.op_type != "Mul":
        return None
    for seen, maker in enumerate(view.behind(node.input[1 - slot.use.place])):
        if seen > _FARTHEST:
            return None
        if maker.op_type == "Add" and (given := operand(view, maker)):
            roots = {taker.op_type for taker, _ in view.takers[maker.output[0]]}
            if roots & {"Sqrt", "Pow", "Rsqrt"}:
                return given[1], maker.output[0], list(maker.input).index(given[0]) ^ 1
    return None


def _kind(case: Case, slot: Slot, path: str, module: Any) -> Iterator[Difference]:
    node = slot.use.node
    if node.op_type not in NORMS:
        return
    got, wanted = node.op_type in _CENTRED, subtracts_mean(module)
    if got == wanted:
        return
    words = ("RMSNorm", "LayerNorm")
    operator, domain = _PLAIN[node.op_type] if wanted else (_CENTRED[node.op_type], node.domain)
    output = node.output[0]
    yield Difference(
        parameter="norm-kind",
        where=path,
        layer=slot.layer,
        package=words[got],
        reference=words[wanted],
        fact=f"is a {words[got]}, the reference's a {words[wanted]}",
        breaks=lambda: case.live.replacing(path, of_other_kind(module, centred=got)),
        repairs=lambda edit: edit.set_operator(output, operator, domain),
    )
