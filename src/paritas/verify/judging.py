"""From one runtime's answers to records: a probe's verdict, its worst place, and the finding it makes."""

import time
from collections.abc import Sequence as Several

import numpy as np

from paritas.errors import Invalid
from paritas.runtime.decoder import Decoder
from paritas.verify.asking import Answer, ask, kept
from paritas.verify.caches import rows
from paritas.verify.compare import Comparison, check_shape, compare
from paritas.verify.evidence import Alike, Choices, Differences, Finding, ProbeRecord, Severity, TokenCount, Where
from paritas.verify.probes import INSIDE, OPTIONAL, Manner, Probe
from paritas.verify.truth import Truth, Truths
from paritas.verify.verdict import PROVEN_FLOORS, Place, Verdict, judge, signature

CANNOT = frozenset(
    {"graph-no-mask", "graph-no-cache", "genai-batch", "genai-context", "cache-elsewhere", "graph-batch", "graph-room"}
)
"""Refusals that say what a package or runtime is not made for: not tested, rather than invalid."""

_REMEDIES = {
    "logits-not-finite": "Look for numbers beyond what a narrow dtype holds, and for masks that hide every key.",
    "cache-diverges": "The fault lies before this layer's keys and values: compare what goes into it.",
    "hidden-diverges": "The fault lies before this layer's end; logits may be right, and what reads the state is not.",
    "logits-diverge": "Do not ship it. Look where its first bad position points to; paritas audit reads the files.",
    "logits-unexplained": "Do not ship it. Verify it on another machine, and report it with evidence.json.",
}

Judged = tuple[ProbeRecord, tuple[Finding, ...]]


def probe_record(decoder: Decoder, probe: Probe, truths: Truths) -> Judged:
    """Put one probe to one runtime and judge the answer."""
    if probe.obstacle is not None:
        return not_tested(probe, decoder.runtime, probe.obstacle)
    started = time.perf_counter()
    asked = [truths.by_name[name] for name in probe.sequences]
    try:
        if probe.manner is Manner.CACHE:
            comparisons = _kept(decoder, truths, asked[0])
        else:
            comparisons = _compared(probe, asked, ask(decoder, probe, tuple(truth.sequence for truth in asked)))
    except Invalid as error:
        if error.code in CANNOT or (probe.manner in OPTIONAL and error.code == "runtime-failed"):
            return not_tested(probe, decoder.runtime, error.fact)
        return invalid(probe, decoder.runtime, error)
    return record_of(probe, decoder.runtime, comparisons, time.perf_counter() - started)


def not_tested(probe: Probe, runtime: str, reason: str) -> Judged:
    """The record of a probe that could not be put."""
    place, remedy = (
        f"{probe.id}, {runtime}",
        "It is no part of the verdict: whoever relies on it has to test it otherwise.",
    )
    finding = Finding(code="probe-not-tested", severity="note", where=place, message=reason, remedy=remedy)
    return _bare(probe, runtime, Verdict.NOT_TESTED, reason), (finding,)


def invalid(probe: Probe, runtime: str, error: Invalid) -> Judged:
    """The record of a probe whose answer cannot be compared."""
    place = f"{probe.id}, {runtime}"
    finding = Finding(code=error.code, severity="error", where=place, message=error.fact, remedy=error.hint)
    return _bare(probe, runtime, Verdict.INVALID, error.fact), (finding,)


def settled(judged: Several[Judged], probes: Several[Probe]) -> list[Judged]:
    """The caches judged beside everything else that one runtime answered.

    What a package keeps is its own affair: other keys and values with the right logits are another layout.
    """
    others = [record for (record, _), probe in zip(judged, probes, strict=True) if probe.manner is not Manner.CACHE]
    if any(record.first_bad is not None for record in others):
        return list(judged)
    reason = "keys or values are not transformers', and all logits are: the package lays its caches out otherwise"
    return [
        not_tested(probe, each[0].runtime, reason) if probe.manner is Manner.CACHE and each[0].first_bad else each
        for each, probe in zip(judged, probes, strict=True)
    ]


def runtime_signature(records: Several[ProbeRecord], windows: Several[int], switches: Several[int]) -> str | None:
    """What the first bad positions of one runtime's probes point to."""
    judged = (record for record in records if record.worst_floors is not None)
    places = [Place(r.id, None if r.first_bad is None else r.first_bad.position) for r in judged]
    return signature(places, windows, switches)


def _bare(probe: Probe, runtime: str, verdict: Verdict, reason: str) -> ProbeRecord:
    return ProbeRecord(id=probe.id, runtime=runtime, boundary=probe.boundary, verdict=verdict, reason=reason)


def _compared(probe: Probe, asked: Several[Truth], answers: Several[Answer]) -> list[Comparison]:
    if probe.manner is Manner.CHANGED_TOKENS:
        truth, (whole, *changed) = asked[0], answers
        if not np.isfinite(whole).all():
            raise Invalid("logits-not-finite", "NaN or Inf before anything is changed: no move can be seen")
        check_shape(truth.logits.shape, whole.shape)  # both could be alike in another vocabulary
        return [compare(truth.sequence.name, whole[: len(c)], c, truth.floors[: len(c)]) for c in changed]
    return [_beside(truth, answer, probe.manner) for truth, answer in zip(asked, answers, strict=True)]


