"""Which matrix gets more bits: the cheapest removal of divergence first, until the budget is met.

Divergences of small, independent roundings add up (to second order the mean KL is a quadratic form in them), so that
each matrix is measured alone and a choice is predicted by their sum.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from paritas.errors import ParitasError
from paritas.weights import Storage


@dataclass(frozen=True)
class Level:
    """One way to store a matrix: bytes in the file, and the mean KL (nats) that it alone causes."""

    storage: Storage
    bytes: int
    kl: float


@dataclass(frozen=True)
class Budget:
    """What a package may cost: a mean KL in nats, or bytes of its data file; one of them."""

    kl: float | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Point:
    """One choice on the curve from the smallest package to the most exact one."""

    bytes: int
    kl: float


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        storage: of each matrix.
        bytes: of the data file.
        kl: predicted, the sum of what each matrix causes alone.
        curve: every step that was there to take, smallest first.
    """

    storage: Mapping[str, Storage]
    bytes: int
    kl: float
    curve: Sequence[Point] = field(default_factory=tuple[Point, ...])


@dataclass(frozen=True)
class _Step:
    name: str
    level: int
    bytes: int
    gain: float


def choose(levels: Mapping[str, Sequence[Level]], rest: int, budget: Budget) -> Choice:
    """The smallest package within a budget of divergence, or the most exact one within a budget of bytes.

    Args:
        levels: for each matrix, from the fewest bytes to the most.
        rest: bytes of everything else.
        budget: to be met.

    Raises:
        ParitasError: ``budget-unreachable``, with what can be reached.
    """
    at = dict.fromkeys(levels, 0)
    size = rest + sum(each[0].bytes for each in levels.values())
    kl = sum(each[0].kl for each in levels.values())
    if budget.bytes is not None and size > budget.bytes:
        raise _unreachable(f"--size-budget {budget.bytes:,} is below the smallest package, {size:,} bytes")
    curve, chosen = [Point(size, kl)], None if _unmet(size, kl, budget) else (dict(at), size, kl)
    for step in _steps(levels):
        if budget.bytes is not None and size + step.bytes > budget.bytes:
            chosen = chosen or (dict(at), size, kl)
        at[step.name], size, kl = step.level, size + step.bytes, kl - step.gain
        curve.append(Point(size, max(kl, 0.0)))
        if chosen is None and not _unmet(size, kl, budget):
            chosen = dict(at), size, kl
    if chosen is None and budget.kl is not None:
        raise _unreachable(f"--kl-budget {budget.kl:g} is below what the most exact package has, {kl:.2g}")
    at, size, kl = chosen or (at, size, kl)
    return Choice({name: levels[name][level].storage for name, level in at.items()}, size, max(kl, 0.0), curve)


def _unmet(size: int, kl: float, budget: Budget) -> bool:
    """Whether more bits are wanted: of a budget of bytes, as many as there are."""
    return budget.kl is None or kl > budget.kl


def _steps(levels: Mapping[str, Sequence[Level]]) -> Iterator[_Step]:
    """Every step up, the most divergence removed by a byte first; those of one matrix in their order."""
    left = dict.fromkeys(levels, 0)

    def next_step(name: str) -> _Step | None:
        at, each = left[name], levels[name]
        ahead = [
            _Step(name, i, each[i].bytes - each[at].bytes, each[at].kl - each[i].kl) for i in range(at + 1, len(each))
        ]
        return max(ahead, key=lambda step: step.gain / step.bytes, default=None)

    ahead = {name: step for name in levels if (step := next_step(name)) is not None}
    while ahead:
        best = max(ahead.values(), key=lambda step: step.gain / step.bytes)
        yield best
        left[best.name] = best.level
        following = next_step(best.name)
        if following is None:
            del ahead[best.name]
        else:
            ahead[best.name] = following


def _unreachable(fact: str) -> ParitasError:
    return ParitasError("budget-unreachable", fact, hint="Give a larger budget, or another block size with --quant.")
