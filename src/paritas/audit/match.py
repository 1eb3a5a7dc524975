"""Where an initializer's rows come from: a whole tensor, several packed, a slice of one, in order or permuted."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paritas.audit.hashing import Hashes
from paritas.audit.sources import Index, Source
from paritas.casts import CASTS, Rows

_MOST = 0.5  # of the rows have to be a tensor's own before the others are called wrong


@dataclass(frozen=True)
class Part:
    """Consecutive rows of an initializer, out of one checkpoint tensor.

    Attributes:
        tensor: of the checkpoint.
        transform: what was done to the values: ``identity``, ``1+w``, ``1+w in bf16``, ...
        start, stop: rows of the initializer (of its transposed, where it is stored so).
        source: first row in the checkpoint tensor.
        permuted: the rows are those of the tensor, in another order.
        wrong: rows of the initializer that are not the tensor's.
        also: other tensors of equal values.
    """

    tensor: str
    transform: str
    start: int
    stop: int
    source: int = 0
    permuted: bool = False
    wrong: tuple[int, ...] = ()
    also: tuple[str, ...] = ()


def match_whole(
    first: Rows, same: Callable[[Source], bool], index: Index, hint: Sequence[str], rows: int
) -> tuple[Part, ...]:
    """The tensor that begins with the row ``first`` and is the ``same`` altogether, or nothing.

    Where several tensors are equal (a tied head stored twice), one whose name is in ``hint`` is taken.
    """
    likely = _preferred((source for source in index.starting(first) if source.rows == rows), hint)
    equal = [source.name for source in likely if same(source)]
    return (Part(equal[0], "identity", 0, rows, also=tuple(equal[1:])),) if equal else ()


def match_rows(hashes: Hashes, index: Index, hint: Sequence[str]) -> tuple[Part, ...]:
    """Parts that explain the rows, or nothing: packed, permuted, sliced tensors, or one with some wrong rows."""
    found, owners = index.owners(hashes)
    if found.mean() <= _MOST / 2:
        return ()
    candidates = _preferred(owners, hint)
    return _one(hashes, index, candidates) or _packed(hashes, index, candidates)


def _preferred(found: Iterable[Source], hint: Sequence[str]) -> list[Source]:
    return sorted(found, key=lambda source: source.name not in hint)


def _one(hashes: Hashes, index: Index, candidates: Sequence[Source]) -> tuple[Part, ...]:
    """A whole tensor with some wrong rows, or in another order; or a slice of a tensor."""
    count = len(hashes)
    for source in candidates:
        own = index.of(source)
        if len(own) == count and (part := _compared(hashes, own, source.name, 0)):
            return (part,)
        if len(own) > count and (part := _slice(hashes, own, source.name) or _picked(hashes, own, source.name)):
            return (part,)
    return ()


def _compared(hashes: Hashes, own: Hashes, name: str, start: int) -> Part | None:
    same = hashes == own
    stop = start + len(hashes)
    if same.mean() > _MOST:
        return Part(name, "identity", start, stop, wrong=_numbers(~same, start))
    if np.array_equal(np.sort(hashes), np.sort(own)):
        return Part(name, "identity", start, stop, permuted=True)
    return None


def _slice(hashes: Hashes, own: Hashes, name: str) -> Part | None:
    for row in range(min(4, len(hashes))):
        for place in np.flatnonzero(own == hashes[row])[:8]:
            first = int(place) - row
            if first < 0 or first + len(hashes) > len(own):
                continue
            same = own[first : first + len(hashes)] == hashes
            if same.mean() > _MOST:
                return Part(name, "identity", 0, len(hashes), source=first, wrong=_numbers(~same, 0))
    return None


def _picked(hashes: Hashes, own: Hashes, name: str) -> Part | None:
    """Rows of a tensor in its order, with others between them: queries, keys or values out of rows packed by head."""
    order = np.argsort(own, kind="stable")
    at = order[np.minimum(np.searchsorted(own, hashes, sorter=order), len(own) - 1)]
    if not np.array_equal(own[at], hashes) or not (np.diff(at) > 0).all():
        return None
    return Part(name, "identity", 0, len(hashes), source=int(at[0]))


def _packed(hashes: Hashes, index: Index, candidates: Sequence[Source]) -> tuple[Part, ...]:
    """Several tensors, one after the other (q, k, v; gate, up); rows of padding may follow."""
    parts: list[Part] = []
    at, left = 0, list(candidates)
    while at < len(hashes):
        for source in left:
            own = index.of(source)
            if at + len(own) <= len(hashes) and (part := _compared(hashes[at : at + len(own)], own, source.name, at)):
                parts.append(part)
                left.remove(source)
                at += len(own)
                break
        else:
            break
    if at < len(hashes) and not parts:
        return _interleaved(hashes, index, candidates)
    return tuple(parts)


def _interleaved(hashes: Hashes, index: Index, candidates: Sequence[Source]) -> tuple[Part, ...]:
    """Whole tensors whose rows alternate (q, k, v by head group)."""
    together: list[Source] = []
    for source in candidates:
        if np.isin(index.of(source), hashes).all():
            together.append(source)
    if sum(len(index.of(source)) for source in together) != len(hashes):
        return ()
    starts = np.cumsum([0, *(len(index.of(source)) for source in together)])
    return tuple(
        Part(source.name, "identity", int(starts[i]), int(starts[i + 1]), permuted=True)
        for i, source in enumerate(together)
    )


def _numbers(mask: NDArray[np.bool_], start: int) -> tuple[int, ...]:
    return tuple(int(i) + start for i in np.flatnonzero(mask))


def match_columns(matrix: Rows, dtype: str, sources: Iterable[Source]) -> tuple[Part, ...]:
    """The tensor that a matrix is some columns of, or nothing: a layer stored [inputs, outputs] is packed so."""
    cast = CASTS.get(dtype, CASTS["fp32"])
    rows, columns = matrix.shape
    for source in sources:
        if source.rows != rows or source.columns <= columns:
            continue
        first = cast(source.first)
        for place in np.flatnonzero(first[: source.columns - columns + 1] == matrix[0, 0])[:8]:
            if np.array_equal(first[place : place + columns], matrix[0]):
                whole = cast(source.read(0, rows))[:, place : place + columns]
                if np.array_equal(whole, matrix):
                    return (Part(source.name, "columns", 0, rows, source=int(place)),)
    return ()
