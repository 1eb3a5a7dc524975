"""Verify a package against a checkpoint: the reference once, then each runtime, then the record."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paritas.checkpoint import Checkpoint, open_checkpoint
from paritas.errors import Invalid, ParitasError
from paritas.progress import Progress, silent
from paritas.runtime.decoder import Decoder
from paritas.runtime.package import Package, open_package
from paritas.runtime.padding import left_padding_obstacle
from paritas.verify import judging, provenance
from paritas.verify.evidence import (
    Evidence,
    Finding,
    Lengths,
    PowerRecord,
    PrecisionRecord,
    ProbeRecord,
    SequenceRecord,
    Settings,
    Severity,
    VariantRecord,
)
from paritas.verify.hidden import with_hidden_states
from paritas.verify.loading import DEQUANTISES, check_installed
from paritas.verify.power import blind_spots
from paritas.verify.probes import Manner, Probe
from paritas.verify.rounded import Copy, fp32_copy, precision, shipped, truths_for, with_quality
from paritas.verify.rounded import findings as weight_findings
from paritas.verify.truth import Truth, Truths
from paritas.verify.verdict import Verdict, combine

RUNTIMES = ("onnxruntime", "onnxruntime-genai")
_ABSENT = frozenset({"genai-missing", "genai-config-missing"})


def verify(
    package: Path,
    against: Path | Checkpoint,
    *,
    runtimes: Sequence[str] = RUNTIMES,
    progress: Progress = silent,
    cache: bool = True,
    power: bool = True,
) -> Evidence:
    """Hold ``package`` against the checkpoint ``against``.

    Args:
        package: a package's folder, or its graph.
        against: the checkpoint's folder or GGUF file, or the checkpoint itself.
        runtimes: of :data:`RUNTIMES`, those to ask.
        progress: called as work goes on.
        cache: whether the reference's answers are kept, and taken from where they were kept.
        power: whether to measure what faults would have shown.

    Returns:
        The evidence, whatever the verdict; a package that cannot be run is ``invalid`` in it.

    Raises:
        ParitasError: the package or the checkpoint cannot be read; ``verify-needs-torch``;
            ``runtime-unknown``.
        Invalid: there is no reference to compare with: ``reference-unloadable``, ``reference-incomplete``,
            ``reference-not-finite``, ``tokenizer-broken``, ``tokenizer-beyond-vocabulary``.
    """
    _check(runtimes)
    check_installed()
    opened = open_package(package)
    checkpoint = open_checkpoint(against)
    truths = truths_for(opened, checkpoint, progress, cache=cache, power=power)
    evidence = with_hidden_states(judge(opened, truths, runtimes, progress), opened, checkpoint, progress)
    return _noting(evidence, checkpoint)


def _noting(evidence: Evidence, checkpoint: Checkpoint) -> Evidence:
    """The evidence with a note of what the reference's weights are, where they are stored quantised."""
    if checkpoint.quantised is None:
        return evidence
    whose = "transformers" if checkpoint.quantised in DEQUANTISES else "Paritas, in transformers' class"
    note = Finding(
        code="checkpoint-dequantised",
        severity="note",
        where=checkpoint.name,
        message=f"the checkpoint's weights are stored as {checkpoint.quantised}, and were dequantised by {whose}",
        remedy="The verdict is on the dequantised model, in fp32: nothing of a quantised kernel is in it.",
    )
    return evidence.model_copy(update={"findings": (*evidence.findings, note)})


def judge(
    package: Package, truths: Truths, runtimes: Sequence[str] = RUNTIMES, progress: Progress = silent
) -> Evidence:
    """Hold ``package`` against what the reference said: the second half of :func:`verify`.

    Args:
        package: to be judged.
        truths: of its checkpoint; with the package's own weights, if those are of less than fp32
            (:func:`~paritas.verify.rounded.truths_for`).
        runtimes: to ask.
        progress: called as work goes on.
    """
    probes = _with_padding_obstacle(truths.probes, package)
    copy, stored = fp32_copy(package, truths), precision(package, truths)
    judged = {runtime: _ask_all(runtime, copy, probes, truths, progress) for runtime in runtimes}
    if truths.rounded is not None and copy.comparable:
        for runtime in runtimes:
            progress(f"{runtime}: as shipped", 0, 1)
            sharp = any(record.verdict is Verdict.PROVEN for record, _ in judged[runtime])
            as_is, decoder = shipped(runtime, package, truths, _OPEN[runtime], sharp=sharp)
            judged[runtime] += as_is
            if not stored.quality:
                stored = with_quality(stored, truths, _opened(runtime, copy, truths), decoder)
    progress("writing the record", 0, 1)
    evidence = _evidence(package, truths, judged, stored)
    progress("writing the record", 1, 1)
    return evidence


