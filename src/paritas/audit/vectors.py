"""Where a vector comes from: a norm's weight under the ways exporters add its offset, a bias, several biases packed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from paritas.audit.match import Part
from paritas.audit.sources import Source
from paritas.casts import CASTS, Rows


def _offset(rows: Rows) -> Rows:
    return np.float32(1) + rows


def _offset_in(cast: Callable[[Rows], Rows]) -> Callable[[Rows], Rows]:
    """The sum of two numbers of a short type, in that type: formed in fp32 and rounded once, which is the same."""
    return lambda rows: cast(np.float32(1) + cast(rows))


# Exact first: where 1 + w is representable in bf16, the exporter is given the benefit of it.
TRANSFORMS: Mapping[str, Callable[[Rows], Rows]] = {
    "identity": lambda rows: rows,
    "1+w": _offset,
    "1+w in bf16": _offset_in(CASTS["bf16"]),
    "1+w in fp16": _offset_in(CASTS["fp16"]),
    "rounded to bf16": CASTS["bf16"],
    "rounded to fp16": CASTS["fp16"],
    "w-1": lambda rows: rows - np.float32(1),
}


def match_vector(values: Rows, dtype: str, found: Sequence[Source], hint: Sequence[str]) -> tuple[Part, ...]:
    """Parts that explain ``values``, or nothing."""
    vectors = [source for source in found if source.values is not None]
    cast = CASTS.get(dtype, CASTS["fp32"])
    same = sorted((s for s in vectors if s.values is not None and s.values.size == values.size), key=_by(hint))
    for transform, change in TRANSFORMS.items():
        equal = [s.name for s in same if s.values is not None and np.array_equal(cast(change(s.values)), values)]
        if equal:
            return (Part(equal[0], transform, 0, values.size, also=tuple(equal[1:])),)
    ordered = np.sort(values)
    for source in same:
        if source.values is not None and np.array_equal(np.sort(cast(source.values)), ordered):
            return (Part(source.name, "identity", 0, values.size, permuted=True),)
    return _packed(values, cast, vectors) or _picked(values, cast, vectors)


def match_stacked(rows: Rows, dtype: str, found: Sequence[Source]) -> tuple[Part, ...]:
    """Parts that explain a matrix whose rows are vectors of the checkpoint (norms of heads, biases of experts)."""
    width = rows.shape[1]
    likely = [s for s in found if s.values is not None and s.values.size > 1 and width % s.values.size == 0]
    parts = _packed(rows.reshape(-1), CASTS.get(dtype, CASTS["fp32"]), likely) if likely else ()
    return tuple(replace(part, start=part.start // width, stop=part.stop // width) for part in parts)


def _by(hint: Sequence[str]) -> Callable[[Source], bool]:
    return lambda source: source.name not in hint


def _packed(values: Rows, cast: Callable[[Rows], Rows], vectors: Sequence[Source]) -> tuple[Part, ...]:
    parts: list[Part] = []
    at = 0
    while at < values.size:
        for source in vectors:
            assert source.values is not None
            stop = at + source.values.size
            if stop <= values.size and np.array_equal(cast(source.values), values[at:stop]):
                parts.append(Part(source.name, "identity", at, stop))
                at = stop
                break
        else:
            return ()
    return tuple(parts)


def _picked(values: Rows, cast: Callable[[Rows], Rows], vectors: Sequence[Source]) -> tuple[Part, ...]:
    """Numbers of one vector in its order, with others between them: a bias out of biases packed by head."""
    for source in vectors:
        own = source.values
        if own is None or own.size <= values.size or not np.isin(values, own := cast(own)).all():
            continue
        at = 0
        for value in values:
            ahead = np.flatnonzero(own[at:] == value)
            if not ahead.size:
                break
            at += int(ahead[0]) + 1
        else:
            return (Part(source.name, "identity", 0, values.size),)
    return ()
