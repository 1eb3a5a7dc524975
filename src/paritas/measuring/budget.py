"""From a plan of fp32 and a budget to the recipe that meets it, and the record of how it was found."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paritas.errors import ParitasError
from paritas.measuring.choose import Budget, Choice, Level, Point, choose
from paritas.measuring.matrices import Measured
from paritas.measuring.whole import written
from paritas.plan import Plan
from paritas.progress import Progress
from paritas.quant.packing import Packed
from paritas.quant.recipe import Recipe
from paritas.weights import Blocks, Float, Method, Weight

_ROUNDS = 4
_POINTS = 60
"""Of the curve, in the record."""


def within_budget(
    plan: Plan, wanted: Recipe, budget: Budget, folder: Path, progress: Progress
) -> tuple[Recipe, dict[str, Any]]:
    """Measure every matrix that ``wanted`` would round, and choose.

    Args:
        plan: of the same checkpoint in fp32.
        wanted: what a matrix is stored as at the least.
        budget: to be met.
        folder: where the package of fp32 is written for a while.
        progress: told of every matrix.

    Returns:
        The recipe, and the record.

    Raises:
        ParitasError: ``budget-unreachable``.
    """
    least = _least(plan, wanted)
    with written(plan, folder) as home:
        measured = Measured(home, plan, {name: plan.graph.matrices[name] for name in least})
        levels: dict[str, list[Level]] = {}
        for done, (name, how) in enumerate(least.items()):
            progress("measuring matrices", done, len(least))
            levels[name] = _levels(measured, name, plan.graph.matrices[name], how)
        rest = plan.bytes - sum(plan.graph.weights[name].bytes for name in least)
        return _meet(measured, levels, rest, wanted, budget)


def _least(plan: Plan, wanted: Recipe) -> Mapping[str, Blocks]:
    ways = {name: wanted.storage(name, weight.shape) for name, weight in plan.graph.matrices.items()}
    return {name: how for name, how in ways.items() if isinstance(how, Blocks)}


def _levels(measured: Measured, name: str, weight: Weight, how: Blocks) -> list[Level]:
    """The recipe's own, 8 bits, fp32. What 8 bits cause is told by their squared error: KL grows in proportion."""
    own, error = measured.alone(name, how)
    found = [Level(how, _bytes(weight, how), own)]
    if how.bits == 4:
        eight = replace(how, bits=8, method=Method.RTN, symmetric=True)
        share = measured.error(name, eight) / error if error else 0.0
        found.append(Level(eight, _bytes(weight, eight), own * share))
    return [*found, Level(Float.FP32, 4 * weight.size, 0.0)]


def _bytes(weight: Weight, how: Blocks) -> int:
    packed = Packed(weight.stored_as(how))
    return sum(part.bytes for part in (packed.integers, packed.scales, packed.zeros) if part is not None)


def _meet(
    measured: Measured, levels: Mapping[str, list[Level]], rest: int, wanted: Recipe, budget: Budget
) -> tuple[Recipe, dict[str, Any]]:
    """Choose by the sum, measure the whole, and choose more exactly where the sum was too small."""
    aim, rounds = budget, list[Point]()
    for _ in range(_ROUNDS):
        choice = choose(levels, rest, aim)
        whole = measured.kl({name: how for name, how in choice.storage.items() if isinstance(how, Blocks)})
        rounds.append(Point(choice.bytes, whole))
        if budget.kl is None or whole <= budget.kl:
            return wanted.choosing(choice.storage), _record(measured, levels, choice, whole, budget, rounds)
        aim = Budget(kl=0.95 * choice.kl * budget.kl / whole)
    raise ParitasError(
        "budget-unreachable",
        f"--kl-budget {budget.kl:g} was not met in {_ROUNDS} choices; the last has {rounds[-1].kl:.2g}",
        hint="Give a larger budget.",
    )


def _record(
    measured: Measured,
    levels: Mapping[str, list[Level]],
    choice: Choice,
    whole: float,
    budget: Budget,
    rounds: list[Point],
) -> dict[str, Any]:
    step = max(1, len(choice.curve) // _POINTS)
    return {
        "budget": {key: value for key, value in asdict(budget).items() if value is not None},
        "positions": measured.positions,
        "bytes": choice.bytes,
        "kl_predicted": choice.kl,
        "kl_measured": whole,
        "rounds": [asdict(point) for point in rounds],
        "curve": [asdict(point) for point in (*choice.curve[:-1:step], choice.curve[-1])],
        "matrices": {
            name: {
                "stored": str(choice.storage[name]),
                "levels": [{"stored": str(x.storage), "bytes": x.bytes, "kl": x.kl} for x in each],
            }
            for name, each in levels.items()
        },
    }
