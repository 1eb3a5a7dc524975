"""Where candidates are made and judged: config, checkpoint, package, diagnosis."""

import gc
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritas.diagnose.diagnosis import Diagnosis, Proof
from paritas.diagnose.run import Diagnosed, diagnose
from paritas.diagnose.shrink.candidates import smaller
from paritas.diagnose.shrink.exporter import Exporter, Refused
from paritas.diagnose.shrink.random_checkpoint import write_checkpoint
from paritas.diagnose.shrink.search import Sizes
from paritas.diagnose.shrink.shrunk import CHECKPOINT, PACKAGE
from paritas.diagnose.shrink.sizes import Source
from paritas.errors import ParitasError
from paritas.progress import Progress
from paritas.verify.loading import first_line, quiet

Tell = Callable[[Sizes, str | None], None]
"""Called with each candidate's sizes, and why it does not show the cause (None if it does)."""


@dataclass(frozen=True)
class Aim:
    """What a candidate has to show.

    Attributes:
        causes: codes that have to be proved.
        alone: whether no other cause may be proved.
    """

    causes: frozenset[str]
    alone: bool

    def missed(self, diagnosis: Diagnosis) -> str | None:
        """What a diagnosis proves instead; None if it proves the causes."""
        found = proved(diagnosis)
        if found == self.causes or (self.causes <= found and not self.alone):
            return None
        if not diagnosis.diverges:
            return f"it does not diverge ({diagnosis.worst_floors:.1f} floors)"
        return f"it proves {', '.join(sorted(found)) or 'no cause'}"


def proved(diagnosis: Diagnosis) -> frozenset[str]:
    """Codes of the causes that are proved."""
    return frozenset(cause.suspect.code for cause in diagnosis.causes if cause.proof is Proof.PROVED)


@dataclass(frozen=True)
class Shown:
    """A candidate that shows the cause."""

    folder: Path
    config: dict[str, Any]
    found: Diagnosed


class Bench:
    """Makes candidates and diagnoses them.

    Args:
        source: the model that is made smaller.
        exporter: makes the packages.
        aim: what a candidate has to show.
        work: a folder for what is made.
        tell: told of each candidate.
        progress: told of every stage.

    Attributes:
        best: the last candidate that shows the cause, which is the smallest.
    """

    def __init__(
        self, source: Source, exporter: Exporter, aim: Aim, work: Path, tell: Tell, progress: Progress
    ) -> None:
        self._source, self._exporter, self._aim = source, exporter, aim
        self._work, self._tell, self._progress = work, tell, progress
        self._number = 0
        self.best: Shown | None = None

    def shows(self, sizes: Sizes) -> str | None:
        """Make a model of these sizes; None if it shows the cause, else why not."""
        self._number += 1
        folder, config = self._work / str(self._number), smaller(self._source, sizes)
        found = self._judged(config, folder)
        why_not = found if isinstance(found, str) else None
        if not isinstance(found, str):
            if self.best is not None:
                shutil.rmtree(self.best.folder)
            self.best = Shown(folder, config, found)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        gc.collect()  # transformers' modules are full of circles
        self._tell(sizes, why_not)
        return why_not

    def _judged(self, config: dict[str, Any], folder: Path) -> Diagnosed | str:
        """The diagnosis if it shows the cause, else why not."""
        try:
            with quiet():
                write_checkpoint(config, folder / CHECKPOINT)
        except OSError:
            raise
        except Exception as error:  # what a class of transformers raises for sizes that it does not take is its own
            return f"transformers refuses it: {first_line(error)}"
        try:
            self._exporter.run(folder / CHECKPOINT, folder / PACKAGE)
            found = diagnose(folder / PACKAGE, folder / CHECKPOINT, self._progress, cache=False)
        except Refused as refusal:
            return f"the exporter refuses it: {refusal}"
        except ParitasError as error:
            return f"{error.code}: {error.fact}"
        return self._aim.missed(found.diagnosis) or found
