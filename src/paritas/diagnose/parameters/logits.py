"""What is done to the head's product before it is the logits: a factor, and a cap."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paritas.audit.sites import PROJECTIONS
from paritas.audit.view import PASSES, View, operand
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.reading import Head, head, heading

_CLOSE = 1e-6


@dataclass(frozen=True)
class Way:
    """From the head's product to the logits.

    Attributes:
        head: what is done on the way.
        product: the value that the head's projection makes.
        factors: (value, input of the constant) of nodes that multiply.
        caps: the same of the two nodes around tanh.
        start, end: the values before and after all of it.
    """

    head: Head
    product: str
    factors: tuple[tuple[str, int], ...]
    caps: tuple[tuple[str, int], ...]
    end: str


def logit_differences(case: Case) -> Iterator[Difference]:
    """The cap of the logits, and their factor."""
    wanted, way = head(case.live), way_of(case.view, case.ports.logits)
    if wanted is None or way is None:
        return
    got = way.head
    if not _same(got.cap, wanted.cap):
        yield Difference(
            parameter="logit-softcap",
            where="logits",
            layer=None,
            package=got.cap,
            reference=wanted.cap,
            fact=f"logits are {_capped(got.cap)}, the reference's {_capped(wanted.cap)}",
            breaks=lambda: heading(case.live, Head(wanted.factor, got.cap)),
            repairs=lambda edit: _cap(edit, way, wanted.cap),
        )
    if not _same(got.factor, wanted.factor):
        yield Difference(
            parameter="logit-factor",
            where="logits",
            layer=None,
            package=got.factor,
            reference=wanted.factor,
            fact=f"the head's product is multiplied by {got.factor:.9g}, the reference's by {wanted.factor:.9g}",
            breaks=lambda: heading(case.live, Head(got.factor, wanted.cap)),
            repairs=lambda edit: _factor(edit, way, got.factor, wanted.factor),
        )


def _same(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isclose(one, other, rel_tol=_CLOSE))


def _capped(cap: float | None) -> str:
    return "not capped" if cap is None else f"capped at {cap:g}"


def way_of(view: View, logits: str) -> Way | None:
    """Back from the logits to the head."""
    name, factor, cap = logits, 1.0, None
    factors: list[tuple[str, int]] = []
    caps: list[tuple[str, int]] = []
    while (node := view.maker.get(name)) is not None and node.op_type not in PROJECTIONS:
        given = operand(view, node) if node.op_type in ("Mul", "Div") else None
        if given is not None:
            place = list(node.input).index(given[0]) ^ 1
            inner = view.maker.get(given[0])
            if node.op_type == "Mul" and inner is not None and inner.op_type == "Tanh":
                cap = given[1]
                caps.append((node.output[0], place))
                name, before = inner.input[0], view.maker.get(inner.input[0])
                scale = operand(view, before) if before is not None and before.op_type in ("Mul", "Div") else None
                if before is not None and scale is not None:
                    caps.append((before.output[0], list(before.input).index(scale[0]) ^ 1))
                    inverse = scale[1] if before.op_type == "Div" else 1 / scale[1]
                    factor *= cap / inverse  # 1, where both are the cap
                    name = scale[0]
                continue
            factors.append((node.output[0], place))
            factor *= given[1] if node.op_type == "Mul" else 1 / given[1]
        elif node.op_type not in PASSES:
            return None
        name = given[0] if given is not None else node.input[0]
    if view.maker.get(name) is None:
        return None
    return Way(
        Head(1.0 if math.isclose(factor, 1, rel_tol=1e-6) else factor, cap), name, tuple(factors), tuple(caps), logits
    )


def _cap(edit: Edit, way: Way, cap: float | None) -> None:
    if way.caps:
        if cap is None:
            last = edit.node(way.caps[0][0])
            edit.redirect(way.caps[0][0], _before(edit, way), "the cap of the logits: taken out", keep=[last])
            return
        value = np.array(cap, np.float32)
        for output, place in way.caps:
            is_inverse = edit.node(output).op_type == "Mul" and output != way.caps[0][0]
            edit.set_operand(output, place, 1 / value if is_inverse else value, "softcap")
        return
    if cap is None:
        return
    number = edit.add_initializer("softcap", np.array(cap, np.float32))
    inner = edit.insert_node("Tanh", [edit.insert_node("Div", [way.end, number])])
    edit.redirect(way.end, edit.insert_node("Mul", [inner, number]), f"cap of the logits at {cap:g}: inserted")


def _before(edit: Edit, way: Way) -> str:
    """What goes into the cap."""
    output, place = way.caps[-1]
    node = edit.node(output)
    return node.input[1 - place]


def _factor(edit: Edit, way: Way, got: float, wanted: float) -> None:
    if len(way.factors) == 1:
        output, place = way.factors[0]
        value = wanted if edit.node(output).op_type == "Mul" else 1 / wanted
        edit.set_operand(output, place, np.array(value, np.float32), "factor of the logits")
        return
    number = edit.add_initializer("factor of the logits", np.array(wanted / got, np.float32))
    scaled = edit.insert_node("Mul", [way.product, number])
    edit.redirect(way.product, scaled, f"Mul by {wanted / got:.9g} after the head: inserted")
