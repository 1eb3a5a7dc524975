"""Projections that the checkpoint packs and the graph takes apart: which rows the attention takes as what."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.attention_roles import roles
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.live import Call, Live
from paritas.diagnose.slots import Slot

Rows = NDArray[np.int64]
_ONE = np.array([[3]], np.int64)  # one token, at the position where nothing is rotated
_WORDS = {"q_proj": "queries", "k_proj": "keys", "v_proj": "values"}


def packed_differences(case: Case) -> Iterator[Difference]:
    """Every part of a packed projection that the graph's attention takes as another one."""
    told = roles(case.view, case.sites)
    known: dict[str, Mapping[str, Rows]] = {}
    for slot in case.slots:
        role = told.get(id(slot.use.node))
        size = case.identity.sources[slot.tensor].shape[0]
        if slot.layer is None or role not in _WORDS or slot.stop - slot.start >= size or slot.use.record.quantized:
            continue
        path = slot.held.rpartition(".")[0]
        if path not in known:
            known[path] = rows_of(case.live, slot.layer, path)
        rows = known[path].get(role)
        if rows is None or len(rows) != slot.stop - slot.start or (np.diff(rows) != 1).any():
            continue
        if int(rows[0]) != slot.source:
            yield _difference(case, slot, role, int(rows[0]))


def rows_of(live: Live, layer: int, path: str) -> Mapping[str, Rows]:
    """Role -> rows of a packed projection that become it, in the order of its heads; seen in a call of one token."""
    module, given, calls = live.module(path), list[Any](), list[Call]()
    if module is None or layer not in live.attentions:
        return {}

    def keep(_: Any, args: Any, out: Any) -> None:
        given.append(out)

    handle = module.register_forward_hook(keep)
    try:
        with live.attending({layer: calls.append}):
            live.forward(_ONE)
    finally:
        handle.remove()
    if len(given) != 1 or len(calls) != 1:
        return {}
    made = given[0].reshape(-1).numpy()
    places = {float(value): place for place, value in enumerate(made)}
    found: dict[str, Rows] = {}
    for role, values in zip(_WORDS, (calls[0].query, calls[0].key, calls[0].value), strict=True):
        at = [places.get(float(value), -1) for value in values.reshape(-1).numpy()]
        if len(places) == made.size and min(at) >= 0:
            found[role] = np.array(at, np.int64)
    return found


def _difference(case: Case, slot: Slot, role: str, start: int) -> Difference:
    source = case.identity.sources[slot.tensor]
    whole = source.read(0, source.rows) if source.values is None else source.values.reshape(-1, 1)
    wanted, got = whole[start : start + slot.stop - slot.start], slot.value(case.view)

    def breaks() -> AbstractContextManager[None]:
        return case.live.holding(slot.held, got, start)

    def repairs(edit: Edit) -> None:
        slot.write(edit, wanted, f"{_WORDS[role]} of {slot.tensor}")

    return Difference(
        parameter="weight",
        where=slot.held,
        layer=slot.layer,
        package=got,
        reference=wanted,
        fact=f"{_WORDS[role]} are its rows from {slot.source} on, in the reference from {start} on",
        breaks=breaks if case.live.owner(slot.held) is not None else None,
        repairs=repairs,
        facts={"likeness": "another-part", "is_norm": False, "held": slot.held, "offset": 0.0},
    )
