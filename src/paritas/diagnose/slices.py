"""Parts of a checkpoint's tensor that the graph holds one by one (q, k, v of a packed matrix): by value or by room."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paritas.audit.sources import Source

Rows = NDArray[np.float32]
Range = tuple[int, int]
_ALIKE = 0.9  # cosine of two rows of one tensor


def place_of(first: Rows, rows: int, source: Source) -> int | None:
    """The row of a tensor that a slice of ``rows`` rows begins at, by its first row; None if none is like it."""
    if source.values is not None or source.columns != len(first) or source.rows <= rows:
        return None
    whole = source.read(0, source.rows - rows + 1)
    lengths = np.linalg.norm(whole, axis=1) * np.linalg.norm(first)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = np.nan_to_num((whole @ first) / lengths)
    best = int(cosines.argmax())
    return best if cosines[best] > _ALIKE else None


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
