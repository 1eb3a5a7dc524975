"""Where a package parts from the reference: the shortest sequence that shows it, beside the reference's tensors."""

from typing import Any

import numpy as np

from paritas.diagnose.align import Alignment, align
from paritas.diagnose.capture import Captured
from paritas.diagnose.case import Case
from paritas.diagnose.depth import by_depth
from paritas.diagnose.diagnosis import Whereabouts
from paritas.diagnose.fused import ThreeWay, three_way
from paritas.diagnose.padded import padded
from paritas.diagnose.reset import reset, whole
from paritas.diagnose.rounding import rounding, rounding_in_fp16
from paritas.diagnose.witness import Asked, Witness
from paritas.progress import Progress, silent
from paritas.verify.compare import differ
from paritas.verify.probes import Manner
from paritas.verify.verdict import PROVEN_FLOORS

_PADDED = (Manner.PADDED_LEFT, Manner.PADDED_RIGHT)
LEAST = 4
"""Tokens that are looked at: fewer leave attention nothing to do."""


def look(case: Case, captured: Captured, model: Any, progress: Progress = silent) -> tuple[Whereabouts, Alignment]:
    """Local beside accumulated error of everything, on a sequence that fails.

    Args:
        case: the package.
        captured: the reference's tensors on that sequence.
        model: transformers' model.
        progress: told of every stage.

    Raises:
        Invalid: ``runtime-failed``.
    """
    progress("aligning the graph", 0, 4)
    alignment = align(case.package, case.view, case.identity, captured)
    progress("listening to the reference", 1, 4)
    rounded = (rounding_in_fp16 if alignment.is_fp16 else rounding)(model, captured)
    taps = whole(case.package, alignment, captured)
    progress("feeding each region", 2, 4)
    regions = reset(case.package, alignment, captured, rounded, taps)
    if not any(region.is_source for region in regions):
        comparable = {region.value for region in regions}
        regions += padded(case.package, alignment, captured, rounded, comparable)
    progress("looking into operators", 3, 4)
    sources = frozenset(region.region for region in regions if region.is_source)
    fused = three_way(case.package, alignment, captured, rounded, sources) if sources else ()
    depth = {each.layer: each.error for each in by_depth(case.package, alignment, captured, model, taps)}
    progress("looking into operators", 4, 4)
    words = dict.fromkeys(_sentence(each) for each in fused if each.runtime_is_wrong or each.exporter_is_wrong)
    tokens = sum(len(one.ids) for one in captured.passes)
    where = Whereabouts(tokens, regions, depth, tuple(words), alignment.missing, alignment.unexplained)
    return where, alignment


def _sentence(each: ThreeWay) -> str:
    place = f"{each.operator} of {each.region}"
    if each.runtime_is_wrong:
        return f"{place}: the runtime's kernel is {each.kernel:.1e} from the operator's own documentation"
    return f"{place}: the kernel does what is documented; what it is asked for is {each.documented:.1e} off"


def shortest(witness: Witness) -> tuple[tuple[int, ...], int | None] | None:
    """The shortest beginning of a failing sequence that fails itself, and the tokens put at once (None: all).

    Where nothing fails but rows with padding, the shortest of them; None if nothing fails at all.
    """
    alone = [each for each in witness.asked if each.probe.manner not in _PADDED]
    found = [each for asked in alone for each in _beginnings(asked)]
    if not found:
        rows = [asked for asked in witness.asked if asked.probe.manner in _PADDED]
        found = [(truth.sequence.ids, None) for asked in rows for truth in asked.truths]
    return min(found, key=lambda each: (each[1] is not None, len(each[0])), default=None)


def _beginnings(asked: Asked) -> list[tuple[tuple[int, ...], int | None]]:
    found: list[tuple[tuple[int, ...], int | None]] = []
    for truth, answer in zip(asked.truths, asked.answers, strict=True):
        apart, _ = differ(truth.logits[: len(answer)], answer)
        bad = np.flatnonzero(apart / truth.floors[: len(answer)] > PROVEN_FLOORS)
        if not bad.size:
            continue
        sequence = truth.sequence
        ids = sequence.ids[: max(LEAST, int(bad[0]) + 1)]
        stepwise = asked.probe.manner is Manner.STEPS and len(ids) > sequence.prefill
        found.append((ids, sequence.prefill if stepwise else None))
    return found
