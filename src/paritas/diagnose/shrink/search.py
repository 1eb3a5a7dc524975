"""Which sizes are the smallest that show the same cause: all from the smallest upwards, then each for itself."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paritas.progress import Progress, silent

Sizes = Mapping[str, Any]
"""Name of a size -> its value; ``layers`` are the numbers of those that stay."""
Shows = Callable[[Sizes], str | None]
"""Whether a model of these sizes shows the cause: None if so, else why not."""


@dataclass(frozen=True)
class Tried:
    """One candidate.

    Attributes:
        sizes: of it.
        why_not: None if it shows the cause.
        seconds: it took.
    """

    sizes: Sizes
    why_not: str | None
    seconds: float


class Budget:
    """What a search may cost.

    Args:
        steps: candidates.
        seconds: after which no candidate begins; None for no end.
    """

    def __init__(self, steps: int, seconds: float | None = None) -> None:
        self.steps = steps
        self._end = None if seconds is None else time.monotonic() + seconds

    def has(self, spent: int) -> bool:
        """Whether there is enough for one candidate more."""
        return spent < self.steps and (self._end is None or time.monotonic() < self._end)


class Search:
    """A search for the smallest sizes.

    Args:
        ladders: what each size may be, the smallest first.
        shows: makes a candidate, and says whether it shows the cause.
        budget: ends it.
        progress: told of each candidate.

    Attributes:
        tried: every candidate, in order.
        exhausted: whether the budget ended it.
    """

    def __init__(
        self, ladders: Mapping[str, Sequence[Any]], shows: Shows, budget: Budget, progress: Progress = silent
    ) -> None:
        self._ladders, self._shows, self._budget, self._progress = ladders, shows, budget, progress
        self.tried: list[Tried] = []
        self.exhausted = False

    def run(self) -> Sizes | None:
        """The smallest sizes that were found; None if none shows the cause."""
        found = self._first(self._together())
        if found is None:
            return None
        for name in found:
            found = self._first({**found, name: value} for value in self._below(name, found[name])) or found
        for layer in reversed(found.get("layers", ())):
            fewer = tuple(each for each in found["layers"] if each != layer)
            found = (self._first([{**found, "layers": fewer}]) if fewer else None) or found
        return found

    def _together(self) -> Iterator[Sizes]:
        """All sizes on the lowest rung, then all on the next."""
        for rung in range(max((len(rungs) for rungs in self._ladders.values()), default=1)):
            yield {name: rungs[min(rung, len(rungs) - 1)] for name, rungs in self._ladders.items()}

    def _below(self, name: str, value: Any) -> Sequence[Any]:
        rungs = self._ladders[name]
        return rungs[: rungs.index(value)]

    def _first(self, candidates: Iterator[Sizes] | Sequence[Sizes]) -> Sizes | None:
        """The first that shows the cause; None if the budget ends before."""
        for sizes in candidates:
            if any(each.sizes == sizes for each in self.tried):
                continue
            if not self._budget.has(len(self.tried)):
                self.exhausted = True
                return None
            self._progress("trying smaller models", len(self.tried), self._budget.steps)
            begun = time.monotonic()
            why_not = self._shows(sizes)
            self.tried.append(Tried(sizes, why_not, time.monotonic() - begun))
            if why_not is None:
                return sizes
        return None
