"""Parts of a checkpoint's tensor that the graph holds one by one (q, k, v of a packed matrix): by value or by room."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paritas.audit.sources import Source

Rows = NDArray[np.float32]
Range = tuple[int, int]
_ALIKE = 0.9  # cosine of two rows of one tensor
_MOST = 0.5  # of the rows of a part


def place_of(part: Rows, source: Source) -> int | None:
    """The row of a tensor that a part of it begins at: its first row tells, and most others agree; None if none is."""
    rows = len(part)
    if source.values is not None or source.columns != part.shape[1] or source.rows <= rows:
        return None
    whole = source.read(0, source.rows)
    best = int(_cosines(whole[: source.rows - rows + 1], part[0]).argmax())
    agreeing = _cosines(whole[best : best + rows], part) > _ALIKE
    return best if agreeing[0] and agreeing.mean() > _MOST else None


def has_rows_of(part: Rows, source: Source) -> bool:
    """Whether rows of a part, in whatever order, are nearly rows of a tensor: a few of them tell."""
    if source.values is not None or source.columns != part.shape[1]:
        return False
    whole = source.read(0, source.rows)
    return all(_cosines(whole, part[at]).max() > _ALIKE for at in {0, len(part) // 2, len(part) - 1})


def _cosines(some: Rows, other: Rows) -> NDArray[np.float32]:
    """Of each row with the other's row, or with its only one."""
    lengths = np.linalg.norm(some, axis=-1) * np.linalg.norm(other, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num((some * other).sum(axis=-1) / lengths)


def gaps(covered: Iterable[Range], rows: int) -> Iterator[Range]:
    """Rows of a tensor that no slice has."""
    at = 0
    for start, stop in sorted(covered):
        if start > at:
            yield at, start
        at = max(at, stop)
    if at < rows:
        yield at, rows


def room_for(
    rows: int, columns: int, covered: Mapping[str, Sequence[Range]], shapes: Mapping[str, Range]
) -> tuple[str, int] | None:
    """The only gap of ``rows`` rows in a tensor that is partly there: tensor and first row."""
    found = [
        (tensor, start)
        for tensor, ranges in covered.items()
        for start, stop in gaps(ranges, shapes[tensor][0])
        if stop - start == rows and shapes[tensor][1] == columns
    ]
    return found[0] if len(found) == 1 else None
