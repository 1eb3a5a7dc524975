"""The whole diagnosis: what differs, which of it is the cause, how far that is proved, and where it acts."""

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritas.checkpoint import Checkpoint, open_checkpoint
from paritas.diagnose.capture import capture
from paritas.diagnose.case import Case
from paritas.diagnose.diagnosis import Diagnosis, Proof, Whereabouts
from paritas.diagnose.edit import Edit
from paritas.diagnose.precise import beside, unproved
from paritas.diagnose.reproducer import Scene
from paritas.diagnose.runtime_bisect import bisect
from paritas.diagnose.where import look, shortest
from paritas.diagnose.why import Why, explain
from paritas.diagnose.witness import Clock
from paritas.progress import Progress, silent
from paritas.runtime.package import open_package
from paritas.verify.loading import check_installed


@dataclass(frozen=True)
class Diagnosed:
    """A diagnosis, and what a repair needs.

    Attributes:
        diagnosis: for people and programs.
        case: the package beside its reference.
        edit: the package's graph with the causes repaired; None if there is nothing to repair.
        scene: what a reproducer is cut out of; None if there is nothing to reproduce.
    """

    diagnosis: Diagnosis
    case: Case
    edit: Edit | None
    scene: Scene | None


def diagnose(
    package: str | Path, against: str | Path | Checkpoint, progress: Progress = silent, *, cache: bool = True
) -> Diagnosed:
    """Find out why ``package`` diverges from the checkpoint ``against``.

    Args:
        package: a folder, or a graph.
        against: a checkpoint folder, a GGUF file, or the checkpoint itself.
        progress: told of every stage.
        cache: whether the reference's answers are kept, and taken from where they were kept.

    Raises:
        ParitasError: the package or the checkpoint cannot be read; ``verify-needs-torch``.
        Invalid: the package cannot be run, or there is no reference.
    """
    check_installed()
    clock, opened, checkpoint = Clock(), open_package(package), open_checkpoint(against)
    found = beside(opened, checkpoint, progress, cache=cache)
    case, model = found.case, found.model
    seconds = {"reference": clock.lap()}
    why = explain(case, progress)
    seconds |= why.seconds
    clock.lap()
    where, scene, runtime = _where(case, why, model, progress)
    seconds["regions"] = clock.lap()
    diagnosis = Diagnosis(
        package=str(opened.folder),
        checkpoint=case.checkpoint.name,
        worst_floors=why.witness.floors,
        witnesses=why.witness.names,
        causes=(*why.causes, *unproved(case)),
        suspects=why.suspects,
        experiments=why.experiments,
        where=where,
        runtime=runtime,
        seconds=seconds,
    )
    del model, found
    gc.collect()  # transformers' modules are full of circles
    return Diagnosed(diagnosis, case, why.repair(case) if why.found.groups else None, scene)


def _where(
    case: Case, why: Why, model: Any, progress: Progress
) -> tuple[Whereabouts | None, Scene | None, tuple[str, ...]]:
    """Where it parts; and, of a package whose cause is not proved, with which settings of the runtime it does not."""
    beginning = shortest(why.witness) if why.witness.fails else None
    if beginning is None:
        return None, None, ()
    captured = capture(model, *beginning)
    where, alignment = look(case, captured, model, progress)
    scene = Scene(case.package, alignment, captured)
    if all(cause.proof is Proof.PROVED for cause in why.causes) and why.causes:
        return where, scene, ()
    progress("changing settings of the runtime", 0, 1)
    _, knobs = bisect(case.package, captured)
    return where, scene, tuple(knob.setting for knob in knobs if knob.vanishes)
