"""Guesses at the next tokens, which a decoder then checks in one call: the text stays what it would be without them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from paritas.runtime.decoder import State

FIRST_WIDTH = 4
MOST = 8


Draft = Literal["auto", "assistant", "lookup", "none"]
"""Who is asked: ``auto`` is the package's own drafter (:mod:`paritas.runtime.assistant`), else the text so far."""


class Drafter(Protocol):
    """Something that guesses."""

    def draft(self, tokens: Sequence[int], state: State, room: int) -> list[int]:
        """Up to ``room`` tokens that may follow; none if there is nothing to go by.

        Args:
            tokens: the prompt and all that has been chosen.
            state: of the decoder after all of them but the last.
            room: the most that can be used.
        """
        ...

    def learn(self, drafted: int, accepted: int) -> None:
        """Told how many of its last guesses were right."""
        ...


class NoDrafts:
    """Guesses nothing: one token a call."""

    def draft(self, tokens: Sequence[int], state: State, room: int) -> list[int]:
        """Nothing."""
        del tokens, state, room
        return []

    def learn(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""


@dataclass
class PromptLookup:
    """What followed the last tokens when they stood in the text before (prompt lookup decoding).

    Needs no model, and helps where a text repeats itself: summaries, code, edits. It guesses more after guesses that
    were right, and fewer after wrong ones, because every guess costs the decoder a row.

    Attributes:
        longest, shortest: of the run of last tokens that is looked for, the longest that is found first.
        width: guesses at a time.
    """

    longest: int = 3
    shortest: int = 2
    width: int = FIRST_WIDTH

    def draft(self, tokens: Sequence[int], state: State, room: int) -> list[int]:
        """What followed the latest earlier occurrence of the last tokens."""
        del state
        for length in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            end = _before(tokens, tokens[-length:])
            if end is not None:
                return list(tokens[end : end + min(self.width, room)])
        return []

    def learn(self, drafted: int, accepted: int) -> None:
        """Twice as many after a whole guess that was right, down to one after one that was all wrong."""
        if accepted == drafted:
            self.width = min(2 * self.width, MOST)
        else:
            self.width = max(1, accepted)


def _before(tokens: Sequence[int], run: Sequence[int]) -> int | None:
    """Where the latest earlier occurrence of ``run``, which ends ``tokens``, ends; None if there is none."""
    run, length = list(run), len(run)
    for end in range(len(tokens) - 1, length - 1, -1):
        if tokens[end - 1] == run[-1] and list(tokens[end - length : end]) == run:
            return end
    return None
