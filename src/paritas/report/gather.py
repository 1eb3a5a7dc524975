"""What a report is made of, beside the verification or audit itself: names, the text of tokens, an audit."""

from pathlib import Path

from paritas.audit.run import Audit, audit
from paritas.checkpoint import Checkpoint, open_checkpoint
from paritas.diagnose.diagnosis import Diagnosis
from paritas.errors import ParitasError
from paritas.progress import Progress, silent
from paritas.report import build
from paritas.report.model import Report
from paritas.report.words import words_of
from paritas.verify.evidence import Evidence


def with_audit(
    evidence: Evidence,
    package: Path,
    against: Path | Checkpoint,
    progress: Progress = silent,
    diagnosis: Diagnosis | None = None,
) -> Report:
    """The report of a verification and of an audit of the same files; where those cannot be audited, it says why."""
    try:
        audited: Audit | ParitasError = audit(package, against, progress)
    except ParitasError as error:
        audited = error
    words = words_of(open_checkpoint(against).tokenizer_files)
    return build.of_verification(evidence, named(package), audited, words, diagnosis)


def of_export(evidence: Evidence, name: str, against: Path | Checkpoint) -> Report:
    """The report of the verification of a package that was exported just now, and will be called ``name``."""
    return build.of_verification(evidence, name, words=words_of(open_checkpoint(against).tokenizer_files))


def of_audit(audited: Audit) -> Report:
    """The report of an audit alone."""
    return build.of_audit(audited, named(audited.package))


def named(package: Path) -> str:
    """What people call a package: its folder's name, and the graph's if that was given alone."""
    path = package.resolve()
    return f"{path.parent.name}/{path.name}" if path.is_file() else path.name
