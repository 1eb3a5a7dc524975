"""The checkpoint tensor that a weight is nearest to, where none is equal: scaled, rounded, quantised, merged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paritas.audit.sources import CASTS, Rows, Source
from paritas.runtime.stored import BLOCK

_ALIKE = 0.9  # cosine of two rows of one tensor, whatever 4 bits did to it
Reader = Callable[[int, int], Rows]


@dataclass(frozen=True)
class Near:
    """Rows of a weight and the tensor they are nearest to.

    Attributes:
        tensor: of the checkpoint.
        start, stop: rows of the weight.
        factor: the weight is about this many times the tensor.
        error: relative L2 distance after that.
        worst: the largest difference after that.
        rounded: a cast after which the two are equal, or None.
    """

    tensor: str
    start: int
    stop: int
    factor: float
    error: float
    worst: float
    rounded: str | None


def nearest(rows: int, columns: int, read: Reader, matrices: Sequence[Source], hint: Sequence[str]) -> list[Near]:
    """Tensors that the rows are nearest to, one after the other; empty if the first is near none."""
    found: list[Near] = []
    at = 0
    same = sorted((s for s in matrices if s.columns == columns), key=lambda s: s.name not in hint)
    while at < rows:
        first = read(at, at + 1)[0]
        near = [source for source in same if at + source.rows <= rows and _cosine(first, source.first) > _ALIKE]
        if not near:
            break
        best = max(near, key=lambda source: _cosine(first, source.first))
        found.append(_measured(best, at, read))
        at += best.rows
    return found


def _cosine(one: Rows, other: Rows) -> float:
    norm = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(one @ other) / norm if norm else 0.0


def _measured(source: Source, at: int, read: Reader) -> Near:
    factor = _factor(read(at, at + 1)[0], source.first)
    step = max(1, BLOCK // source.columns)
    distance = length = worst = 0.0
    equal = {"bf16", "fp16"}
    for start in range(0, source.rows, step):
        stop = min(start + step, source.rows)
        got, wanted = read(at + start, at + stop), source.read(start, stop)
        equal = {name for name in equal if np.array_equal(CASTS[name](wanted), got)}
        wanted = wanted * np.float32(factor)
        difference = got - wanted
        distance += float(np.vdot(difference, difference))
        length += float(np.vdot(wanted, wanted))
        worst = max(worst, float(np.abs(difference).max()))
    error = (distance / length) ** 0.5 if length else float("inf")
    return Near(source.name, at, at + source.rows, factor, error, worst, next(iter(sorted(equal)), None))


def _factor(got: Rows, wanted: Rows) -> float:
    """The least-squares factor of a row; exactly one where it is one but for rounding or quantisation."""
    factor = float(got.astype(np.float64) @ wanted) / float(wanted.astype(np.float64) @ wanted)
    return 1.0 if abs(factor - 1) < 0.02 else factor
