"""What the output of an attention or an MLP is multiplied by before it is added to the stream."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from paritas.audit.view import PASSES, operand
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.slots import Slot

_LAST = (".o_proj.weight", ".out_proj.weight", ".dense.weight", ".down_proj.weight", ".fc2.weight")
_CLOSE = 1e-6


def residual_differences(case: Case) -> Iterator[Difference]:
    """The factor of every branch of the residual stream."""
    for slot in case.slots:
        if slot.layer is None or not slot.tensor.endswith(_LAST) or slot.layer >= len(case.live.layers):
            continue
        wanted = getattr(case.live.layers[slot.layer], "residual_multiplier", 1.0)
        module = case.live.module(slot.tensor.rpartition(".")[0])
        got = _factor(case, slot)
        if module is not None and got is not None and not math.isclose(got[0], wanted, rel_tol=_CLOSE):
            yield _difference(case, slot, module, got, float(wanted))


def _factor(case: Case, slot: Slot) -> tuple[float, str, int | None] | None:
    """The factor, the value after it, and the place of its constant; None if something else follows."""
    view, name = case.view, slot.use.node.output[0]
    for _ in range(4):
        takers = [node for node, _ in view.takers.get(name, ())]
        if len(takers) != 1:
            return None
        node = takers[0]
        if node.op_type in ("Mul", "Div") and (given := operand(view, node)):
            factor = given[1] if node.op_type == "Mul" else 1 / given[1]
            return factor, node.output[0], list(node.input).index(given[0]) ^ 1
        is_bias = node.op_type == "Add" and any(view.initializer(each) is not None for each in node.input)
        if node.op_type not in PASSES and not is_bias:
            return (1.0, name, None) if node.op_type in ("Add", "SkipSimplifiedLayerNormalization") else None
        name = node.output[0]
    return None


def _difference(case: Case, slot: Slot, module: Any, got: tuple[float, str, int | None], wanted: float) -> Difference:
    factor, output, place = got

    def repairs(edit: Edit) -> None:
        if place is not None:
            value = wanted if edit.node(output).op_type == "Mul" else 1 / wanted
            edit.set_operand(output, place, np.array(value, np.float32), "residual multiplier")
            return
        number = edit.once(
            f"residual {wanted}", lambda: edit.add_initializer("residual multiplier", np.array(wanted, np.float32))
        )
        scaled = edit.insert_node("Mul", [output, number])
        edit.redirect(output, scaled, f"Mul by {wanted:.9g} after {output}: inserted")

    return Difference(
        parameter="residual-multiplier",
        where=slot.tensor.rpartition(".")[0],
        layer=slot.layer,
        package=factor,
        reference=wanted,
        fact=f"what is added is multiplied by {factor:.7g}, in the reference by {wanted:.7g}",
        breaks=lambda: case.live.changing(module, lambda out: out * (factor / wanted)),
        repairs=repairs,
    )
