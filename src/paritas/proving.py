"""Proves a package that has just been written, before it gets its name; and what came of it."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paritas.errors import ParitasError
from paritas.progress import Progress

if TYPE_CHECKING:
    from paritas.checkpoint import Checkpoint
    from paritas.diagnose.diagnosis import Diagnosis
    from paritas.verify.drafting import DrafterEvidence
    from paritas.verify.evidence import Evidence
    from paritas.verify.verdict import Verdict


@dataclass
class Prover:
    """Called with the package's folder; adds to its ``evidence/`` and returns the verdict.

    Attributes:
        model: the checkpoint, or what a person calls it.
        name: the package's own.
        drafter: the checkpoint of its drafter, if it has one.
        progress: told of every step.
        cache: whether the reference's answers are kept.
        power: whether to measure what faults would have shown.
        evidence: of every package that was proven.
        diagnoses: of those that diverge.
        drafting: of their drafters.

    Raises:
        ParitasError: ``verify-needs-torch``.
    """

    model: "str | Path | Checkpoint"
    name: str
    drafter: str | Path | None
    progress: Progress
    cache: bool
    power: bool
    evidence: "list[Evidence]" = field(default_factory=list, init=False)  # pyright: ignore[reportUnknownVariableType]
    diagnoses: "list[Diagnosis]" = field(default_factory=list, init=False)  # pyright: ignore[reportUnknownVariableType]
    drafting: "list[DrafterEvidence]" = field(default_factory=list, init=False)  # pyright: ignore[reportUnknownVariableType]

    def __post_init__(self) -> None:
        from paritas.verify.loading import check_installed

        try:
            check_installed()
        except ParitasError as error:
            raise ParitasError(error.code, error.fact, hint=f"{error.hint} Without a proof: --no-verify") from error

    def __call__(self, folder: Path) -> str:
        """The verdict on the package in ``folder``, and on its drafter."""
        from paritas.checkpoint.opening import locate
        from paritas.diagnose.run import diagnose
        from paritas.report import gather, write
        from paritas.verify.levels import write_levels
        from paritas.verify.run import verify
        from paritas.verify.verdict import Verdict

        checkpoint = locate(self.model) if isinstance(self.model, str | Path) else self.model
        found = verify(folder, checkpoint, progress=self.progress, cache=self.cache, power=self.power)
        self.evidence.append(found)
        record = found.write(folder)
        write_levels(found, folder)
        write.write_page(gather.of_export(found, self.name, checkpoint), record.with_name(write.PAGE))
        if found.verdict in (Verdict.DIVERGES, Verdict.UNEXPLAINED):
            why = diagnose(folder, checkpoint, self.progress, cache=self.cache).diagnosis
            self.diagnoses.append(replace(why, package=self.name))  # it has another name as long as it is not proven
        elif self.drafter is not None:
            self._prove_drafter(folder, self.drafter)
        return str(self.verdict.value)

    def _prove_drafter(self, folder: Path, drafter: str | Path) -> None:
        from paritas.checkpoint import open_checkpoint
        from paritas.checkpoint.opening import locate
        from paritas.runtime.package import open_package
        from paritas.verify.drafting import verify_drafter

        target = open_checkpoint(locate(self.model)) if isinstance(self.model, str | Path) else self.model
        found = verify_drafter(open_package(folder), target, open_checkpoint(locate(drafter)), self.progress)
        found.write(folder)
        self.drafting.append(found)

    @property
    def verdict(self) -> "Verdict":
        """Of all that was judged."""
        from paritas.verify.verdict import combine

        return combine(each.verdict for each in (*self.evidence, *self.drafting))

    @property
    def exit_code(self) -> int:
        """Of the command that asked."""
        from paritas.verify.verdict import EXITS

        return int(EXITS[self.verdict])
