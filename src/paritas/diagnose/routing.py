"""How a router's scores become the experts of a token and their weights: rules, and which of them numbers follow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
_CLOSE = 1e-4
_SCORING = ("softmax", "sigmoid", "none")


@dataclass(frozen=True)
class Rule:
    """One way.

    Attributes:
        scoring: of the scores: ``softmax`` over all experts, ``sigmoid``, or ``none``.
        chosen: experts for each token, those of the greatest scores.
        normalized: the weights of the chosen ones are divided by their sum.
    """

    scoring: str
    chosen: int
    normalized: bool

    def __str__(self) -> str:
        word = {"softmax": "softmax of all scores", "sigmoid": "sigmoid of each score", "none": "scores as they are"}
        ends = ", divided by the sum of the chosen" if self.normalized else ""
        return f"{word[self.scoring]}{ends}, {self.chosen} experts a token"

    def experts(self, scores: Rows) -> NDArray[np.int64]:
        """Numbers ``[tokens, chosen]``, the best first."""
        return np.argsort(-scores, axis=1, kind="stable")[:, : self.chosen]

    def weights(self, scores: Rows) -> Rows:
        """``[tokens, experts]``; 0 for those that are not chosen."""
        values = scores
        if self.scoring == "softmax":
            values = np.exp(scores - scores.max(axis=1, keepdims=True))
            values = values / values.sum(axis=1, keepdims=True)
        elif self.scoring == "sigmoid":
            values = 1 / (1 + np.exp(-scores))
        found, at = np.zeros_like(scores), self.experts(scores)
        np.put_along_axis(found, at, np.take_along_axis(values, at, 1), 1)
        return found / found.sum(axis=1, keepdims=True) if self.normalized else found


def rules(experts: int) -> Iterator[Rule]:
    """Every way that is known, of so many experts."""
    for scoring in _SCORING:
        for normalized in (False, True) if scoring != "none" else (False,):
            yield from (Rule(scoring, chosen, normalized) for chosen in range(1, experts + 1))


def rule_of(scores: Rows, weights: Rows, first: Sequence[Rule] = ()) -> tuple[Rule, float] | None:
    """The rule that makes ``weights`` of ``scores``, both ``[tokens, experts]``, and what it is multiplied by.

    One of ``first``, if it does; a rule without a factor before one with it. None if no rule that is known does.
    """
    chosen = int((np.abs(weights) > _CLOSE * np.abs(weights).max()).sum(axis=1).max())
    likely = [*first, *(rule for rule in rules(scores.shape[1]) if rule.chosen == chosen)]
    for is_scaled in (False, True):
        for rule in likely:
            made = rule.weights(scores)
            factor = float((made * weights).sum() / (made * made).sum()) if is_scaled else 1.0
            if np.abs(factor * made - weights).max() <= _CLOSE * np.abs(weights).max():
                return rule, 1.0 if abs(factor - 1) < _CLOSE else float(f"{factor:.5g}")
    return None
