"""Puts a right package to verify and to all of a diagnosis, and says who raised an alarm.

A diagnosis of a package that does not diverge ends after its first question. A fault elsewhere would have it read every
parameter and measure every region, so of a clean export they are read and measured here: what looks like a fault there
is a false suspect of every wrong package of that family.
"""

from pathlib import Path

from mutants.making import checkpoint, make
from mutants.mutant import Control
from mutants.scoring import Clock, Score, judged, verified
from paritas.diagnose import run
from paritas.diagnose.capture import capture
from paritas.diagnose.case import Case
from paritas.diagnose.kinds import groups
from paritas.diagnose.parameters import differences
from paritas.diagnose.where import look
from paritas.errors import ParitasError

TOKENS = 36  # of the sequence that regions are measured on


def of_control(control: Control, out: Path, root: Path) -> Score:
    """A right package: detected if somebody raised an alarm.

    Args:
        control: which.
        out: a folder that is not there yet, for the package.
        root: where checkpoints are kept.
    """
    score = Score(control.name, "", clean=control.is_clean)
    clock = Clock(score)
    try:
        with clock("make"):
            package = make(control, out, root)
        folder = checkpoint(control.checkpoint, root)
        with clock("verify"):
            verified(score, judged(package, folder))
        with clock("diagnose"):
            diagnosed = run.diagnose(package, folder)
        _diagnosed(score, diagnosed)
        if control.is_clean:
            with clock("suspects and regions"):
                _looked_through(score, diagnosed.case)
    except ParitasError as error:
        score.detected, score.reason = True, f"{error.code}: {error.fact}"
    except Exception as error:  # a crash of what is examined is a result, and has to be seen beside the others
        score.detected, score.reason = True, f"crashed: {type(error).__name__}: {error}"
    return score


def _diagnosed(score: Score, diagnosed: run.Diagnosed) -> None:
    found = diagnosed.diagnosis
    score.codes = tuple(cause.suspect.code for cause in found.causes)
    if found.diverges:
        score.detected, score.reason = True, f"diagnose says {found.worst_floors:,.0f} floors"


def _looked_through(score: Score, case: Case) -> None:
    """Every parameter, and every region on a sequence of some length with its decode."""
    suspects = [group.suspect for group in groups(differences(case))]
    sequences = [truth.sequence for truth in case.truths.by_name.values()]
    one = min(sequences, key=lambda each: abs(len(each.ids) - TOKENS))
    ids = one.ids[: 2 * TOKENS]
    prefill = one.prefill if 0 < one.prefill < len(ids) else None
    where, _ = look(case, capture(case.live.model, ids, prefill), case.live.model)
    score.codes += tuple(suspect.code for suspect in suspects)
    score.sources = tuple(dict.fromkeys(region.region for region in where.sources))
    if suspects or score.sources:
        words = [f"{suspect.code} at {suspect.where}" for suspect in suspects] + list(score.sources)
        score.detected, score.reason = True, "; ".join(filter(None, (score.reason, "suspected: " + ", ".join(words))))
