"""The answer in a line, what a person should do next, and the findings in the order in which they help."""

from collections.abc import Iterator, Sequence

from paritas.audit.run import Audit
from paritas.report.model import ReportedFinding, Triage
from paritas.verify.evidence import Evidence
from paritas.verify.verdict import DIVERGES_FLOORS, PROVEN_FLOORS, Verdict

_ORDER = ("error", "warning", "note")
_SHOWN = 3
_BAD = frozenset({Verdict.DIVERGES, Verdict.UNEXPLAINED})
_RIGHT = frozenset({Verdict.PROVEN, Verdict.NOT_TESTED})


def of_verification(evidence: Evidence, audit: Audit | None) -> Triage:
    """What a verification, and perhaps an audit, come to."""
    found = _findings(evidence, audit)
    return Triage(
        steps=tuple(_steps(evidence, audit, [each for each in found if each.severity == "error"])),
        signatures=evidence.signatures,
        findings=found,
    )


def of_audit(audit: Audit) -> Triage:
    """What an audit alone comes to."""
    found = _findings(None, audit)
    errors = [each for each in found if each.severity == "error"]
    steps = [*_mend(errors)] if errors else ["No error in the files. Whether it computes right is not known yet."]
    return Triage(
        steps=(*steps, "Run paritas verify: it holds the package's logits against transformers."),
        signatures={},
        findings=found,
    )


def headline(evidence: Evidence) -> str:
    """The verdict in words."""
    worst = f"worst {floors(evidence.worst_floors)} floors"
    match evidence.verdict:
        case verdict if verdict is not Verdict.PROVEN and (stored := _stored(evidence)):
            return f"The stored weights are not right: {stored}"
        case Verdict.PROVEN:
            return f"It computes what transformers computes: {worst}, up to {PROVEN_FLOORS:g} is rounding."
        case Verdict.UNEXPLAINED:
            return f"More than rounding, no sure fault: {worst}, between {PROVEN_FLOORS:g} and {DIVERGES_FLOORS:g}."
        case Verdict.DIVERGES:
            return f"It does not compute what transformers computes: {worst}, beyond {DIVERGES_FLOORS:g} is a fault."
        case Verdict.INVALID:
            return "The comparison is not valid: nothing is proven about the package."
        case Verdict.NOT_TESTED:
            return "No probe could be asked: nothing is known about the package."


def audit_headline(audit: Audit) -> str:
    """The audit in words."""
    counts = {word: sum(each.severity == word for each in audit.findings) for word in _ORDER}
    return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts.items())


def floors(value: float | None) -> str:
    """A number of floors as people read it."""
    if value is None:
        return "no"
    if value != value or value == float("inf"):
        return "not finite"
    return f"{value:.1f}" if value < 100 else f"{float(f'{value:.3g}'):,.0f}" if value < 1e7 else f"{value:.1e}"


def _findings(evidence: Evidence | None, audit: Audit | None) -> tuple[ReportedFinding, ...]:
    """Errors first, and the audit's before the others: it reads what a verification only measures."""
    read = [ReportedFinding(source="audit", **vars(each)) for each in (audit.findings if audit else ())]
    seen = [ReportedFinding(source="verify", **each.model_dump()) for each in (evidence.findings if evidence else ())]
    return tuple(sorted([*read, *seen], key=lambda each: _ORDER.index(each.severity)))


def _steps(evidence: Evidence, audit: Audit | None, errors: Sequence[ReportedFinding]) -> Iterator[str]:
    read = [each for each in errors if each.source == "audit"]
    match evidence.verdict:
        case Verdict.PROVEN if read:
            yield "The logits are right, and the audit found errors that logits do not show: mend them first."
            yield from _mend(read)
        case Verdict.PROVEN:
            yield from _ship(evidence, audit)
        case Verdict.INVALID:
            remedies = dict.fromkeys(each.remedy for each in errors if each.source == "verify" and each.remedy)
            yield "Put the comparison right first: " + " ".join(list(remedies)[:2])
            yield from _mend(read)
        case Verdict.NOT_TESTED:
            yield "Give it a runtime that can be asked: the reasons stand below."
            yield from _mend(read)
        case verdict:
            yield "Do not ship it." + (
                " Verify it on another machine, and report it with evidence.json."
                if verdict is Verdict.UNEXPLAINED
                else ""
            )
            yield from _causes(evidence, audit, read)
    yield from _uncovered(evidence)


def _ship(evidence: Evidence, audit: Audit | None) -> Iterator[str]:
    warnings = dict.fromkeys(each.code for each in (audit.findings if audit else ()) if each.severity == "warning")
    yield f"Read the warnings ({', '.join(warnings)}), then ship it." if warnings else "Ship it."
    if evidence.precision is not None and evidence.precision.quality:
        yield "It is proven in its own precision. What that costs stands under Precision, for you to judge."


def _causes(evidence: Evidence, audit: Audit | None, read: Sequence[ReportedFinding]) -> Iterator[str]:
    worst = {runtime: _of(evidence, runtime) for runtime in dict.fromkeys(probe.runtime for probe in evidence.probes)}
    right = [runtime for runtime, verdicts in worst.items() if verdicts <= _RIGHT and Verdict.PROVEN in verdicts]
    wrong = [runtime for runtime, verdicts in worst.items() if verdicts & _BAD]
    if right and wrong:
        yield (
            f"{', '.join(right)} agrees on the same graph and {', '.join(wrong)} does not: look at genai_config.json, "
            "at the cache that the runtime keeps, or at the runtime itself."
        )
    if stored := _stored(evidence):
        yield f"Look at the stored weights, under Precision: {stored}"
    if read:
        yield from _mend(read)
        return
    for text in dict.fromkeys(evidence.signatures.values()):
        yield f"Look where it begins: {text}."
    if audit is None:
        yield "Run paritas audit: it reads the files for the cause, in seconds."
    else:
        yield "The audit found no error in the files that explains it."


def _stored(evidence: Evidence) -> str:
    """Why the weights that a package stores in less than fp32 are not right; empty if they are, or all is fp32."""
    precision = evidence.precision
    if precision is None or precision.verdict in (None, Verdict.PROVEN):
        return ""
    return precision.reason or "they are not the checkpoint's."


def _of(evidence: Evidence, runtime: str) -> set[Verdict]:
    return {probe.verdict for probe in evidence.probes if probe.runtime == runtime}


def _mend(errors: Sequence[ReportedFinding]) -> Iterator[str]:
    """A step for each of the first codes, with the places of all of its findings."""
    places: dict[tuple[str, str], list[str]] = {}
    for each in errors:
        places.setdefault((each.code, each.remedy), []).append(each.where)
    for (code, remedy), found in list(places.items())[:_SHOWN]:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        yield f"Mend {code} ({'; '.join(found[:_SHOWN])}{more}): {remedy}"
    if (rest := len(places) - _SHOWN) > 0:
        yield f"Then mend the other {rest} below." if rest > 1 else "Then mend the other one below."


def _uncovered(evidence: Evidence) -> Iterator[str]:
    """What a verdict does not cover."""
    missing = dict.fromkeys(probe.id for probe in evidence.probes if probe.verdict is Verdict.NOT_TESTED)
    asked = {probe.id for probe in evidence.probes if probe.verdict is not Verdict.NOT_TESTED}
    if never := [probe for probe in missing if probe not in asked]:
        yield f"No runtime answered {', '.join(never)}: the verdict does not cover what they would have crossed."
