"""The norm of values, which has no weight: nothing in the files says that it is missing."""

from collections.abc import Iterator

import numpy as np

from paritas.audit.sites import ATTENDS, PROJECTIONS
from paritas.audit.view import PASSES, View
from paritas.diagnose.asked_norms import epsilon_of
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.slots import Slot
from paritas.diagnose.subgraphs import head_norm

_HANDS_ON = frozenset({*PASSES, "Expand"})
_ENDS = frozenset({*ATTENDS, "Concat", "MatMul"})


def value_norm_differences(case: Case) -> Iterator[Difference]:
    """Every layer whose values come to its attention, or its cache, as they were projected."""
    for layer, attention in case.live.attentions.items():
        facts, norm = case.live.facts.get(layer), getattr(attention, "v_norm", None)
        if norm is None or getattr(norm, "weight", None) is not None or facts is None or facts.source != layer:
            continue
        tensor = f"model.layers.{layer}.self_attn.v_proj.weight"
        slot = next((each for each in case.slots if each.tensor == tensor), None)
        epsilon = epsilon_of(norm, facts.head_dim)
        if slot is not None and epsilon is not None and _comes_as_it_is(case.view, slot):
            yield _difference(case, layer, slot, facts.head_dim, epsilon)


def _comes_as_it_is(view: View, slot: Slot) -> bool:
    if slot.use.node.op_type not in PROJECTIONS:
        return False
    waiting, met = [slot.use.node.output[0]], False
    while waiting:
        for node, _ in view.takers.get(waiting.pop(), ()):
            is_bias = node.op_type == "Add" and any(view.initializer(each) is not None for each in node.input)
            if node.op_type in _HANDS_ON or is_bias:
                waiting.append(node.output[0])
            elif node.op_type in _ENDS:
                met = True
            elif node.op_type != "Shape":
                return False
    return met


def _difference(case: Case, layer: int, slot: Slot, width: int, epsilon: float) -> Difference:
    path = f"model.layers.{layer}.self_attn.v_norm"

    def repairs(edit: Edit) -> None:
        output = slot.use.node.output[0]
        normed = head_norm(edit, output, np.ones(width, np.float32), epsilon)
        edit.redirect(output, normed, f"{path} after {output}: inserted")

    return Difference(
        parameter="value-norm",
        where=path,
        layer=layer,
        package=None,
        reference=epsilon,
        fact="values are not normalised, in the reference each head's are",
        breaks=lambda: case.live.replacing(path, lambda _: case.live.identity()),
        repairs=repairs,
    )
