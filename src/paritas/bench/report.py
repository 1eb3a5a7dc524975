"""What a person sees of a measurement: a row a cost, a column a package, and what of the ratios is chance."""

import statistics
import string
from collections.abc import Sequence

from rich.table import Table

from paritas.bench.run import Result
from paritas.bench.statistics import Ratio
from paritas.bench.task import DISK, LOAD, LOADED, MEMORY, PEAK, Figures

_RANGES = 2  # packages beside A for which a terminal has room
_TITLES = {LOAD: "load", LOADED: "memory, loaded", PEAK: "memory, peak", DISK: "on disk"}


def table(result: Result) -> Table:
    """Medians over the cycles, and how many times less each costs than A, with the range if there is room.

    ``=`` is within chance.
    """
    view = Table(box=None, header_style="bold", pad_edge=False)
    view.add_column("")
    letters = string.ascii_uppercase[: len(result.names)]
    for letter in letters:
        view.add_column(letter, justify="right")
        if letter != letters[0]:
            view.add_column(f"A/{letter}", justify="right")
    view.add_column("A/A", justify="right")
    for cost in result.task.costs:
        view.add_row(_TITLES.get(cost, cost), *_cells(result, cost))
    return view


def legend(result: Result) -> list[str]:
    """What the letters stand for, and what the figures depend on."""
    task, machine = result.task, result.machine
    load = " to ".join("unknown" if each is None else f"{each:.2f}" for each in machine.load)
    clock = "wall time" if task.clock == "wall" else "processor time of all threads"
    runtimes = ", ".join(f"{name} {version}" for name, version in machine.runtimes.items())
    return [
        *(
            f"{letter}  {name}{f' ({note})' if note else ''}"
            for letter, name, note in zip(string.ascii_uppercase, result.names, result.notes, strict=False)
        ),
        f"{clock}, {task.threads} thread{'s' if task.threads > 1 else ''} of {machine.cores} ({machine.processor}), "
        f"{task.runtime}, {len(result.figures[0])} cycles, load average {load}; {runtimes}",
        *_too_long(result),
    ]


def _too_long(result: Result) -> list[str]:
    timed = [cost for cost in result.task.costs if cost not in _TITLES]
    costs = [cost for cost in timed if any(cost not in one for each in result.figures for one in each)]
    more = result.task.WARM + result.task.steps
    return [f"-  does not fit the context: {', '.join(costs)}; decoding takes {more} tokens more"] if costs else []


def _cells(result: Result, cost: str) -> list[str]:
    first, *others = result.figures[:-1]
    cells = [_median(cost, first)]
    for figures, ratios in zip(others, result.ratios, strict=True):
        cells += [_median(cost, figures), _ratio(ratios.get(cost), ranges=len(others) <= _RANGES)]
    chance = result.spread.get(cost)
    return [*cells, "" if chance is None else f"\u00b1{chance - 1:.1%}"]


def _median(cost: str, figures: Sequence[Figures]) -> str:
    values = [each[cost] for each in figures if cost in each]
    if not values:
        return "-"
    middle = statistics.median(values)
    if cost in MEMORY:
        return f"{middle / 2**20:,.1f} MiB"
    return f"{middle:.2f} s" if cost == LOAD else f"{middle * 1e3:,.2f} ms"


def _ratio(ratio: Ratio | None, *, ranges: bool) -> str:
    if ratio is None:
        return "-"
    shown = f"{ratio.median:.2f}"
    if not ratio.different or shown == "1.00":
        return "="
    return f"{shown}x [{ratio.least:.2f}-{ratio.most:.2f}]" if ranges else f"{shown}x"
