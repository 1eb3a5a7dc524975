"""What the embedding is multiplied by before the first layer."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paritas.audit.view import PASSES, View, operand
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.reading import embedding_scale, scaling_embedding

_BY_ROWS = frozenset({"Gather", "GatherBlockQuantized"})
_HANDS_ON = PASSES | {"Slice"}  # blocks of integers are cut back to the table's width
_CLOSE = 1e-6  # relative: how a root is rounded


@dataclass(frozen=True)
class Factor:
    """What a value of the graph is multiplied by.

    Attributes:
        value: the number; 1 if there is none.
        output: what the node with the number makes; else the value after which there may be one.
        place: of the number among that node's inputs; None if there is none.
    """

    value: float
    output: str
    place: int | None

    def set(self, edit: Edit, wanted: float, name: str) -> None:
        """Another number in its place, or one where there is none."""
        value = np.array(wanted, np.float32)
        if self.place is not None:
            is_division = edit.node(self.output).op_type == "Div"
            edit.set_operand(self.output, self.place, 1 / value if is_division else value, name)
            return
        scaled = edit.insert_node("Mul", [self.output, edit.add_initializer(name, value)])
        edit.redirect(self.output, scaled, f"{name}: Mul by {wanted:.9g} after {self.output}: inserted")


def embedding_differences(case: Case) -> Iterator[Difference]:
    """The scale of the embedding."""
    wanted = embedding_scale(case.live)
    slot = next(
        (s for s in case.slots if s.tensor.endswith("embed_tokens.weight") and s.use.node.op_type in _BY_ROWS), None
    )
    if slot is None or wanted is None:
        return
    found = factor_after(case.view, slot.use.node.output[0])
    got = found.value
    if math.isclose(got, wanted, rel_tol=_CLOSE):
        return

    yield Difference(
        parameter="embedding-scale",
        where="model.embed_tokens",
        layer=None,
        package=got,
        reference=wanted,
        fact=f"the embedding is multiplied by {got:.9g}, in the reference by {wanted:.9g}",
        breaks=lambda: scaling_embedding(case.live, got, wanted),
        repairs=lambda edit: found.set(edit, wanted, "embedding scale"),
    )


def factor_after(view: View, name: str) -> Factor:
    """What a value is multiplied by, behind what only hands it on."""
    for _ in range(4):
        takers = [node for node, _ in view.takers.get(name, ())]
        for node in takers:
            if node.op_type in ("Mul", "Div") and (given := operand(view, node)):
                factor = given[1] if node.op_type == "Mul" else 1 / given[1]
                return Factor(factor, node.output[0], list(node.input).index(given[0]) ^ 1)
        through = [node for node in takers if node.op_type in _HANDS_ON]
        if len(takers) != 1 or len(through) != 1:
            break
        name = through[0].output[0]
    return Factor(1.0, name, None)
