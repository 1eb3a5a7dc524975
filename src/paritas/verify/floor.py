"""What the reference differs from itself, position by position: the unit in which every difference is shown.

The variants: fp64 in one pass; SDPA attention in one pass; step by step with a cache (for sequences that
are decoded); twice with every weight moved by a last bit at random. ``own[p]`` is the greatest of their
differences at position p, and at least the fp32 spacing of the largest logit there.

Why weights are nudged. The other variants share most of their kernels, and give the same bits at many
positions. Where a model is ill-conditioned (a softmax on a knife's edge, a norm of almost nothing) the package,
by other kernels, would be alone in showing it.

Why not ``own[p]`` alone. It is the largest of a few draws from a position's rounding noise, and the package is
one more draw; now and then all of them fall low. Difference in floors, per position, of right exports of tiny
random models (llama and gemma3_text; hidden 72-256, 2-7 layers, vocabulary 512-8192, 60 tokens) to two targets,
in one pass and step by step (``python benchmarks/floors.py --models 150``; ONNX Runtime 1.32, torch 2.13):

    floor                                    median   99 %   99.99 %    worst of 36,000   models beyond 5
    own[p] without nudged weights              1.04   2.05      4.11               5.12          1 of 150
    ... not below its 90th percentile          0.83   1.64      3.03               3.63          0 of 150
    own[p]                                     0.86   1.73      3.90               5.12          1 of 150
    ... not below its median                   0.81   1.64      3.49               4.57          0 of 150
    ... not below its 90th percentile          0.70   1.43      2.86               3.43          0 of 150
    ... its maximum                            0.58   1.21      2.00               2.40          0 of 150

A run asks about ten times the positions that one of these models was asked.

So ``floor[p]`` is the greater of ``own[p]`` and the 90th percentile of ``own`` over all positions of the
run: a position that shows less noise than nine tenths of its neighbours was lucky, not quiet. A percentile
and not the maximum, because one position with a huge floor (an attention sink at position 0) must not
excuse the others. A fault that is smaller than the model's own
noise is not seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paritas.errors import Invalid
from paritas.verify.compare import Logits, blocks, differ

USUAL = 0.9
"""The quantile of ``own`` over the run below which no floor lies."""

FP64, SDPA, STEPS = "fp64 eager, one pass", "fp32 SDPA, one pass", "fp32 eager, step by step"
NUDGED = tuple(f"fp32 eager, one pass, weights a last bit off ({number})" for number in (1, 2))
REROUTED = "fp32 eager, one pass, experts that tie chosen the other way"
"""See :mod:`paritas.verify.routing`: asked of a sequence from its first tie on, and no part of what is usual."""

STRANGE = 1000.0
"""An fp32 variant that is so many times further off than all others is another computation."""


@dataclass
class Noise:
    """Gathers what the variants show of one sequence.

    Attributes:
        spacing: ``[positions]``, the fp32 spacing of the largest logit.
        variants: name -> differences ``[positions]``, NaN where the variant does not reach.
    """

    spacing: NDArray[np.float64]
    variants: dict[str, NDArray[np.float64]] = field(default_factory=dict[str, NDArray[np.float64]])

    @classmethod
    def of(cls, reference: Logits) -> "Noise":
        """Of the reference's logits ``[positions, vocab]``.

        Raises:
            Invalid: ``reference-not-finite``.
        """
        largest = np.concatenate([np.abs(reference[rows]).max(axis=1) for rows in blocks(len(reference))])
        if not np.isfinite(largest).all():
            raise Invalid(
                "reference-not-finite",
                f"the reference's logits are NaN or Inf at position {int(np.argmin(np.isfinite(largest)))}",
                hint="Nothing can be compared with them: look for NaN in the checkpoint's weights.",
            )
        return cls(np.spacing(largest.astype(np.float32)).astype(np.float64))

    def add(self, variant: str, reference: Logits, logits: Logits) -> None:
        """What ``variant`` gives for the first positions of the sequence.

        Raises:
            Invalid: ``variant-not-finite``; the variant then says nothing.
        """
        found, _ = differ(reference[: len(logits)], logits)
        if not np.isfinite(found).all():
            raise Invalid("variant-not-finite", f"{variant}: the reference gives NaN or Inf")
        rest = np.full(len(reference) - len(logits), np.nan)
        self.variants[variant] = np.concatenate([found, rest])

    def cut(self, variant: str, first: int) -> None:
        """What ``variant`` shows before the position ``first`` does not count."""
        self.variants[variant][:first] = np.nan

    @property
    def quiet(self) -> NDArray[np.bool_]:
        """``[positions]`` that no tie of a router touches."""
        return np.isnan(self.variants.get(REROUTED, np.full(len(self.spacing), np.nan)))

    @property
    def own(self) -> NDArray[np.float64]:
        """``[positions]``, from this position's variants alone."""
        return self.without("")

    def without(self, variant: str) -> NDArray[np.float64]:
        """As :attr:`own`, had this variant not been asked."""
        return np.fmax.reduce([self.spacing, *(each for name, each in self.variants.items() if name != variant)])


def floors(noise: Mapping[str, Noise]) -> dict[str, NDArray[np.float64]]:
    """The floor of each sequence, ``[positions]``; see the top of this file."""
    usual = usual_floor([each.own[each.quiet] for each in noise.values()])
    return {name: np.maximum(each.own, usual) for name, each in noise.items()}


def strangers(noise: Mapping[str, Noise]) -> dict[str, str]:
    """The variants that are beyond rounding, each with the fact: as part of a floor they would excuse any fault.

    transformers 5.24 decodes a window of one token like this: its cache keeps everything, and logits are 2.9 off.
    fp64 is never one: what every fp32 variant computes by the same kernel (the tail of a GELU), it alone shows. Nor is
    what was asked for on purpose, the other choice of a router.
    """
    found: dict[str, str] = {}
    for variant in sorted({name for each in noise.values() for name in each.variants} - {FP64, REROUTED}):
        usual = usual_floor([each.without(variant)[each.quiet] for each in noise.values()])
        asked = [each for each in noise.values() if variant in each.variants]
        ratios = [np.nanmax(each.variants[variant] / np.maximum(each.without(variant), usual)) for each in asked]
        if max(ratios) > STRANGE:
            most = max(float(np.nanmax(each.variants[variant])) for each in asked)
            found[variant] = f"{most:.2g} from the reference, {max(ratios):,.0f} times what the others are: no rounding"
    return found


def usual_floor(own: Sequence[NDArray[np.float64]]) -> float:
    """The quantile :data:`USUAL` of all positions, one of the values itself; 0 if there are none."""
    together = np.concatenate(list(own))
    return float(np.quantile(together, USUAL, method="lower")) if together.size else 0.0
