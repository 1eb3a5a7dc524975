"""Hidden states that a package gives beside its logits (``hidden_states.N``), each with a floor of its own.

They are transformers' own: behind layer N, and behind the last one what goes into the head. The variants are those of
the logits.
"""

import gc
import re
import time
from collections.abc import Sequence

import numpy as np

from paritas.checkpoint import Checkpoint
from paritas.errors import Invalid
from paritas.progress import Progress, silent
from paritas.runtime.package import Package
from paritas.runtime.session import RawSession
from paritas.verify.caches import KeptNoise, Tensors, rows
from paritas.verify.compare import compare
from paritas.verify.evidence import Evidence
from paritas.verify.judging import Judged, invalid, not_tested, record_of
from paritas.verify.probes import Manner, Probe
from paritas.verify.reference import Reference
from paritas.verify.varying import vary
from paritas.verify.verdict import combine

_NAME = re.compile(r"hidden_states\.(\d+)")
SEQUENCE = "short"


def outputs(package: Package) -> tuple[str, ...]:
    """Names of the hidden states that the graph gives."""
    return tuple(value.name for value in package.proto.graph.output if _NAME.fullmatch(value.name))


def with_hidden_states(
    evidence: Evidence, package: Package, checkpoint: Checkpoint, progress: Progress = silent
) -> Evidence:
    """The evidence with one probe more, if the package gives hidden states.

    Raises:
        ParitasError, Invalid: as :func:`paritas.verify.run.verify`.
    """
    names = outputs(package)
    if not names:
        return evidence
    ids = next(each.ids for each in evidence.sequences if each.name == SEQUENCE)
    probe = Probe("hidden", f"hidden states of {len(names)} layers after {len(ids)} tokens", Manner.HIDDEN, (SEQUENCE,))
    progress("comparing hidden states", 0, 1)
    if evidence.precision is not None and evidence.precision.verdict is not None:
        reason = "of a package of less than fp32 only logits are judged"
        record, findings = not_tested(probe, RawSession.runtime, reason)
    else:
        record, findings = _judged(probe, names, ids, package, checkpoint)
    progress("comparing hidden states", 1, 1)
    worst = [each for each in (evidence.worst_floors, record.worst_floors) if each is not None]
    return evidence.model_copy(
        update={
            "probes": (*evidence.probes, record),
            "findings": (*findings, *evidence.findings),
            "verdict": combine([evidence.verdict, record.verdict]),
            "worst_floors": max(worst) if worst else None,
        }
    )


def _judged(probe: Probe, names: Sequence[str], ids: Sequence[int], package: Package, checkpoint: Checkpoint) -> Judged:
    started = time.perf_counter()
    noise = _noise(checkpoint, ids, names)
    gc.collect()
    if missing := [name for name in names if name not in noise.tensors]:
        return not_tested(probe, RawSession.runtime, f"transformers has no one state to compare {missing[0]} with")
    try:
        session = RawSession(package, also=names)
        _, state = session.forward(np.array([ids], np.int64))
        comparisons = [
            compare(kept.name, rows(kept.values), state.also[kept.name][0], kept.floors) for kept in noise.finish()
        ]
    except Invalid as error:
        return invalid(probe, RawSession.runtime, error)
    return record_of(probe, RawSession.runtime, comparisons, time.perf_counter() - started)


def _noise(checkpoint: Checkpoint, ids: Sequence[int], names: Sequence[str]) -> KeptNoise:
    """transformers' own states and their floors; fp64 and the nudges cannot be undone, so they come last."""
    reference = Reference(checkpoint)
    noise = KeptNoise(_wanted(reference, ids, names))

    refused = vary(reference, lambda variant: noise.add(variant, _wanted(reference, ids, names)))
    for variant in refused:
        noise.drop(variant)
    return noise


def _wanted(reference: Reference, ids: Sequence[int], names: Sequence[str]) -> Tensors:
    states = reference.hidden_states(ids)
    return {name: states[name] for name in names if name in states}
