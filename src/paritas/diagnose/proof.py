"""Proof of a cause, both ways and minimal.

1. The reference with the package's values gives the package's logits, at the gate.
2. The package with the reference's values gives the reference's logits, at the gate.
3. No proper subset does the second: each one left out is missed.
"""

from dataclasses import dataclass

from paritas.diagnose.case import Case
from paritas.diagnose.diagnosis import Cause, Experiment, Proof
from paritas.diagnose.difference import NotBrokenError, broken
from paritas.diagnose.kinds import Group
from paritas.diagnose.search import Found, edited
from paritas.diagnose.witness import Clock, Witness
from paritas.progress import Progress, silent
from paritas.verify.verdict import PROVEN_FLOORS


@dataclass(frozen=True)
class Proved:
    """What the experiments say of a set of suspects.

    Attributes:
        causes: each with how far it is proved.
        experiments: that were made.
        reproduced: worst difference of the broken reference from the package.
        repaired: worst difference of the repaired package from the reference.
    """

    causes: tuple[Cause, ...]
    experiments: tuple[Experiment, ...]
    reproduced: float
    repaired: float


def prove(case: Case, found: Found, witness: Witness, progress: Progress = silent) -> Proved:
    """Put the set into the reference, and leave each of it out of the package's repair.

    Args:
        case: the package.
        found: the smallest set that a search found.
        witness: on which it is measured.
        progress: told of every experiment.
    """
    if not found.groups:
        return Proved((), (), witness.floors, witness.floors)
    experiments = [_reproduction(case, found.groups, witness)]
    progress("putting the causes into the reference", 1, 2)
    reproduced = experiments[0].after
    missed = True
    if len(found.groups) > 1:
        for group in found.groups:
            experiment = _without(case, found, group, witness)
            experiments.append(experiment)
            missed = missed and experiment.after > PROVEN_FLOORS
    progress("putting the causes into the reference", 2, 2)
    proof = _proof(found.reaches and missed, reproduced <= PROVEN_FLOORS)
    causes = tuple(Cause(group.suspect, proof) for group in found.groups)
    return Proved(causes, tuple(experiments), reproduced, found.floors)


def _reproduction(case: Case, groups: tuple[Group, ...], witness: Witness) -> Experiment:
    clock = Clock()
    differences = [each for group in groups for each in group.differences]
    able = all(each.breaks is not None for each in differences)
    try:
        after = witness.reproduced(lambda: broken(differences)) if able else float("inf")
    except NotBrokenError:
        after = float("inf")
    codes = tuple(group.suspect.code for group in groups)
    change = "the reference with " + "; ".join(codes)
    return Experiment(change, "reference", codes, witness.floors, after, clock.seconds())


def _without(case: Case, found: Found, group: Group, witness: Witness) -> Experiment:
    clock = Clock()
    rest = tuple(each for each in found.groups if each is not group)
    after = witness.measure(edited(case.view, rest))
    codes = tuple(each.suspect.code for each in rest)
    change = f"all but {group.suspect.code}"
    return Experiment(change, "package", codes, found.floors, after, clock.seconds())


def _proof(repaired: bool, reproduced: bool) -> Proof:
    if repaired and reproduced:
        return Proof.PROVED
    if repaired:
        return Proof.REPAIRED
    return Proof.REPRODUCED if reproduced else Proof.NOT_PROVED
