"""From a verification or an audit to its report."""

from paritas.audit.run import Audit
from paritas.diagnose.diagnosis import Diagnosis
from paritas.errors import ParitasError
from paritas.report import diagnosing, tables, triage
from paritas.report.heatmap import heatmap
from paritas.report.model import Report, Section, Surroundings, Weights
from paritas.report.words import Words, no_words
from paritas.verify import provenance
from paritas.verify.evidence import Evidence


def of_verification(
    evidence: Evidence,
    package: str,
    audit: Audit | ParitasError | None = None,
    words: Words = no_words,
    diagnosis: Diagnosis | None = None,
) -> Report:
    """The report of a verification.

    Args:
        evidence: what it found.
        package: what to call the package.
        audit: what an audit of the same package found, or why there was none; None leaves the weights out.
        words: the text of token ids.
        diagnosis: why it diverges, if that was asked.
    """
    read = audit if isinstance(audit, Audit) else None
    sections: list[Section] = [
        triage.of_verification(evidence, read),
        *([] if diagnosis is None else [diagnosing.section(diagnosis)]),
        heatmap(evidence),
        tables.probes(evidence),
        tables.tokens(evidence, words),
    ]
    if (precision := tables.precision(evidence)) is not None:
        sections.append(precision)
    if read is not None:
        sections.append(tables.weights(read))
    elif isinstance(audit, ParitasError):
        sections.append(Weights(reason=str(audit)))
    sections += [tables.power(evidence), tables.surroundings(evidence)]
    return Report(
        created=evidence.created,
        paritas=evidence.paritas,
        package=package,
        checkpoint=evidence.checkpoint.name,
        verdict=evidence.verdict,
        worst_floors=evidence.worst_floors,
        headline=triage.headline(evidence),
        exit_code=evidence.exit_code,
        sections=tuple(sections),
    )


def of_audit(audit: Audit, package: str) -> Report:
    """The report of an audit alone: nothing was run, so there is no verdict."""
    here = Surroundings(environment=provenance.environment(), settings=None, checkpoint=None, package=())
    return Report(
        created=provenance.now(),
        paritas=provenance.version("paritas"),
        package=package,
        checkpoint=audit.checkpoint,
        verdict=None,
        worst_floors=None,
        headline=triage.audit_headline(audit),
        exit_code=audit.exit_code,
        sections=(triage.of_audit(audit), tables.weights(audit), here),
    )
