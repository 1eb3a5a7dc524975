"""Single numbers that a package stores rounded to fp16 or bf16, as it does with its weights."""

from dataclasses import dataclass

import numpy as np

from paritas.runtime.held import NARROW, Held
from paritas.verify.own import CASTS

FACTORS = ("multiplier", "scaling", "scale")
"""How transformers' names of factors end. An epsilon is none: what fp16 leaves of it is another number."""


@dataclass(frozen=True)
class Scales:
    """The single numbers of a graph.

    Attributes:
        values: (dtype, number).
    """

    values: frozenset[tuple[str, float]]

    @classmethod
    def of(cls, held: Held) -> "Scales":
        """Those that a graph holds."""
        single = (each.stored for each in held.floats if each.stored.size == 1)
        return cls(frozenset((each.dtype, float(each.vector()[0])) for each in single))

    def stored(self, value: float) -> float:
        """The value as the package has it: rounded, or as its inverse rounded; as it is, if it has that or none."""
        if ("fp32", float(np.float32(value))) in self.values or not value:
            return value
        for dtype in NARROW:
            if (dtype, rounded := _rounded(value, dtype)) in self.values:
                return rounded
            if (dtype, inverse := _rounded(1 / value, dtype)) in self.values:
                return 1 / inverse
        return value


def _rounded(value: float, dtype: str) -> float:
    return float(CASTS[dtype](np.array([value], np.float32))[0])
