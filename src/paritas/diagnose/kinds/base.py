"""What a kind of fault is: a difference of a parameter that exporters are known to make, with a name of its own."""

from collections.abc import Callable
from dataclasses import dataclass

from paritas.diagnose.difference import Difference


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        code: stable, kebab-case.
        parameter: of the differences that it is about.
        applies: whether a difference of that parameter is of this kind.
        explanation: how exporters come to it, in plain words.
        references: public issues with the same fault.
    """

    code: str
    parameter: str
    applies: Callable[[Difference], bool]
    explanation: str
    references: tuple[str, ...] = ()

    def recognises(self, difference: Difference) -> bool:
        """Whether a difference is of this kind."""
        return difference.parameter == self.parameter and self.applies(difference)


def always(_: Difference) -> bool:
    """Every difference of the parameter."""
    return True
