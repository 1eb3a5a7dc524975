"""The whole way from a failing checkpoint to a folder that goes into an issue."""

import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from paritas.checkpoint import open_checkpoint
from paritas.checkpoint.opening import locate, text_only
from paritas.diagnose.diagnosis import RegionError
from paritas.diagnose.reproducer import write_reproducer
from paritas.diagnose.run import diagnose
from paritas.diagnose.shrink.bench import Aim, Bench, Shown, Tell, proved
from paritas.diagnose.shrink.exporter import Exporter, Refused
from paritas.diagnose.shrink.issue import write_issue
from paritas.diagnose.shrink.search import Budget, Search, Tried
from paritas.diagnose.shrink.shrunk import CHECKPOINT, PACKAGE, REPRO, Shrunk
from paritas.diagnose.shrink.sizes import ladders, open_source
from paritas.errors import ParitasError
from paritas.package.staging import check_writable, publish, staging
from paritas.progress import Progress, silent
from paritas.verify.loading import check_installed

STEPS = 40
"""Candidates, unless something else is said."""


def shrink(
    model: str,
    out: Path,
    exporter: Exporter,
    causes: Collection[str] = (),
    budget: Budget | None = None,
    name: str | None = None,
    tell: Tell = lambda sizes, why_not: None,
    progress: Progress = silent,
) -> Shrunk:
    """Find the smallest random model of which the exporter's package diverges for the same causes.

    Args:
        model: checkpoint folder, GGUF file or Hub id.
        out: the folder for the issue; it appears whole, or not at all.
        exporter: makes the packages.
        causes: codes that have to be proved still, others may be; none: those that are proved of the model itself,
            and no other.
        budget: of candidates; :data:`STEPS` of them if None.
        name: what the exporter is called; None asks its environment.
        tell: told of each candidate.
        progress: told of every stage.

    Raises:
        ParitasError: ``output-exists``, ``output-unwritable``, ``shrink-export-failed``, ``nothing-to-shrink``,
            ``shrink-cause-unproved``, ``shrink-cause-lost``, and what opening the checkpoint and diagnosing raise.
    """
    check_installed()
    _check_output(out)
    source = open_source(text_only(open_checkpoint(model)))
    with staging(out) as folder:
        work = folder / "candidates"
        aim = Aim(frozenset(causes), alone=False)
        if not causes:
            aim = Aim(_own_causes(locate(model), work / "model", exporter, progress), alone=True)
        bench = Bench(source, exporter, aim, work, tell, progress)
        search = Search(ladders(source), bench.shows, budget or Budget(STEPS), progress)
        sizes = search.run()
        if sizes is None or bench.best is None:
            raise _lost(search.tried, aim, model)
        best, diagnosis = bench.best, bench.best.found.diagnosis
        region = _collect(best, folder)
        shrunk = Shrunk(
            out, tuple(sorted(aim.causes)), sizes, best.config, diagnosis, region, tuple(search.tried), search.exhausted
        )
        write_issue(shrunk, best.found.scene, exporter, name, folder)
        shutil.rmtree(work)
        publish(folder, out)
    return shrunk


def _check_output(out: Path) -> None:
    if os.path.lexists(out):
        raise ParitasError(
            "output-exists",
            "there is something already",
            place=str(out),
            hint="Choose another output, or remove it yourself.",
        )
    check_writable(out)


def _own_causes(model: Path, work: Path, exporter: Exporter, progress: Progress) -> frozenset[str]:
    """Codes of the causes that are proved of the model itself."""
    work.mkdir(parents=True)
    progress("exporting the model itself", 0, 1)
    try:
        exporter.run(model, work / PACKAGE)
    except Refused as refusal:
        raise ParitasError(
            "shrink-export-failed",
            f"the exporter makes nothing of the model: {refusal}",
            place=str(model),
            hint="Run the command by hand: only packages that there are can be diagnosed.",
        ) from None
    diagnosis = diagnose(work / PACKAGE, model, progress).diagnosis
    shutil.rmtree(work)
    if not diagnosis.diverges:
        raise ParitasError(
            "nothing-to-shrink",
            f"the exporter's package of the model is proven ({diagnosis.worst_floors:.1f} floors)",
            place=str(model),
            hint="Use it as it is.",
        )
    if not (found := proved(diagnosis)):
        raise ParitasError(
            "shrink-cause-unproved",
            "no cause is proved of the exporter's package of the model: nothing tells the same fault from another one",
            place=str(model),
            hint="Name the cause to look for with --cause, or see what paritas diagnose says.",
        )
    return found


def _lost(tried: Sequence[Tried], aim: Aim, model: str) -> ParitasError:
    said = tried[-1].why_not if tried else "nothing was tried within the budget"
    return ParitasError(
        "shrink-cause-lost",
        f"none of {len(tried)} random models shows {', '.join(sorted(aim.causes))}; of the last: {said}",
        place=model,
        hint="Allow more with --steps and --seconds; or the fault is in the weights themselves.",
    )


def _collect(best: Shown, folder: Path) -> RegionError | None:
    """Put the candidate's parts into the folder; the region of its reproducer, None if no region is wrong by itself."""
    region = None
    if best.found.diagnosis.where is not None and best.found.diagnosis.where.sources:
        region = write_reproducer(best.found.scene, best.found.diagnosis, folder / REPRO)
    for part in (CHECKPOINT, PACKAGE):
        (best.folder / part).rename(folder / part)
    return region
