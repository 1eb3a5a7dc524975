"""Per-layer inputs before the layers: three numbers, of the rows of a table, a projection and their sum."""

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from paritas.audit.view import PASSES, View
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.live import Live
from paritas.diagnose.parameters.embedding import Factor, factor_after

Rows = NDArray[np.float64]
_IDS = np.array([[3, 5, 2, 7, 4, 6, 9, 1]], np.int64)
_CLOSE = 1e-6
_FITS = 1e-5  # relative to the largest: a few roundings of a sum in fp32
_TABLE, _PROJECTION, _NORM = (
    "model.embed_tokens_per_layer",
    "model.per_layer_model_projection",
    "model.per_layer_projection_norm",
)
_TABLE_WEIGHT, _PROJECTION_WEIGHT = f"{_TABLE}.weight", f"{_PROJECTION}.weight"


@dataclass(frozen=True)
class _Number:
    """One of the three.

    Attributes:
        name: for people.
        where: the module after which it comes.
        scales: modules whose outputs, multiplied alike, are what another number makes of them.
        got: the graph's.
        wanted: the reference's.
    """

    name: str
    where: str
    scales: tuple[str, ...]
    got: Factor
    wanted: float


def per_layer_input_differences(case: Case) -> Iterator[Difference]:
    """Every one of the three numbers that is not the reference's."""
    outputs = {slot.tensor: slot.use.node.output[0] for slot in case.slots}
    if not {_TABLE_WEIGHT, _PROJECTION_WEIGHT} <= outputs.keys():
        return
    rows = factor_after(case.view, outputs[_TABLE_WEIGHT])
    projected = factor_after(case.view, outputs[_PROJECTION_WEIGHT])
    total = _sum_behind(case.view, rows.output)
    wanted = _wanted(case.live)
    numbers = [
        _Number("rows of the table of per-layer inputs are", _TABLE, (_TABLE,), rows, wanted[0]),
        _Number("the projection to per-layer inputs is", _PROJECTION, (_PROJECTION,), projected, wanted[1]),
    ]
    if total is not None:
        numbers.append(_Number("the sum of per-layer inputs is", _NORM, (_NORM, _TABLE), total, wanted[2]))
    for number in numbers:
        if not math.isnan(number.wanted) and not math.isclose(number.got.value, number.wanted, rel_tol=_CLOSE):
            yield _difference(case, number)


def _sum_behind(view: View, name: str) -> Factor | None:
    """What the sum is multiplied by that the table's rows go into."""
    for _ in range(4):
        takers = [node for node, _ in view.takers.get(name, ())]
        if len(takers) != 1:
            return None
        name = takers[0].output[0]
        if takers[0].op_type == "Add":
            return factor_after(view, name)
        if takers[0].op_type not in PASSES:
            return None
    return None


def _wanted(live: Live) -> tuple[float, float, float]:
    """The reference's three, seen in one pass; NaN where something else is done."""
    heard: dict[str, tuple[Any, Any]] = {}
    handles: list[Any] = []

    def into(path: str) -> Callable[[Any, Any, Any], None]:
        def hook(_: Any, args: Any, out: Any) -> None:
            heard[path] = args[0], out.clone()  # Gemma 3n multiplies in place

        return hook

    def enters(_: Any, args: Any, options: dict[str, Any]) -> None:
        heard["layer"] = (*args, *options.values()), None

    for path in (_TABLE, _PROJECTION, _NORM):
        module = live.module(path)
        if module is None:
            return math.nan, math.nan, math.nan
        handles.append(module.register_forward_hook(into(path)))
    handles.append(live.layers[0].register_forward_pre_hook(enters, with_kwargs=True))
    try:
        live.forward(_IDS)
    finally:
        for handle in handles:
            handle.remove()
    token, context = _rows(heard[_TABLE][1]), _rows(heard[_NORM][1])
    table: Any = live.module(_TABLE)
    stored = table.weight.detach().double().numpy()[_IDS]
    width = heard[_NORM][1].shape[-1]
    first = token[:, :width] + context.reshape(len(token), -1)[:, :width] if len(context) else token
    own = [_rows(each) for each in heard["layer"][0] if _is_own(each, width)]
    total = next((factor for each in own if not math.isnan(factor := _factor(first, each))), math.nan)
    return (
        _factor(stored.reshape(token.shape), token),
        _factor(_rows(heard[_PROJECTION][1]), _rows(heard[_NORM][0])),
        total,
    )


def _is_own(value: Any, width: int) -> bool:
    return hasattr(value, "is_floating_point") and value.is_floating_point() and value.shape[-1] == width


def _rows(values: Any) -> Rows:
    """``[tokens, whatever]``."""
    return cast(Rows, values.detach().double().numpy().reshape(_IDS.size, -1))


def _factor(before: Rows, after: Rows) -> float:
    """The number that one is multiplied by to be the other; NaN if there is none."""
    if before.shape != after.shape:
        return math.nan
    factor = float((before * after).sum() / (before * before).sum())
    return factor if np.abs(after - factor * before).max() <= _FITS * np.abs(after).max() else math.nan


def _difference(case: Case, number: _Number) -> Difference:
    @contextmanager
    def breaks() -> Generator[None]:
        by = number.got.value / number.wanted
        with ExitStack() as stack:
            for path in number.scales:
                stack.enter_context(case.live.changing(case.live.module(path), lambda out: out * by))
            yield

    def repairs(edit: Edit) -> None:
        number.got.set(edit, number.wanted, f"{number.name} scaled")

    words = f"{number.name} multiplied by"
    return Difference(
        parameter="per-layer-scale",
        where=number.where,
        layer=None,
        package=number.got.value,
        reference=number.wanted,
        fact=f"{words} {number.got.value:.9g}, in the reference by {number.wanted:.9g}",
        breaks=breaks,
        repairs=repairs,
    )
