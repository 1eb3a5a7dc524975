"""Routers of experts: which tokens stand between two of them, and the same model with those chosen the other way.

A router takes the best scores. Where the last that it takes and the first that it leaves are as near as rounding,
rounding chooses, and the token is computed by another expert: logits then differ by thousands of floors, and those of
later tokens by less. transformers does that against itself now and then, by SDPA or by a last bit of its weights; a
package does it as seldom, at other tokens. So it is asked for on purpose: once over everything, with each such choice
made the other way. That is a variant of the reference like the others, from the first such token of a sequence on.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

USUAL = 0.9
"""The quantile of a router's noise over the tokens of a run: a token that was routed otherwise is no noise."""

TIE = 10.0
"""Two scores are a tie within so many times the router's noise: each may move by what proves a package, 5 floors."""

Scores = NDArray[np.float32]


@dataclass
class Heard:
    """Scores ``[tokens, experts]`` of every router over one sequence, and how many experts each takes."""

    parts: list[list[Scores]]
    chosen: list[int]

    def scores(self, router: int) -> Scores:
        """Of all calls together."""
        return np.concatenate(self.parts[router])


@dataclass(frozen=True)
class Ties:
    """Of one sequence: router -> token -> the expert that is taken, and the one that may be taken instead."""

    swaps: tuple[Mapping[int, tuple[int, int]], ...]

    @property
    def first(self) -> int | None:
        """The first token that stands between two experts; None if none does."""
        return min((token for each in self.swaps for token in each), default=None)


@dataclass
class Noises:
    """Gathers how far scores of each router move when nothing but rounding changes."""

    moved: list[list[NDArray[np.float32]]] = field(default_factory=list[list[NDArray[np.float32]]])

    def add(self, one: Heard, other: Heard) -> None:
        """Two passes over the same tokens."""
        for router in range(len(one.parts)):
            if router == len(self.moved):
                self.moved.append([])
            self.moved[router].append(np.abs(one.scores(router) - other.scores(router)).max(axis=1))

    def ties(self, heard: Heard) -> Ties:
        """Tokens whose last expert taken and first one left are within :data:`TIE` times the usual noise."""
        return Ties(tuple(self._ties(heard, router) for router in range(len(heard.parts))))

    def _ties(self, heard: Heard, router: int) -> Mapping[int, tuple[int, int]]:
        scores, taken = heard.scores(router), heard.chosen[router]
        if taken >= scores.shape[1]:
            return {}
        order = np.argsort(-scores, axis=1, kind="stable")
        last, left = order[:, taken - 1], order[:, taken]
        rows = np.arange(len(scores))
        near = TIE * float(np.quantile(np.concatenate(self.moved[router]), USUAL))
        tied = np.flatnonzero(scores[rows, last] - scores[rows, left] <= near)
        return {int(token): (int(last[token]), int(left[token])) for token in tied}


def routers(model: Any) -> list[Any]:
    """Modules that give scores of all experts, weights of those that are taken, and their numbers."""
    return [each for each in model.modules() if type(each).__name__.endswith("Router") and _taken(each) is not None]


def _taken(router: Any) -> int | None:
    """How many experts it takes for each token: its own number, or its configuration's (Gemma 4)."""
    taken = getattr(router, "top_k", None)
    return getattr(getattr(router, "config", None), "top_k_experts", None) if taken is None else int(taken)


@contextmanager
def hearing(model: Any) -> Generator[Heard]:
    """Within, what the routers of ``model`` say is written down."""
    found = routers(model)
    heard = Heard([[] for _ in found], [_taken(each) or 0 for each in found])

    def listen(number: int) -> Any:
        def hook(_module: Any, _given: Any, output: Any) -> None:
            heard.parts[number].append(output[0].float().numpy())

        return hook

    handles = [each.register_forward_hook(listen(number)) for number, each in enumerate(found)]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def rerouting(model: Any, ties: Ties) -> Generator[None]:
    """Within one run over a sequence, its ties are decided the other way.

    The expert's weight stays, being as good; where each expert has a scale of its own (Gemma 4), it has the new one's.
    """

    def turn(number: int) -> Any:
        seen = 0

        def hook(module: Any, _given: Any, output: Any) -> Any:
            nonlocal seen
            scores, weights, numbers = output
            numbers, weights = numbers.clone(), weights.clone()
            own = getattr(module, "per_expert_scale", None)
            for token in range(seen, seen + len(numbers)):
                if swap := ties.swaps[number].get(token):
                    row, shares = numbers[token - seen], weights[token - seen]
                    if not bool((row == swap[1]).any()):
                        if own is not None:
                            shares[row == swap[0]] *= own[swap[1]] / own[swap[0]]
                        row[row == swap[0]] = swap[1]
            seen += len(numbers)
            return scores, weights, numbers

        return hook

    handles = [each.register_forward_hook(turn(number)) for number, each in enumerate(routers(model))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
