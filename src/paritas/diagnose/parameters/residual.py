"""What the output of an attention or an MLP is multiplied by before it is added to the stream."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
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
        if module is not None and got is not None and not math.isclose(got.value, wanted, rel_tol=_CLOSE):
            yield _difference(case, slot, module, got, float(wanted))


@dataclass(frozen=True)
class _Factor:
    """What a branch is multiplied by.

    Attributes:
        value: the number.
        output: the value after it.
        place: of its constant among the inputs of what makes that; None if there is none.
        biased: whether the projection's bias was added before.
    """

    value: float
    output: str
    place: int | None
    biased: bool


def _factor(case: Case, slot: Slot) -> _Factor | None:
    """None if something else follows."""
    view, name, biased = case.view, slot.use.node.output[0], False
    for _ in range(4):
        takers = [node for node, _ in view.takers.get(name, ())]
        if len(takers) != 1:
            return None
        node = takers[0]
        if node.op_type in ("Mul", "Div") and (given := operand(view, node)):
            factor = given[1] if node.op_type == "Mul" else 1 / given[1]
            return _Factor(factor, node.output[0], list(node.input).index(given[0]) ^ 1, biased)
        is_bias = node.op_type == "Add" and any(view.initializer(each) is not None for each in node.input)
        if node.op_type not in PASSES and not is_bias:
            is_sum = node.op_type in ("Add", "SkipSimplifiedLayerNormalization")
            return _Factor(1.0, name, None, True) if is_sum else None
        name, biased = node.output[0], biased or is_bias
    return None


def _multiplied(out: Any, bias: Any | None, factor: float) -> Any:
    """What a branch gives, times a number; without ``bias``, if that is added after the number."""
    return out * factor if bias is None else (out - bias) * factor + bias


def _difference(case: Case, slot: Slot, module: Any, got: _Factor, wanted: float) -> Difference:
    factor, output, place = got.value, got.output, got.place
    bias = None if got.biased else getattr(module, "bias", None)

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
        breaks=lambda: case.live.changing(module, lambda out: _multiplied(out, bias, factor / wanted)),
        repairs=repairs,
    )
