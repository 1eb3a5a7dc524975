"""Which token comes next, in the semantics and the order of transformers' logits processors.

Repetition penalty, then temperature, then top-k (ties with the k-th are kept), then top-p (the smallest set
of most probable tokens that reaches it, never empty), then one draw. The draws come from numpy: the same seed
gives the same text here, not the same text as in torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paritas.errors import ParitasError, Unsupported


class Sampling(Protocol):
    """A way to choose the next token."""

    def choose(self, logits: NDArray[np.float32], seen: Sequence[int], random: np.random.Generator) -> int:
        """The next token.

        Args:
            logits: ``[vocab]`` at the last position; left as they are.
            seen: ids of the prompt and of all that has been generated.
            random: where draws come from.
        """
        ...


@dataclass(frozen=True)
class Greedy:
    """The best token; the first of several equal ones.

    Raises:
        ParitasError: ``sampling-invalid``.
    """

    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        _hold(self.repetition_penalty > 0, "repetition_penalty", self.repetition_penalty, "above 0")

    def choose(self, logits: NDArray[np.float32], seen: Sequence[int], random: np.random.Generator) -> int:
        """See :meth:`Sampling.choose`; nothing is drawn."""
        del random
        return int(_penalised(logits, seen, self.repetition_penalty).argmax())


@dataclass(frozen=True)
class Multinomial:
    """A draw from what temperature, top-k and top-p leave. ``top_k`` 0 and ``top_p`` 1.0 leave all.

    Raises:
        ParitasError: ``sampling-invalid``.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        _hold(self.temperature > 0, "temperature", self.temperature, "above 0 (greedy is another choice)")
        _hold(self.top_k >= 0, "top_k", self.top_k, "0 (all) or more")
        _hold(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _hold(self.repetition_penalty > 0, "repetition_penalty", self.repetition_penalty, "above 0")

    def choose(self, logits: NDArray[np.float32], seen: Sequence[int], random: np.random.Generator) -> int:
        """See :meth:`Sampling.choose`."""
        tokens, probabilities = self.distribution(logits, seen)
        return int(random.choice(tokens, p=probabilities))

    def distribution(
        self, logits: NDArray[np.float32], seen: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The tokens that are left, ``[kept]``, least probable first, and their probabilities ``[kept]``."""
        scores = _penalised(logits, seen, self.repetition_penalty).astype(np.float64) / self.temperature
        tokens = np.arange(len(scores), dtype=np.int64)
        if 0 < self.top_k < len(scores):
            tokens = np.flatnonzero(scores >= np.partition(scores, -self.top_k)[-self.top_k])
        tokens = tokens[np.argsort(scores[tokens], kind="stable")]
        probabilities = _softmax(scores[tokens])
        if self.top_p < 1:
            keep = np.cumsum(probabilities) > 1 - self.top_p
            keep[-1] = True
            tokens, probabilities = tokens[keep], probabilities[keep]
        return tokens, probabilities / probabilities.sum()


def of_package(search: Mapping[str, Any]) -> Sampling:
    """What a package itself asks for, in the ``search`` of its genai_config.json.

    Raises:
        Unsupported: ``search-unsupported`` if it asks for what is not done here.
        ParitasError: ``sampling-invalid``.
    """
    neutral = {"num_beams": 1, "no_repeat_ngram_size": 0, "min_length": 0}
    for name, value in neutral.items():
        if search.get(name, value) != value:
            raise Unsupported(
                "search-unsupported",
                f"the package asks for {name} {search[name]}",
                place="genai_config.json: search",
                hint="Choose another way to sample, or --greedy.",
            )
    penalty = float(search.get("repetition_penalty", 1.0))
    if not search.get("do_sample", False):
        return Greedy(penalty)
    return Multinomial(
        temperature=float(search.get("temperature", 1.0)),
        top_k=int(search.get("top_k", 0)),
        top_p=float(search.get("top_p", 1.0)),
        repetition_penalty=penalty,
    )


def _penalised(logits: NDArray[np.float32], seen: Sequence[int], penalty: float) -> NDArray[np.float32]:
    """Once for each token seen, however often: positive logits divided, negative ones multiplied."""
    if penalty == 1.0:
        return logits
    scores = logits.copy()
    tokens = np.unique(np.asarray(seen, np.int64))
    scores[tokens] = np.where(scores[tokens] < 0, scores[tokens] * penalty, scores[tokens] / penalty)
    return scores


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def _hold(right: bool, name: str, value: float, meaning: str) -> None:
    if not right:
        raise ParitasError("sampling-invalid", f"{name} is {value}", hint=f"Give a {name} {meaning}.")
