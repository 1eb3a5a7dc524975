"""What rounding costs, in three parts and altogether. None of it gates: a right package may be a coarse one.

graph         the package in fp32 arithmetic beside transformers with the package's own weights: nothing but rounding
weights       transformers with the package's weights beside transformers with the checkpoint's
activations   the package as shipped beside itself in fp32 arithmetic
package       the package as shipped beside transformers with the checkpoint's weights: what its user gets
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paritas.errors import Invalid
from paritas.runtime.decoder import Decoder
from paritas.verify.asking import one_pass
from paritas.verify.compare import Logits, blocks
from paritas.verify.evidence import QualityRecord
from paritas.verify.truth import Truth, Truths
from paritas.verify.verdict import PROVEN_FLOORS

Values = NDArray[np.float64]


@dataclass
class Tally:
    """Gathers two answers to the same tokens, position by position."""

    difference: float = 0.0
    divergences: list[Values] = field(default_factory=list[Values])
    same: int = 0
    flips: int = 0
    losses: list[Values] = field(default_factory=list[Values])

    def add(self, want: Logits, got: Logits, floors: Values, ids: Sequence[int]) -> None:
        """Of one sequence: logits ``[positions, vocab]``, floors ``[positions]``, the tokens that were fed."""
        for rows in blocks(len(want)):
            one, other = want[rows].astype(np.float64), got[rows].astype(np.float64)
            self.difference = max(self.difference, float(np.abs(one - other).max()))
            first, second = _log_softmax(one), _log_softmax(other)
            self.divergences.append(np.maximum((np.exp(first) * (first - second)).sum(axis=1), 0.0))
            same = one.argmax(axis=1) == other.argmax(axis=1)
            best = np.partition(one, -2, axis=1)[:, -2:]
            near = best[:, 1] - best[:, 0] < 2 * PROVEN_FLOORS * floors[rows]
            self.same += int(same.sum())
            self.flips += int((~same & ~near).sum())
            after = np.array(ids[rows.start + 1 : rows.stop + 1], np.int64)
            at = np.arange(len(after)), after
            self.losses.append(np.stack([-first[at], -second[at]]))

    def record(self, part: str, compared: str) -> QualityRecord:
        """The numbers."""
        divergences = np.concatenate(self.divergences)
        losses = np.concatenate(self.losses, axis=1)
        count = len(divergences)
        return QualityRecord(
            part=part,
            compared=compared,
            positions=count,
            difference=self.difference,
            kl=float(divergences.mean()),
            kl_error=float(divergences.std(ddof=1) / count**0.5) if count > 1 else 0.0,
            kl_p99=float(np.quantile(divergences, 0.99)),
            kl_max=float(divergences.max()),
            top1=self.same / count,
            flips=self.flips,
            perplexity=float(np.exp(losses[1].mean() - losses[0].mean())) if losses.shape[1] else 1.0,
        )


def _log_softmax(logits: Values) -> Values:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


PARTS: Mapping[str, str] = {
    "graph": "the package in fp32 arithmetic, beside transformers with the package's own weights",
    "weights": "transformers with the package's weights, beside transformers with the checkpoint's",
    "activations": "the package as shipped, beside itself in fp32 arithmetic",
    "package": "the package as shipped, beside transformers with the checkpoint's weights",
}


def measure(truths: Truths, exact: Decoder | None, shipped: Decoder | None) -> tuple[QualityRecord, ...]:
    """Every part that can be had.

    Args:
        truths: with a package's own weights.
        exact: the package in fp32 arithmetic; None if it cannot be.
        shipped: the package as it is; None if it does not run.
    """
    tallies = {part: Tally() for part in PARTS}
    for name, truth in truths.by_name.items():
        original = truths.rounded.original.get(name) if truths.rounded else None
        if original is None or truth.sequence.stepwise or not _plain(truth):
            continue
        ids = truth.sequence.ids
        pairs: dict[str, tuple[Logits | None, Logits | None, Values]] = {}
        whole, rough = _answer(exact, ids), _answer(shipped, ids)
        pairs["graph"] = truth.logits, whole, truth.floors
        pairs["weights"] = original.logits, truth.logits, original.floors
        pairs["activations"] = whole, rough, truth.floors
        pairs["package"] = original.logits, rough, original.floors
        for part, (want, got, floors) in pairs.items():
            if want is not None and got is not None and want.shape == got.shape and bool(np.isfinite(got).all()):
                tallies[part].add(want, got, floors, ids)
    return tuple(tally.record(part, PARTS[part]) for part, tally in tallies.items() if tally.divergences)


def _plain(truth: Truth) -> bool:
    """Running text and answers to prompts; the others are parts of them."""
    return truth.sequence.name in ("long", "window", "short") or truth.sequence.name.startswith("greedy")


def _answer(decoder: Decoder | None, ids: tuple[int, ...]) -> Logits | None:
    try:
        return None if decoder is None else one_pass(decoder, ids)
    except Invalid:
        return None
