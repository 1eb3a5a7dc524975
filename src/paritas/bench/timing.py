"""One process measures one way of running a model: load, prompts, steps, memory."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol

from paritas.bench.task import DISK, LOAD, LOADED, PEAK, Clock, Figures, Task
from paritas.peak import memory, peak_memory

_LOW = 10  # of so many values, the one that the fastest tenth does not exceed


class Runner(Protocol):
    """A model, loaded."""

    def start(self, tokens: int) -> Any:
        """The state after a prompt of so many tokens; its logits have been computed."""
        ...

    def step(self, state: Any) -> Any:
        """The state after one token more."""
        ...


def measure(load: Callable[[Task], Runner], task: Task, disk: int) -> Figures:
    """Every figure of the task.

    Args:
        load: loads the model; timed.
        task: what to do.
        disk: bytes of its files.
    """
    before = memory()
    with _timed(task.clock) as loading:
        runner = load(task)
    loaded = memory() - before
    figures: dict[str, float] = {}
    for tokens in task.prefill:
        figures[f"prefill@{tokens}"] = _prompt(runner, tokens, task)
    for tokens in task.decode:
        figures[f"decode@{tokens}"] = _steps(runner, tokens, task)
    return {**figures, LOAD: loading[0], LOADED: loaded, PEAK: peak_memory() - before, DISK: disk}


def low(values: list[float]) -> float:
    """The tenth percentile: what is slower was held up by something else."""
    return sorted(values)[len(values) // _LOW]


def _prompt(runner: Runner, tokens: int, task: Task) -> float:
    taken: list[float] = []
    for _ in range(1 + task.repeats):
        with _timed(task.clock) as spent:
            runner.start(tokens)
        taken += spent
    return low(taken[1:])


def _steps(runner: Runner, tokens: int, task: Task) -> float:
    state = runner.start(tokens)
    taken: list[float] = []
    for _ in range(task.WARM + task.steps):
        with _timed(task.clock) as spent:
            state = runner.step(state)
        taken += spent
    return low(taken[task.WARM :])


@contextmanager
def _timed(clock: Clock) -> Generator[list[float]]:
    """Within, time passes; afterwards the list has it."""
    now = time.perf_counter if clock == "wall" else time.process_time
    spent: list[float] = []
    start = now()
    yield spent
    spent.append(now() - start)