def _check(runtimes: Sequence[str]) -> None:
    unknown = [runtime for runtime in runtimes if runtime not in RUNTIMES]
    if unknown or not runtimes:
        raise ParitasError(
            "runtime-unknown",
            f"no runtime {', '.join(unknown) or 'was named'}",
            hint=f"There are {' and '.join(RUNTIMES)}.",
        )


def _with_padding_obstacle(probes: tuple[Probe, ...], package: Package) -> tuple[Probe, ...]:
    """The probes, those with padding marked if the graph's own operators forbid it."""
    try:
        obstacle = left_padding_obstacle(package.model)
    except Invalid:
        return probes  # no decoder at all: opening the session says so, for every probe
    return tuple(replace(probe, obstacle=obstacle) if probe.manner is Manner.PADDED_LEFT else probe for probe in probes)


def _ask_all(
    runtime: str, copy: Copy, probes: tuple[Probe, ...], truths: Truths, progress: Progress
) -> list[judging.Judged]:
    """Every probe in one runtime, which is loaded for it and let go."""
    progress(f"loading {runtime}", 0, len(probes))
    if copy.obstacle is not None:
        return [judging.not_tested(probe, runtime, copy.obstacle) for probe in probes]
    longest = max(len(truth.sequence.ids) for truth in truths.by_name.values())
    try:
        decoder = _OPEN[runtime](copy.package, longest)
    except Invalid as error:
        if truths.rounded is not None:  # the graph may run as shipped, and then this is our copy's failure
            return [judging.not_tested(probe, runtime, f"in fp32 arithmetic: {error.fact}") for probe in probes]
        return [judging.invalid(probe, runtime, error) for probe in probes]
    except ParitasError as error:
        if error.code in _ABSENT:
            return [judging.not_tested(probe, runtime, error.fact) for probe in probes]
        broken = Invalid(error.code, error.fact, place=error.place, hint=error.hint)
        return [judging.invalid(probe, runtime, broken) for probe in probes]
    judged: list[judging.Judged] = []
    for done, probe in enumerate(probes):
        progress(f"{runtime}: {probe.id}", done, len(probes))
        judged.append(judging.probe_record(decoder, probe, truths))
    return judging.settled(judged, probes)


def _open_raw(package: Package, longest: int) -> Decoder:
    from paritas.runtime.session import RawSession

    return RawSession(package)


def _open_genai(package: Package, longest: int) -> Decoder:
    from paritas.runtime.genai import GenAISession

    try:
        return GenAISession(package, longest)
    except Invalid as error:
        if error.code != "genai-context":
            raise
    return GenAISession(package)  # a shorter context: the probes that fit are asked


_OPEN: Mapping[str, Callable[[Package, int], Decoder]] = {
    "onnxruntime": _open_raw,
    "onnxruntime-genai": _open_genai,
}


def _opened(runtime: str, copy: Copy, truths: Truths) -> Decoder | None:
    """The package in fp32 arithmetic; None if it does not run."""
    try:
        longest = max(len(truth.sequence.ids) for truth in truths.by_name.values())
        return None if copy.obstacle else _OPEN[runtime](copy.package, longest)
    except ParitasError:
        return None


