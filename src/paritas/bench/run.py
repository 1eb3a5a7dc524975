"""Measures in alternation: every cycle asks each once, and the first again as control; each second cycle backwards."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import psutil

from paritas.bench import statistics
from paritas.bench.entrant import Entrant
from paritas.bench.statistics import Ratio
from paritas.bench.task import Figures, Task
from paritas.errors import ParitasError
from paritas.progress import Progress, silent

BUSY = 0.15
"""Of all processors' time, what others may take before wall times are refused."""
_LISTENED = 0.5  # seconds


@dataclass(frozen=True)
class Machine:
    """Where it was measured, and how quiet it was.

    Attributes:
        processor: its name.
        cores: logical ones.
        busy: the part of their time that others took, before the start.
        load: the system's load average over a minute, before and after; None where the system has none.
        runtimes: versions.
    """

    processor: str
    cores: int
    busy: float
    load: tuple[float | None, float | None]
    runtimes: dict[str, str]


@dataclass(frozen=True)
class Result:
    """All that was measured.

    Attributes:
        task: what was asked.
        machine: where.
        names, notes: of the entrants.
        figures: of each entrant, a cycle each; the control's last.
        spread: by cost, how far the first and its control lie apart, as a ratio above 1.
        ratios: of each entrant but the first, by cost.
    """

    task: Task
    machine: Machine
    names: tuple[str, ...]
    notes: tuple[str, ...]
    figures: tuple[tuple[Figures, ...], ...]
    spread: dict[str, float]
    ratios: tuple[dict[str, Ratio], ...]


def bench(
    entrants: Sequence[Entrant], task: Task, cycles: int, *, busy_ok: bool = False, progress: Progress = silent
) -> Result:
    """Measure each entrant ``cycles`` times.

    Args:
        entrants: the first is what the others are held against.
        task: what to measure.
        cycles: at least 2.
        busy_ok: measure wall times although other programs are running.
        progress: told of every process.

    Raises:
        ParitasError: ``bench-machine-busy``; what a package is refused for.
        Invalid: ``bench-process-failed``; what a package cannot be run for.
    """
    busy, before = _busy(), _load()
    if task.clock == "wall" and busy > BUSY and not busy_ok:
        raise ParitasError(
            "bench-machine-busy",
            f"other programs take {busy:.0%} of the processors (load average {before}): wall times would measure them",
            hint="Wait until they have ended; or --clock cpu, which counts the process's own time; or --busy.",
        )
    asked = [*entrants, entrants[0]]
    figures: list[list[Figures]] = [[] for _ in asked]
    done, total = 0, cycles * len(asked)
    for cycle in range(cycles):
        order = range(len(asked)) if cycle % 2 == 0 else reversed(range(len(asked)))
        for index in order:
            progress("measuring", done, total)
            figures[index].append(asked[index].measure(task))
            done += 1
    progress("measuring", done, total)
    first, control = figures[0], figures[-1]
    chance = statistics.spread(first, control)
    return Result(
        task,
        Machine(_processor(), psutil.cpu_count() or 1, busy, (before, _load()), _runtimes()),
        tuple(each.name for each in entrants),
        tuple(each.note for each in entrants),
        tuple(map(tuple, figures)),
        chance,
        tuple(statistics.ratios(first, other, chance) for other in figures[1:-1]),
    )


def _busy() -> float:
    """The part of all processors' time that is taken while we only listen."""
    return psutil.cpu_percent(interval=_LISTENED) / 100


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123 - no file on other systems
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _runtimes() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("onnxruntime", "onnxruntime-genai", "torch", "transformers"):
        try:
            found[name] = version(name)
        except ImportError:  # PackageNotFoundError is one
            continue
    return found


def as_json(result: Result) -> dict[str, Any]:
    """The result as ``--json`` prints it."""
    entrants = [
        {
            "name": name,
            **({"note": note} if note else {}),
            "figures": list(map(dict, figures)),
            "against_first": {cost: vars(ratio) for cost, ratio in ratios.items()},
        }
        for name, note, figures, ratios in zip(
            result.names, result.notes, result.figures, ({}, *result.ratios), strict=False
        )
    ]
    control = {"figures": list(map(dict, result.figures[-1])), "spread": result.spread}
    return {"machine": vars(result.machine), "task": result.task.words, "entrants": entrants, "control": control}
