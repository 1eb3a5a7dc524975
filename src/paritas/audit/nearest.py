"""The checkpoint tensor that a weight is nearest to, where none is equal: scaled, rounded, quantised, merged."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paritas.audit.sources import Source
from paritas.casts import CASTS, Rows
from paritas.runtime.stored import BLOCK

_ALIKE = 0.9  # cosine of two rows of one tensor, whatever 4 bits did to it
_FAR = 2.0  # steps
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
        off: of integers, the blocks that are too far from the tensor to be a rounding of it, the worst first.
    """

    tensor: str
    start: int
    stop: int
    factor: float
    error: float
    worst: float
    rounded: str | None
    off: tuple["Block", ...] = ()


@dataclass(frozen=True)
class Block:
    """A block of integers that shares a scale.

    Attributes:
        row, column: of its first element.
        steps: root of the mean of squares of its distance, in steps of its scale. Rounding to the nearest gives 0.3.
    """

    row: int
    column: int
    steps: float


@dataclass(frozen=True)
class Scales:
    """How far apart the numbers are that integers can say.

    Attributes:
        read: rows of the step of each element.
        block: columns that share a scale; 0 if whole rows do.
    """

    read: Reader
    block: int


def nearest(
    rows: int,
    columns: int,
    read: Reader,
    matrices: Sequence[Source],
    hint: Sequence[str],
    scales: Scales | None = None,
) -> list[Near]:
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
        found.append(_measured(best, at, read, scales))
        at += best.rows
    return found


def _cosine(one: Rows, other: Rows) -> float:
    norm = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(one @ other) / norm if norm else 0.0


def _measured(source: Source, at: int, read: Reader, scales: Scales | None) -> Near:
    factor = _factor(read(at, at + 1)[0], source.first)
    step = max(1, BLOCK // source.columns)
    distance = length = worst = 0.0
    equal = {"bf16", "fp16"}
    off: list[Block] = []
    for start in range(0, source.rows, step):
        stop = min(start + step, source.rows)
        got, wanted = read(at + start, at + stop), source.read(start, stop)
        equal = {name for name in equal if np.array_equal(CASTS[name](wanted), got)}
        wanted = wanted * np.float32(factor)
        difference = got - wanted
        distance += float(np.vdot(difference, difference))
        length += float(np.vdot(wanted, wanted))
        worst = max(worst, float(np.abs(difference).max()))
        if scales is not None:
            off += _far(difference, scales.read(at + start, at + stop), scales.block, at + start)
    error = (distance / length) ** 0.5 if length else float("inf")
    return Near(source.name, at, at + source.rows, factor, error, worst, next(iter(sorted(equal)), None), _worst(off))


def _far(difference: NDArray[np.floating], steps: Rows, size: int, start: int) -> Iterator[Block]:
    """Blocks whose distance no way of rounding explains: methods that round otherwise stay below one step."""
    columns = difference.shape[1]
    size = size or columns
    apart = np.divide(difference, steps, out=np.zeros_like(difference), where=steps > 0)
    apart = np.pad(apart, ((0, 0), (0, -columns % size))).reshape(len(apart), -1, size)
    far = np.sqrt((apart.astype(np.float64) ** 2).mean(axis=2))
    for row, block in zip(*np.nonzero(far > _FAR), strict=True):
        yield Block(start + int(row), int(block) * size, float(far[row, block]))


def _worst(found: list[Block]) -> tuple[Block, ...]:
    return tuple(sorted(found, key=lambda block: -block.steps))


def _factor(got: Rows, wanted: Rows) -> float:
    """The least-squares factor of a row; exactly one where it is one but for rounding or quantisation."""
    factor = float(got.astype(np.float64) @ wanted) / float(wanted.astype(np.float64) @ wanted)
    return 1.0 if abs(factor - 1) < 0.02 else factor