def _evidence(
    package: Package, truths: Truths, judged: Mapping[str, list[judging.Judged]], stored: PrecisionRecord
) -> Evidence:
    records = {runtime: [record for record, _ in each] for runtime, each in judged.items()}
    every = [record for each in records.values() for record in each]
    worst = [record.worst_floors for record in every if record.worst_floors is not None]
    facts = truths.facts
    signatures = {r: judging.runtime_signature(each, facts.windows, facts.switches) for r, each in records.items()}
    return Evidence(
        created=provenance.now(),
        paritas=provenance.version("paritas"),
        environment=provenance.environment(),
        checkpoint=truths.checkpoint,
        package=provenance.package_records(package),
        settings=Settings(
            seed=truths.ids.seed,
            ids=truths.ids.origin,
            remembered=truths.ids.remembered,
            refused=dict(truths.refused),
        ),
        precision=stored,
        lengths=Lengths(windows=facts.windows, switches=facts.switches, positions=facts.positions),
        sequences=tuple(_sequence_record(truth) for truth in truths.by_name.values()),
        probes=tuple(every),
        findings=_merged(
            [
                *weight_findings(stored),
                *_unused(truths),
                *_shorter(package, truths),
                *(f for each in judged.values() for _, found in each for f in found),
            ]
        ),
        signatures={runtime: text for runtime, text in signatures.items() if text is not None},
        power=tuple(PowerRecord(fault=s.fault, probe=s.probe, floors=s.floors) for s in truths.power),
        blind=_blind(truths, every),
        verdict=combine([*(record.verdict for record in every), *_unless_right(stored)]),
        worst_floors=max(worst) if worst else None,
    )


def _unless_right(stored: PrecisionRecord) -> tuple[Verdict, ...]:
    """The verdict on the stored weights: that they are right proves nothing of what is computed with them."""
    return () if stored.verdict in (None, Verdict.PROVEN) else (stored.verdict,)


def _blind(truths: Truths, records: Sequence[ProbeRecord]) -> tuple[str, ...]:
    lengths = {name: len(truth.sequence.ids) for name, truth in truths.by_name.items()}
    asked = {probe.id: max((lengths.get(name, 0) for name in probe.sequences), default=0) for probe in truths.probes}
    answered = {record.id for record in records if record.worst_floors is not None}
    tested = {probe: length for probe, length in asked.items() if probe in answered}
    untested = {record.id: record.boundary for record in records if record.id not in answered}
    return blind_spots(truths.facts, tested, untested)


def _unused(truths: Truths) -> tuple[Finding, ...]:
    """A note of the tensors that are in the checkpoint and that transformers itself leaves aside."""
    if not truths.unused:
        return ()
    message = f"transformers does not use {len(truths.unused)} tensors of the checkpoint: {truths.unused[0]}, ..."
    remedy, where = "They are in no comparison: nothing to do, unless they should matter.", truths.checkpoint.name
    return (Finding(code="reference-unused", severity="note", where=where, message=message, remedy=remedy),)


def _shorter(package: Package, truths: Truths) -> tuple[Finding, ...]:
    """A note of a package that covers fewer positions than its checkpoint."""
    whole = truths.facts.positions
    if package.context is None or whole is None or package.context >= whole:
        return ()
    message = f"the package covers {package.context:,} of the checkpoint's {whole:,} positions; no more were asked for"
    remedy, where = "Export it for more positions if they are needed.", package.folder.name
    return (Finding(code="package-context", severity="note", where=where, message=message, remedy=remedy),)


def _sequence_record(truth: Truth) -> SequenceRecord:
    sequence = truth.sequence
    return SequenceRecord(
        name=sequence.name,
        ids=sequence.ids,
        prefill=sequence.prefill,
        stop=sequence.stop,
        prompt=sequence.prompt,
        greedy=sequence.greedy,
        floors=tuple(truth.floors.tolist()),
        variants=tuple(
            VariantRecord(
                name=name,
                differences=tuple(None if np.isnan(value) else value for value in differences.tolist()),
            )
            for name, differences in truth.variants.items()
        ),
    )


def _merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding where every probe of a runtime says the same, and the worst first."""
    places: dict[tuple[Severity, str, str, str], list[str]] = {}
    for finding in findings:
        key = (finding.severity, finding.code, finding.message, finding.remedy)
        places.setdefault(key, []).append(finding.where)
    order = ("error", "warning", "note")
    merged = [
        Finding(code=code, severity=severity, where="; ".join(where), message=message, remedy=remedy)
        for (severity, code, message, remedy), where in places.items()
    ]
    return tuple(sorted(merged, key=lambda finding: order.index(finding.severity)))
