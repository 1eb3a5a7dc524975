"""What the embedding is multiplied by before the first layer."""

import math
from collections.abc import Iterator

import numpy as np

from paritas.audit.view import PASSES, operand
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.reading import embedding_scale, scaling_embedding
from paritas.diagnose.slots import Slot

_BY_ROWS = frozenset({"Gather", "GatherBlockQuantized"})
_CLOSE = 1e-6  # relative: how a root is rounded


def embedding_differences(case: Case) -> Iterator[Difference]:
    """The scale of the embedding."""
    wanted = embedding_scale(case.live)
    slot = next(
        (s for s in case.slots if s.tensor.endswith("embed_tokens.weight") and s.use.node.op_type in _BY_ROWS), None
    )
    if slot is None or wanted is None:
        return
    got, output, place = _scale(case, slot)
    if math.isclose(got, wanted, rel_tol=_CLOSE):
        return

    def repairs(edit: Edit) -> None:
        value = np.array(wanted, np.float32)
        if place is not None:
            is_division = edit.node(output).op_type == "Div"
            edit.set_operand(output, place, 1 / value if is_division else value, "embedding scale")
            return
        scaled = edit.insert_node("Mul", [output, edit.add_initializer("embedding scale", value)])
        edit.redirect(output, scaled, f"Mul by {wanted:.9g} after the embedding: inserted")

    yield Difference(
        parameter="embedding-scale",
        where="model.embed_tokens",
        layer=None,
        package=got,
        reference=wanted,
        fact=f"the embedding is multiplied by {got:.9g}, in the reference by {wanted:.9g}",
        breaks=lambda: scaling_embedding(case.live, got, wanted),
        repairs=repairs,
    )


def _scale(case: Case, slot: Slot) -> tuple[float, str, int | None]:
    """The factor, the value that the node with the constant makes, and the constant's place; else where to put one."""
    view, name = case.view, slot.use.node.output[0]
    for _ in range(4):
        takers = [node for node, _ in view.takers.get(name, ())]
        for node in takers:
            if node.op_type in ("Mul", "Div") and (given := operand(view, node)):
                factor = given[1] if node.op_type == "Mul" else 1 / given[1]
                return factor, node.output[0], list(node.input).index(given[0]) ^ 1
        through = [node for node in takers if node.op_type in PASSES]
        if len(takers) != 1 or len(through) != 1:
            break
        name = through[0].output[0]
    return 1.0, name, None
