"""An earlier verification asked again: the same tokens, of this machine's reference and runtimes, beside its record."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paritas.checkpoint import Checkpoint, open_checkpoint
from paritas.errors import ParitasError
from paritas.progress import Progress, silent
from paritas.runtime.package import Package, open_package
from paritas.verify import provenance
from paritas.verify.evidence import Compact, Evidence, Record, read
from paritas.verify.loading import check_installed
from paritas.verify.probes import Sequence
from paritas.verify.rounded import truths_for
from paritas.verify.run import judge
from paritas.verify.truth import Truths


class Replayed(Record):
    """The worst floors of one probe in one runtime; None where nothing was measured."""

    probe: str
    runtime: str
    then: Compact | None
    now: Compact | None


@dataclass(frozen=True)
class Replay:
    """What was asked again.

    Attributes:
        evidence: of this run.
        rows: every probe and runtime of the record, beside this run.
    """

    evidence: Evidence
    rows: tuple[Replayed, ...]

    def summary(self) -> dict[str, Any]:
        """What the command gives with ``--json``."""
        return {**self.evidence.summary(), "replay": [row.model_dump(mode="json") for row in self.rows]}


def read_record(file: Path) -> Evidence:
    """The record in a file.

    Raises:
        ParitasError: ``replay-unreadable``.
    """
    try:
        return read(file)
    except (ValidationError, OSError) as error:
        fact = "it is not a record of this version" if isinstance(error, ValidationError) else str(error.strerror)
        raise ParitasError(
            "replay-unreadable",
            f"the record cannot be read: {fact}",
            place=str(file),
            hint="Give the evidence.json that a verification by this version wrote.",
        ) from None


def replay(
    record: Evidence,
    package: Path,
    against: Path | Checkpoint,
    runtimes: Collection[str] = (),
    progress: Progress = silent,
    *,
    cache: bool = True,
    power: bool = True,
) -> Replay:
    """Put the tokens of ``record`` to the reference, and to the runtimes that it names or those given.

    What was kept of the reference is taken if it was asked the same tokens.

    Raises:
        ParitasError: ``replay-another-checkpoint``, ``replay-another-package``, and as
            :func:`~paritas.verify.run.verify`.
    """
    check_installed()
    opened, checkpoint = open_package(package), open_checkpoint(against)
    check_same(record, opened, checkpoint)
    recorded = {
        each.name: Sequence(each.name, each.ids, each.prefill, each.stop, each.greedy, each.prompt)
        for each in record.sequences
    }
    power = power and bool(record.power)
    truths = truths_for(opened, checkpoint, progress, cache=True, power=power) if cache else None
    if truths is None or not _asked_the_same(truths, recorded):
        truths = truths_for(opened, checkpoint, progress, cache=False, power=power, recorded=recorded)
    asked = tuple(runtimes) or tuple(dict.fromkeys(probe.runtime for probe in record.probes))
    evidence = judge(opened, truths, asked, progress)
    return Replay(evidence, rows(record, evidence, asked))


def check_same(record: Evidence, package: Package, checkpoint: Checkpoint) -> None:
    """Refuse what the record is not about.

    Files that came to the package later (its card, which tells the verdict) are let be.
    """
    if (found := provenance.checkpoint_sha256(checkpoint)) != record.checkpoint.sha256:
        raise ParitasError(
            "replay-another-checkpoint",
            f"the record is about a checkpoint with sha256 {record.checkpoint.sha256[:12]}, and this has {found[:12]}",
            place=checkpoint.name,
            hint=f"Give the checkpoint that was {record.checkpoint.name}, or verify without --replay.",
        )
    files = {file.name: file.sha256 for file in provenance.package_records(package)}
    if changed := [file.name for file in record.package if files.get(file.name) != file.sha256]:
        raise ParitasError(
            "replay-another-package",
            f"the record is about another package: {', '.join(changed[:3])} changed or missing",
            place=str(package.folder),
            hint="Give the package as it was, or verify without --replay.",
        )


def rows(then: Evidence, now: Evidence, runtimes: Collection[str]) -> tuple[Replayed, ...]:
    """Every probe of the record that was put to ``runtimes``, beside the same one of this run."""
    found = {(probe.id, probe.runtime): probe.worst_floors for probe in now.probes}
    return tuple(
        Replayed(probe=each.id, runtime=each.runtime, then=each.worst_floors, now=found.get((each.id, each.runtime)))
        for each in then.probes
        if each.runtime in runtimes
    )


def _asked_the_same(truths: Truths, recorded: Mapping[str, Sequence]) -> bool:
    """Whether the tokens are those of the record, which does not say how the reference was asked."""
    return {name: replace(truth.sequence, stepwise=False) for name, truth in truths.by_name.items()} == recorded
