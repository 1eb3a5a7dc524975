"""A package of less than fp32 beside its reference: both in fp32 arithmetic, with the weights that the package stores.

Its own weights are put into the live reference as far as they are the checkpoint's, rounded. One that is not is given
to the reference as it should be stored: on its own grid, or in its own type. So it differs from the package's like any
other wrong weight, and is proved like one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import onnx

from paritas.checkpoint import Checkpoint
from paritas.diagnose.case import Case, open_case
from paritas.diagnose.diagnosis import Cause, Proof, Suspect
from paritas.diagnose.edit import Edit, RefusedError
from paritas.diagnose.integers import IntegerSlot
from paritas.diagnose.products import dequantised_first
from paritas.diagnose.slots import Slot
from paritas.errors import Invalid
from paritas.progress import Progress
from paritas.runtime.exact import exact
from paritas.runtime.held import NARROW, read_held
from paritas.runtime.package import Package
from paritas.verify.own import CASTS, Kept, Own
from paritas.verify.reference import Reference
from paritas.verify.rounded import findings, precision, truths_for
from paritas.verify.truth import Truths


@dataclass(frozen=True)
class Beside:
    """A package and the live reference.

    Attributes:
        case: the two.
        model: transformers' model.
    """

    case: Case
    model: Any


def beside(package: Package, checkpoint: Checkpoint, progress: Progress, *, cache: bool) -> Beside:
    """Ask the reference, load it, and lay the package beside it, both with the same weights.

    Raises:
        ParitasError, Invalid: the package or the checkpoint cannot be read; ``precision-not-exact``.
    """
    truths = truths_for(package, checkpoint, progress, cache=cache, power=False)
    progress("loading the reference", 0, 1)
    if truths.rounded is None:
        model = Reference(checkpoint).model
        return Beside(open_case(package, checkpoint, truths, model, progress), model)
    if unread := read_held(package.proto, package.model.parent).unread:
        raise Invalid(
            "precision-not-exact",
            f"no operator is known to dequantise {unread[0]}",
            place=str(package.model),
            hint="Export it with MatMulNBits or DequantizeLinear, or in fp32.",
        )
    copy = dequantised_first(exact(package))
    found = _holding(copy, package, checkpoint, truths, progress)
    faults = {kept.name: kept.fault for kept in _wrong(truths.rounded.own) if kept.name and kept.fault}
    wrong = list(_slots(found.case, truths.rounded.own, set(faults)))
    if not wrong:
        return found
    mended = replace(package, rewritten=_mended(found.case, wrong))
    truths = truths_for(mended, checkpoint, progress, cache=False, power=False)
    found = _holding(copy, mended, checkpoint, truths, progress)
    return replace(found, case=replace(found.case, faults=faults))


def _holding(package: Package, stores: Package, checkpoint: Checkpoint, truths: Truths, progress: Progress) -> Beside:
    """``package`` beside a reference that has the weights that ``stores`` stores."""
    reference = Reference(checkpoint)
    reference.hold(read_held(stores.proto, stores.model.parent))
    return Beside(open_case(package, checkpoint, truths, reference.model, progress), reference.model)


def _wrong(own: Own) -> Iterator[Kept]:
    """Integers that are not the nearest. What makes up for its own errors (GPTQ) is nobody's fault."""
    return (each for each in own.kept if each.fault and not (each.rounding and each.rounding.compensated))


def _slots(case: Case, own: Own, faults: set[str]) -> Iterator[Slot]:
    """Places of weights that are not the checkpoint's in their bits."""
    names = {id(parameter): name for name, parameter in case.live.model.named_parameters()}
    for slot in case.slots:
        owner = case.live.owner(slot.held)
        name = None if owner is None else names.get(id(getattr(*owner)))
        is_float = slot.use.record.dtype in NARROW and name in own.missing
        if is_float or (isinstance(slot, IntegerSlot) and slot.use.record.name in faults):
            yield slot


def _mended(case: Case, wrong: list[Slot]) -> onnx.ModelProto:
    """The graph as shipped, with the checkpoint's values in these places, as near as their bits allow."""
    edit = Edit(case.shipped)
    for slot in wrong:
        source = case.identity.sources[slot.tensor]
        rows = source.read(slot.source, slot.source + slot.stop - slot.start)
        try:
            slot.write(edit, CASTS.get(slot.use.record.dtype, CASTS["fp32"])(rows), slot.tensor)
        except RefusedError:
            continue
    return edit.model()


def unproved(case: Case) -> Iterator[Cause]:
    """Stored weights that are not the checkpoint's, and that no experiment could put right."""
    if case.truths.rounded is not None:
        for found in findings(precision(case.package, case.truths)):
            if found.severity == "error":
                yield Cause(Suspect(found.code, found.where, found.message, found.remedy), Proof.NOT_PROVED)
