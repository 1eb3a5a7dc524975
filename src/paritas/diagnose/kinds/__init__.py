"""Kinds of faults by name: what a difference of a parameter is called, how exporters come to it, who else met it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from paritas.diagnose.diagnosis import Suspect
from paritas.diagnose.difference import Difference, place
from paritas.diagnose.kinds import attention, experts, norms, numbers, rope, weights, wiring
from paritas.diagnose.kinds.base import Kind

KINDS: tuple[Kind, ...] = (
    *experts.KINDS,
    *weights.KINDS,
    *norms.KINDS,
    *rope.KINDS,
    *attention.KINDS,
    *numbers.KINDS,
    *wiring.KINDS,
)


@dataclass(frozen=True)
class Group:
    """Differences of one origin, and the suspect that they are.

    Attributes:
        suspect: for people.
        differences: its members.
    """

    suspect: Suspect
    differences: tuple[Difference, ...]

    def split(self) -> tuple["Group", ...]:
        """Each member alone."""
        return tuple(Group(_suspect(kind_of(each), each.parameter, (each,)), (each,)) for each in self.differences)


def kind_of(difference: Difference) -> Kind | None:
    """The first kind that recognises a difference."""
    return next((kind for kind in KINDS if kind.recognises(difference)), None)


def name(difference: Difference) -> Suspect:
    """A difference as a suspect; under its parameter's own name, if no kind recognises it."""
    return _suspect(kind_of(difference), difference.parameter, (difference,))


def groups(found: Sequence[Difference]) -> tuple[Group, ...]:
    """Differences of one kind and, of one fact, together."""
    together: dict[tuple[str, str], list[Difference]] = defaultdict(list)
    for difference in found:
        kind = kind_of(difference)
        together[kind.code if kind else difference.parameter, _origin(difference)].append(difference)
    return tuple(Group(_suspect(kind_of(each[0]), each[0].parameter, each), tuple(each)) for each in together.values())


def _origin(difference: Difference) -> str:
    """What differences of one kind share if they are one fault: of attributes the values, of weights the kind alone."""
    if difference.parameter in ("weight", "bias", "norm", "qk-norm", "attention-sinks"):
        return ""
    return str(difference.facts.get("origin", difference.fact))


def _suspect(kind: Kind | None, parameter: str, found: Sequence[Difference]) -> Suspect:
    where = place(found)
    more = f" ({len(found)} places)" if len(found) > 1 else ""
    fact = f"{found[0].where}: {found[0].fact}" if len({each.fact for each in found}) > 1 else found[0].fact
    return Suspect(
        code=kind.code if kind else f"{parameter}-differs",
        where=where,
        message=f"{fact}{more}",
        explanation=kind.explanation if kind else "",
        references=kind.references if kind else (),
    )