def _kept(decoder: Decoder, truths: Truths, asked: Truth) -> list[Comparison]:
    """A comparison for the keys and one for the values of each layer."""
    shapes = tuple((each.values.shape[0], each.values.shape[1], each.values.shape[2]) for each in truths.kept)
    found = kept(decoder, asked.sequence.ids, shapes)
    return [
        compare(want.name, rows(want.values), rows(got), want.floors)
        for want, got in zip(truths.kept, found, strict=True)
    ]


def _beside(truth: Truth, answer: Answer, manner: Manner) -> Comparison:
    sequence = truth.sequence
    positions = sequence.stop if manner is Manner.STEPS else len(sequence.ids)
    return compare(
        sequence.name,
        truth.logits[:positions],
        answer,
        truth.floors[:positions],
        prompt=sequence.prompt,
        greedy=sequence.greedy,
    )


def record_of(probe: Probe, runtime: str, comparisons: list[Comparison], seconds: float) -> Judged:
    """A probe's verdict by its comparisons, and what there is to say of it."""
    worst = max(comparisons, key=lambda c: float(c.ratios.max()))
    floors = float(worst.ratios.max())
    bad = [c for c in comparisons if c.first_bad is not None]
    first = None if not bad else bad[0] if probe.manner in INSIDE else min(bad, key=lambda c: c.first_bad or 0)
    record = ProbeRecord(
        id=probe.id,
        runtime=runtime,
        boundary=probe.boundary,
        verdict=judge(floors),
        worst_floors=floors,
        difference=float(worst.differences[worst.worst]),
        floor=float(worst.floors[worst.worst]),
        where=_where(worst, worst.worst),
        first_bad=None if first is None else _where(first, first.first_bad or 0),
        tokens=_tokens(comparisons),
        alike=_alike(comparisons),
        choices=tuple(
            Choices(sequence=c.sequence, tokens=tokens.chosen, gaps=tokens.gaps, near_ties=tokens.near)
            for c in comparisons
            if (tokens := c.tokens) is not None
        ),
        differences=tuple(_differences(comparison, probe.manner) for comparison in comparisons),
        seconds=seconds,
    )
    return record, _findings(record, comparisons, probe.manner)


def _where(comparison: Comparison, position: int) -> Where:
    return Where(sequence=comparison.sequence, position=position, vocab_id=int(comparison.vocab_ids[position]))


def _differences(comparison: Comparison, manner: Manner) -> Differences:
    floors = tuple(comparison.floors.tolist()) if manner in INSIDE else ()
    return Differences(sequence=comparison.sequence, differences=tuple(comparison.differences.tolist()), floors=floors)


def _alike(comparisons: list[Comparison]) -> Alike | None:
    cosines = np.concatenate([c.cosines for c in comparisons])
    if not np.isfinite(cosines).all():
        return None
    return Alike(
        cosine=round(float(cosines.mean()), 7),
        least_cosine=round(float(cosines.min()), 7),
        same_best=sum(int(c.same_best.sum()) for c in comparisons),
        positions=len(cosines),
    )


def _tokens(comparisons: list[Comparison]) -> TokenCount | None:
    counts = [c.tokens for c in comparisons if c.tokens is not None]
    if not counts:
        return None
    return TokenCount(
        identical=sum(count.identical for count in counts),
        near_ties=sum(count.near_ties for count in counts),
        different=sum(count.different for count in counts),
    )


def _findings(record: ProbeRecord, comparisons: list[Comparison], manner: Manner) -> tuple[Finding, ...]:
    lost = [c for c in comparisons if c.first_nonfinite is not None]
    place, first = f"{record.id}, {record.runtime}", record.first_bad
    if lost:
        message = f"NaN or Inf in the logits of {lost[0].sequence} from position {lost[0].first_nonfinite}"
        return (_finding("logits-not-finite", "error", place, message),)
    if first is None:
        return ()
    at = f"{first.sequence}, first at position {first.position}"
    message = (
        f"{record.difference:.2g} from the reference, {record.worst_floors:,.0f} times its own noise of "
        f"{record.floor:.1g} (up to {PROVEN_FLOORS:.0f} is rounding); {at}"
    )
    if manner is Manner.CACHE:
        return (_finding("cache-diverges", "error", place, message),)
    if manner is Manner.HIDDEN:
        return (_finding("hidden-diverges", "error", place, message),)
    if record.verdict is Verdict.DIVERGES:
        return (_finding("logits-diverge", "error", place, message),)
    return (_finding("logits-unexplained", "warning", place, message),)


def _finding(code: str, severity: Severity, where: str, message: str) -> Finding:
    return Finding(code=code, severity=severity, where=where, message=message, remedy=_REMEDIES[code])
