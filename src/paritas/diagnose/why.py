"""Why a package diverges: what differs, which of it explains everything, and how far that is proved."""

from collections.abc import Mapping
from dataclasses import dataclass

from paritas.diagnose.case import Case
from paritas.diagnose.diagnosis import Cause, Experiment, Suspect
from paritas.diagnose.edit import Edit
from paritas.diagnose.kinds import Group, groups
from paritas.diagnose.parameters import differences
from paritas.diagnose.proof import Proved, prove
from paritas.diagnose.search import Found, edited, find
from paritas.diagnose.witness import Clock, Witness
from paritas.progress import Progress, silent


@dataclass(frozen=True)
class Why:
    """All that experiments say of a package.

    Attributes:
        witness: on which it was measured.
        groups: every difference of a parameter, in suspects.
        found: the smallest set that explains everything.
        proved: how far.
        seconds: by stage.
    """

    witness: Witness
    groups: tuple[Group, ...]
    found: Found
    proved: Proved
    seconds: Mapping[str, float]

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Every parameter that differs."""
        return tuple(group.suspect for group in self.groups)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Of the divergence; none if there is none."""
        return self.proved.causes

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        """In the order in which they were made."""
        return (*self.found.experiments, *self.proved.experiments)

    def repair(self, case: Case) -> Edit:
        """The package's graph, as it is shipped, with the causes repaired."""
        return edited(case.shipped, self.found.groups)


def explain(case: Case, progress: Progress = silent, known: Mapping[str, float] | None = None) -> Why:
    """Find the causes of a package's divergence; of a package that does not diverge there are none.

    Args:
        case: the package and its reference.
        progress: told of every experiment.
        known: probe -> worst difference in floors of the raw session, of a verification that there has been.

    Raises:
        Invalid: the package does not run.
    """
    seconds: dict[str, float] = {}
    clock = Clock()
    progress("asking the package", 0, 1)
    witness = Witness(case, known)
    seconds["witness"] = clock.lap()
    found_groups: tuple[Group, ...] = ()
    if witness.fails:
        progress("reading parameters", 0, 1)
        found_groups = groups(differences(case))
    seconds["parameters"] = clock.lap()
    found = find(case, found_groups, witness, progress)
    seconds["search"] = clock.lap()
    proved = prove(case, found, witness, progress)
    seconds["proof"] = clock.lap()
    return Why(witness, found_groups, found, proved, seconds)
