"""What is measured, and the figures that one process gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Clock = Literal["wall", "cpu"]
Figures = Mapping[str, float]
"""Cost by name (:attr:`Task.costs`): seconds, or bytes. What does not fit the context is absent."""

LOAD, LOADED, PEAK, DISK = "load", "loaded", "peak", "disk"
MEMORY = (LOADED, PEAK, DISK)
"""Costs in bytes: memory after loading and at most, above what the process had before; files of the package."""


@dataclass(frozen=True)
class Task:
    """What every process is asked.

    Attributes:
        decode: tokens before the steps that are timed, for each of the figures.
        prefill: tokens of a prompt that is timed as a whole, for each of the figures.
        steps: decoding steps that are timed; some more warm up.
        repeats: how often a prompt is timed; one more warms up.
        threads: within an operator.
        clock: ``wall``, or ``cpu``, the time of all threads of the process.
        runtime: of packages, ``onnxruntime`` or ``genai``.
    """

    decode: Sequence[int] = (128, 1024)
    prefill: Sequence[int] = (512,)
    steps: int = 24
    repeats: int = 3
    threads: int = 1
    clock: Clock = "wall"
    runtime: Literal["onnxruntime", "genai"] = "onnxruntime"

    WARM = 3  # steps before those that are timed

    @property
    def costs(self) -> tuple[str, ...]:
        """Names of all figures, in the order to show."""
        timed = (*(f"decode@{n}" for n in self.decode), *(f"prefill@{n}" for n in self.prefill))
        return (*timed, LOAD, *MEMORY)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max((*(n + self.WARM + self.steps for n in self.decode), *self.prefill), default=1)

    @property
    def words(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**vars(self), "decode": list(self.decode), "prefill": list(self.prefill)}

    def within(self, context: int | None) -> "Task":
        """What of it a context has room for."""
        if context is None:
            return self
        decode = tuple(n for n in self.decode if n + self.WARM + self.steps <= context)
        prefill = tuple(n for n in self.prefill if n <= context)
        return Task(decode, prefill, self.steps, self.repeats, self.threads, self.clock, self.runtime)
