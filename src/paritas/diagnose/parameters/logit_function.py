"""From the head's product to the logits as a function: whatever is done there, evaluated on the reference's numbers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate_part
from paritas.audit.masks import feeds
from paritas.audit.sites import PROJECTIONS
from paritas.casts import CASTS
from paritas.diagnose.anchors import with_bias
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.parameters.logits import way_of
from paritas.diagnose.reading import Head, head, heading, products
from paritas.verify.loading import require_torch

Rows = NDArray[np.float32]
_CLOSE = 2e-6  # relative to the largest: a few roundings


@dataclass(frozen=True)
class _Own:
    """What the graph makes of the head's product.

    Attributes:
        case: of the package.
        product: the value that is taken.
        is_flat: whether its tokens have one axis, not two.
    """

    case: Case
    product: str
    is_flat: bool

    def rows(self, numbers: Rows) -> Rows | None:
        """Of ``[tokens, vocabulary]``; None if that cannot be told, or is not fp32."""
        view, tokens = self.case.view, len(numbers)
        given = {self.product: numbers if self.is_flat else numbers[None]}
        made = evaluate_part(view, [self.case.ports.logits], {**feeds(view, tokens, 0), **given}, tokens)
        is_whole = made is not None and made[0].size == numbers.size and made[0].dtype == np.float32
        return made[0].reshape(numbers.shape) if made is not None and is_whole else None

    def applied(self, values: Any) -> Any:
        """Of torch values ``[batch, tokens, vocabulary]``."""
        torch, _ = require_torch()
        made = [self.rows(row.float().numpy()) for row in values]
        assert all(row is not None for row in made)
        return torch.from_numpy(np.stack([row for row in made if row is not None]))


def logit_function_differences(case: Case) -> Iterator[Difference]:
    """What is done to the head's product, where that is more than a factor and a cap."""
    slot = next((each for each in case.slots if each.held == "lm_head.weight"), None)
    wanted = head(case.live)
    if slot is None or wanted is None or slot.use.node.op_type not in PROJECTIONS:
        return
    own = _own(case, slot.use.node)
    numbers = products(case.live)
    line, way = own.rows(numbers), way_of(case.view, case.ports.logits)
    if own.product == case.ports.logits or line is None or (way is not None and _same(line, _by(way.head, numbers))):
        return
    right = _by(wanted, numbers)
    if _same(line, right):
        return
    rounded = next((kind for kind in ("bf16", "fp16") if np.array_equal(CASTS[kind](line), line)), None)
    yield _difference(case, own, wanted, rounded)


def _own(case: Case, node: onnx.NodeProto) -> _Own:
    """From the head's product on, its bias included, which may come behind a reshape."""
    is_flat = node.op_type in ("Gemm", "FusedGemm")
    name = node.output[0]
    while with_bias(case.view, name) == name:
        takers = [each for each, _ in case.view.takers.get(name, ())]
        if len(takers) != 1 or takers[0].op_type != "Reshape":
            return _Own(case, node.output[0], is_flat)
        name = takers[0].output[0]
    biased = with_bias(case.view, name)
    return _Own(case, biased, is_flat and name == node.output[0])


def _by(wanted: Head, numbers: Rows) -> Rows:
    torch, _ = require_torch()
    return np.asarray(wanted.applied(torch.from_numpy(numbers)).numpy(), np.float32)


def _same(line: Rows, other: Rows) -> bool:
    return bool(np.abs(line - other).max() <= _CLOSE * np.abs(other).max())


def _difference(case: Case, own: _Own, wanted: Head, rounded: str | None) -> Difference:
    def breaks() -> AbstractContextManager[None]:
        return heading(case.live, own)

    def repairs(edit: Edit) -> None:
        value = own.product
        if own.is_flat:
            rest = edit.add_initializer("rest", np.array([-1]))
            shape = edit.insert_node("Shape", [case.ports.input_ids])
            whole = edit.insert_node("Concat", [shape, rest], attributes={"axis": 0})
            value = edit.insert_node("Reshape", [value, whole])
        if wanted.factor != 1:
            value = edit.insert_node("Mul", [value, _number(edit, wanted.factor)])
        if wanted.cap is not None:
            inner = edit.insert_node("Tanh", [edit.insert_node("Div", [value, _number(edit, wanted.cap)])])
            value = edit.insert_node("Mul", [inner, _number(edit, wanted.cap)])
        if value == own.product:
            value = edit.insert_node("Identity", [value])
        edit.redirect(case.ports.logits, value, "what is done to the head's product: written anew")

    is_capped = wanted.cap is not None and rounded is None
    return Difference(
        parameter="logit-rounding" if rounded else "logit-softcap" if is_capped else "logit-function",
        where="logits",
        layer=None,
        package=rounded or "another function",
        reference=wanted.cap,
        fact=f"logits are rounded to {rounded}" if rounded else "logits are another function of the head's product",
        breaks=breaks,
        repairs=repairs,
    )


def _number(edit: Edit, value: float) -> str:
    return edit.add_initializer("number", np.array(value, np.float32))
