"""Weights by value: what stands in a tensor's place against what the reference computes with."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.live import Live
from paritas.diagnose.parameters.likeness import Likeness, beyond_its_bits, likeness
from paritas.diagnose.slots import Slot
from paritas.verify.offsets import offset

Rows = NDArray[np.float32]
_LAST_BITS = 2.0**-22  # relative to the largest value: how a sum was folded


def weight_differences(case: Case) -> Iterator[Difference]:
    """Every tensor of the checkpoint whose place in the graph holds other values."""
    found = tuple(_wrong(case))
    holds = {str(each.facts["held"]): each.facts.get("tensor") for each in found}
    for each in found:
        is_exchanged = holds.get(str(each.facts.get("tensor"))) == each.facts["held"]
        yield replace(each, facts={**each.facts, "exchanged": is_exchanged})


def _wrong(case: Case) -> Iterator[Difference]:
    for slot in case.slots:
        added = reference_offset(case.live, slot.tensor)
        if _is_identical(slot, added):
            continue
        wanted = _wanted(case, slot) + np.float32(added)
        got = slot.value(case.view) + np.float32(slot.use.offset)
        if got.shape == wanted.shape and not _same(got, wanted):
            yield _difference(case, slot, got, wanted, added)


def _is_identical(slot: Slot, added: float) -> bool:
    """Whether weight identity has said so: then nothing is read."""
    held = {"identity": 0.0, "1+w": 1.0} if slot.use.record.dtype == "fp32" else {"identity": 0.0}
    return slot.sign == 1 and any(
        part.start == slot.start
        and part.stop == slot.stop
        and part.source == slot.source
        and slot.tensor in (part.tensor, *part.also)
        and not part.permuted
        and not part.wrong
        and held.get(part.transform, np.nan) + slot.use.offset == added
        for part in slot.use.record.parts
    )


def _wanted(case: Case, slot: Slot) -> Rows:
    """What the reference computes with: of a package of less than fp32, what that stores, where it is right."""
    source = case.identity.sources[slot.tensor]
    values = source.read(0, source.rows) if source.values is None else source.values.reshape(-1, 1)
    if case.truths.rounded is not None and (owner := case.live.owner(slot.held)) is not None:
        module, name = owner
        own: Rows = np.array(getattr(module, name).detach().numpy(), np.float32)
        values = own.reshape(values.shape) if own.size == values.size else values
    return values[slot.source : slot.source + slot.stop - slot.start]


def _same(got: Rows, wanted: Rows) -> bool:
    if np.array_equal(got, wanted):
        return True
    return bool(np.abs(got - wanted).max() <= _LAST_BITS * np.abs(wanted).max())


def reference_offset(live: Live, tensor: str) -> float:
    """What the reference adds to a norm's weight: 1 in Gemma, else nothing; seen by asking the norm."""
    path, _, name = tensor.rpartition(".")
    module = live.module(path)
    if module is None or name != "weight" or "norm" not in type(module).__name__.lower():
        return 0.0
    return offset(module)


def _difference(case: Case, slot: Slot, got: Rows, wanted: Rows, added: float) -> Difference:
    found = beyond_its_bits(case, slot, likeness(case, slot, got, wanted, added))

    def breaks() -> AbstractContextManager[None]:
        return case.live.holding(slot.held, got - np.float32(added), slot.source)

    def repairs(edit: Edit) -> None:
        slot.write(edit, wanted - np.float32(slot.use.offset), f"{slot.tensor}: {_changed(got, wanted)}")

    return Difference(
        parameter="weight",
        where=slot.tensor if slot.held == slot.tensor else slot.held,
        layer=slot.layer,
        package=got,
        reference=wanted,
        fact=found.fact,
        breaks=breaks if case.live.owner(slot.held) is not None else None,
        repairs=repairs,
        facts=_facts(slot, found, added),
    )


def _facts(slot: Slot, found: Likeness, added: float) -> dict[str, Any]:
    own = {"likeness": found.word, "offset": added, "is_norm": "norm" in slot.tensor, "held": slot.held}
    return {**own, **found.facts}


def _changed(got: Rows, wanted: Rows) -> str:
    apart = np.abs(got - wanted)
    return f"{int((apart > 0).sum()):,} of {apart.size:,} values, by up to {float(apart.max()):.2g}"
