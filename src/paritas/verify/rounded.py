"""A package of less than fp32: what it is held against, and what its verdict rests on.

Two questions, of which only the first has a sharp answer:

1. Does it compute its own weights right? The graph in fp32 arithmetic (runtime/exact.py) beside transformers in fp32
   with the package's weights in it (own.py), at the gate of an fp32 build. What its weights may be is told by their
   own grids.
2. What does it lose as shipped? In fp16 and bf16, beside what transformers loses in that dtype: a fault that is smaller
   than that cannot be seen, so this alone proves nothing. Of integers: numbers without a gate (quality.py).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from paritas.checkpoint import Checkpoint
from paritas.errors import Invalid, ParitasError
from paritas.progress import Progress
from paritas.runtime.decoder import Decoder
from paritas.runtime.exact import activations, exact, multiplied_exactly
from paritas.runtime.held import NARROW, read_held
from paritas.runtime.package import Package
from paritas.verify import judging, quality
from paritas.verify.evidence import Finding, MatrixRecord, PrecisionRecord
from paritas.verify.memory import recall_truths
from paritas.verify.own import Kept, Own
from paritas.verify.probes import Manner, Probe
from paritas.verify.provenance import graph_sha256
from paritas.verify.truth import Rounded, Stores, Truths, find_truths
from paritas.verify.verdict import Verdict

Open = Callable[[Package, int], Decoder]
SHIPPED = "shipped"


def truths_for(
    package: Package, checkpoint: Checkpoint, progress: Progress, *, cache: bool, power: bool, recorded: Any = None
) -> Truths:
    """What a package is held against: the checkpoint, or its own weights where they are of less than fp32.

    Raises:
        ParitasError, Invalid: as :func:`~paritas.verify.truth.find_truths`.
    """
    ask = recall_truths if cache else find_truths
    proto = package.proto
    held, rough = read_held(proto, package.model.parent), activations(proto)
    if held.full and not rough:
        return ask(checkpoint, progress, package.context, power=power, recorded=recorded)
    original = ask(checkpoint, progress, package.context, power=False, recorded=recorded)
    dtype = next((word for word in rough if word in NARROW), None)
    stores = Stores(held, dtype, graph_sha256(package))
    asked = {name: truth.sequence for name, truth in original.by_name.items()}
    truths = ask(checkpoint, progress, package.context, power=power, recorded=asked, stores=stores)
    if truths.rounded is None:
        raise TypeError("the reference answered without the package's weights")
    return replace(truths, rounded=replace(truths.rounded, original=original.by_name))


@dataclass(frozen=True)
class Copy:
    """The package in fp32 arithmetic, or why it cannot be.

    Attributes:
        package: what sessions are given.
        obstacle: why the probes are not put to it; None if they are.
        comparable: whether the reference has the package's weights, so that anything can be held against it.
    """

    package: Package
    obstacle: str | None = None
    comparable: bool = True


def fp32_copy(package: Package, truths: Truths) -> Copy:
    """What the probes are put to."""
    if truths.rounded is None:
        return Copy(package)
    verdict, reason = _weights(truths.rounded.own)
    if unread := read_held(package.proto, package.model.parent).unread:
        return Copy(package, f"no operator is known to dequantise {unread[0]}", comparable=False)
    if verdict is Verdict.INVALID:
        return Copy(package, f"the reference does not have the package's weights: {reason}", comparable=False)
    try:
        return Copy(exact(package))
    except Invalid as error:
        return Copy(package, f"only as shipped: {error.fact}")


def shipped(
    runtime: str, package: Package, truths: Truths, open_: Open, *, sharp: bool
) -> tuple[list[judging.Judged], Decoder | None]:
    """The package as it is: what it loses in a narrow dtype; whether it runs at all.

    Args:
        runtime: its name.
        package: as it is.
        truths: with its own weights.
        open_: the runtime.
        sharp: whether it was also asked in fp32 arithmetic.
    """
    probe = _probe(truths)
    longest = max(len(truth.sequence.ids) for truth in truths.by_name.values())
    try:
        decoder = open_(package, longest)
    except ParitasError as error:
        return [judging.not_tested(probe, runtime, f"as shipped it does not run here: {error.fact}")], None
    rounded = truths.rounded
    if rounded is not None and rounded.noise:
        return [_in_its_dtype(runtime, package, truths, rounded, open_, decoder, sharp=sharp)], decoder
    record, findings = judging.probe_record(decoder, probe, truths)
    # Without noise to measure in, all that can be judged is whether there are numbers.
    if record.verdict is Verdict.INVALID or any(f.code == "logits-not-finite" for f in findings):
        return [(record, findings)], decoder
    refused = None if rounded is None or rounded.dtype is None else f"{rounded.dtype}: {rounded.refused}"
    return ([judging.not_tested(probe, runtime, refused)] if refused else []), decoder


def _in_its_dtype(
    runtime: str, package: Package, truths: Truths, rounded: Rounded, open_: Open, as_is: Decoder, *, sharp: bool
) -> judging.Judged:
    """In units of what transformers loses in that dtype, which does not round activations to integers."""
    probe = _probe(truths)
    noisy = {name: replace(truth, floors=rounded.noise[name]) for name, truth in truths.by_name.items()}
    try:
        longest = max(len(truth.sequence.ids) for truth in truths.by_name.values())
        only_narrow = set(activations(package.proto)) <= set(NARROW)
        decoder = as_is if only_narrow else open_(multiplied_exactly(package), longest)
    except ParitasError as error:
        return judging.not_tested(probe, runtime, f"with activations that are no integers: {error.fact}")
    record, findings = judging.probe_record(decoder, probe, replace(truths, by_name=noisy))
    if record.verdict is Verdict.PROVEN and not sharp:
        times = f"{record.worst_floors:.1f} times what transformers loses in {rounded.dtype}"
        reason = f"only as shipped, where it loses {times}: a smaller fault is not seen"
        record = record.model_copy(update={"verdict": Verdict.NOT_TESTED, "reason": reason})
    return record, findings


def _probe(truths: Truths) -> Probe:
    """One pass over everything that is not one of the parts of a longer sequence."""
    rounded = truths.rounded
    words = f"in {rounded.dtype}, in units of what transformers loses in it" if rounded and rounded.dtype else "finite"
    names = tuple(name for name, truth in truths.by_name.items() if not truth.sequence.stepwise)
    return Probe(SHIPPED, f"as shipped, in one pass: {words}", Manner.ONE_PASS, names)


def precision(package: Package, truths: Truths) -> PrecisionRecord:
    """What the package stores, and the verdict on that alone; no quality yet."""
    rounded = truths.rounded
    rough = activations(package.proto)
    if rounded is None:
        return PrecisionRecord(
            formats={"fp32": len(read_held(package.proto, package.model.parent).floats)},
            arithmetic=rough,
            compared="the checkpoint's weights, in fp32",
            verdict=None,
        )
    own = rounded.own
    verdict, reason = _weights(own)
    formats = Counter(kept.format for kept in own.kept)
    floats: dict[str, list[str]] = {}
    for kept in own.kept:
        if kept.name is None:
            floats.setdefault(kept.format, []).extend(kept.parameters)
    what = "dequantised" if any(kept.name for kept in own.kept) else "rounded"
    return PrecisionRecord(
        formats=dict(formats),
        arithmetic=rough,
        compared=f"its own {what} weights, loaded into transformers; both in fp32 arithmetic",
        verdict=verdict,
        reason=reason,
        matrices=tuple(_matrix(kept) for kept in own.kept if kept.name),
        floats={dtype: tuple(names) for dtype, names in floats.items()},
        offsets=dict(own.offset),
        missing=tuple(own.missing),
    )


def _matrix(kept: Kept) -> MatrixRecord:
    found = kept.rounding
    return MatrixRecord(
        stored=kept.name or "",
        parameters=kept.parameters,
        format=kept.format,
        error=None if found is None else found.error,
        steps=None if found is None else found.worst,
        fault=kept.fault,
    )


def _weights(own: Own) -> tuple[Verdict, str | None]:
    """The verdict on the stored weights. What is near nothing makes the comparison invalid: it may be right."""
    strange = [kept for kept in own.kept if kept.fault and not kept.parameters]
    wrong = [kept for kept in own.kept if kept.fault and kept.parameters]
    if strange:
        return Verdict.INVALID, f"{strange[0].name} cannot be matched: {strange[0].fault}"
    lost = [name for name in own.missing if name not in own.near]
    if lost and own.unexplained:
        return Verdict.INVALID, f"{lost[0]} is not found, and {own.unexplained[0]} is near no parameter"
    if wrong and all(kept.rounding is not None and kept.rounding.compensated for kept in wrong):
        why = "rounding that makes up for its own errors (GPTQ) looks so, and so does another checkpoint"
        return Verdict.UNEXPLAINED, f"{wrong[0].name}: {wrong[0].fault}; {why}"
    if wrong:
        return Verdict.DIVERGES, f"{wrong[0].name}: {wrong[0].fault}"
    if lost:
        return Verdict.DIVERGES, f"{lost[0]} is nowhere in the package"
    if own.near:
        name, stored = next(iter(own.near.items()))
        return Verdict.DIVERGES, f"{stored} is nearly {name}, and not its values rounded"
    return Verdict.PROVEN, None


def findings(record: PrecisionRecord) -> Iterator[Finding]:
    """What the stored weights are called for."""
    faults = [matrix for matrix in record.matrices if matrix.fault]
    for matrix in faults:
        yield Finding(
            code="weight-beyond-its-bits" if matrix.parameters else "weight-unmatched",
            severity="error",
            where=matrix.stored,
            message=f"{matrix.fault}; {', '.join(matrix.parameters) or 'no parameter'}, {matrix.format}",
            remedy="Quantise the checkpoint's own weights again, rounding to nearest.",
        )
    if record.missing:
        yield Finding(
            code="weight-unmatched",
            severity="error",
            where=", ".join(record.missing[:3]),
            message=f"{len(record.missing)} matrices of the checkpoint are nowhere in the package as they should be",
            remedy="Export again; weights that were scaled, merged or smoothed cannot be held against this checkpoint.",
        )
    for dtype in sorted(set(record.offsets.values())):
        norms = [name for name, each in record.offsets.items() if each == dtype]
        yield Finding(
            code="norm-offset-rounded",
            severity="warning",
            where=norms[0] + (f" and {len(norms) - 1} more" if len(norms) > 1 else ""),
            message=f"1 + weight is stored rounded to {dtype}; transformers adds 1 in fp32 in every dtype",
            remedy="Store the sum in fp32, or the weight itself.",
        )


def with_quality(
    record: PrecisionRecord, truths: Truths, copy: Decoder | None, as_is: Decoder | None
) -> PrecisionRecord:
    """The record with what rounding costs."""
    return record.model_copy(update={"quality": quality.measure(truths, copy, as_is)})
