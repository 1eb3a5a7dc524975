"""A package's own weights, matched by value to the reference's parameters and put in their place.

A package of less than fp32 is right if it computes what transformers computes **with the weights that it stores**.
What it stores is first held against the checkpoint: a number of fp16 or bf16 has to be the parameter rounded once, an
integer the nearest point of its own grid. What is neither is never put into the reference.

Nothing is matched by name. A weight that lies in the wrong layer goes back to the layer it belongs to, so the
reference does not take part in the package's fault.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paritas.casts import CASTS, Rows
from paritas.runtime.held import NARROW, Float, Held
from paritas.runtime.quantized import Quantized
from paritas.verify.grids import Rounding, rounding

Hashes = NDArray[np.uint64]

_ALIKE = 0.85
"""Cosine of a row with itself in 2 bits or more."""
_SAMPLES = 8
_BLOCK = 1 << 20  # elements at a time
_MOST = 0.5  # of the rows of a parameter have to be found before the others are called wrong


@dataclass(frozen=True)
class Parameter:
    """One of the reference's.

    Attributes:
        name: transformers'.
        values: ``[rows, columns]``, fp32; writing into it changes the reference. A vector is one row.
        gathered: an embedding, whose rows are taken.
        used: text goes through it; the image half of a multimodal checkpoint is not.
        taken: a graph may take a part of it before it computes with it: one of several experts, rows of another table.
    """

    name: str
    values: Rows
    gathered: bool
    used: bool = True
    taken: bool = False

    @property
    def is_matrix(self) -> bool:
        """More than one row and column."""
        return min(self.values.shape) > 1


@dataclass(frozen=True)
class Kept:
    """How the package stores one parameter or, of integers, one initializer.

    Attributes:
        name: of the integers' initializer; None for floats, which are matched row by row.
        parameters: whose rows it has.
        format: ``fp16``, or ``int4 in blocks of 32, symmetric, fp32 scales``.
        rounding: what quantisation did; None for floats.
        fault: why it cannot be what the checkpoint says; None if it can.
    """

    name: str | None
    parameters: tuple[str, ...]
    format: str
    rounding: Rounding | None = None
    fault: str | None = None


@dataclass
class Own:
    """What was found.

    Attributes:
        kept: how each parameter is stored, integers first.
        offset: vectors that are stored as ``1 + w``, rounded after the sum: parameter -> dtype.
        missing: matrices of the reference that the package does not have in any form that is known.
        near: of those, the ones whose rows are nearly those of a stored tensor -> its name.
        unexplained: stored matrices that a missing one could be, and that are nothing's values.
    """

    kept: list[Kept] = field(default_factory=list[Kept])
    offset: dict[str, str] = field(default_factory=dict[str, str])
    missing: list[str] = field(default_factory=list[str])
    near: dict[str, str] = field(default_factory=dict[str, str])
    unexplained: list[str] = field(default_factory=list[str])


def install(held: Held, parameters: Sequence[Parameter]) -> Own:
    """Find the package's weights among the parameters, and write them there as far as they are right."""
    own, taken = Own(), set[str]()
    for weight in held.quantized.values():
        for role in (r for r, used in ((True, weight.gathered), (False, weight.multiplied)) if used):
            kept, found = _integers(weight, [p for p in parameters if p.is_matrix], gathered=role)
            own.kept.append(kept)
            taken |= found
    index = Index(held.floats, {p.values.shape[1] for p in parameters})
    for parameter in parameters:
        if parameter.name not in taken:
            _floats(parameter, index, own)
    lost = [parameter for parameter in parameters if parameter.name in own.missing]
    if lost:
        _look_for(lost, parameters, held.floats, own)
    return own


def _integers(weight: Quantized, parameters: Sequence[Parameter], *, gathered: bool) -> tuple[Kept, set[str]]:
    """Match one quantised weight, and write what it stores."""
    fit = [p for p in parameters if p.values.shape[1] == weight.columns]
    likely = [p for p in fit if p.gathered is gathered]
    places = list(_consecutive(weight, likely)) or _row_by_row(weight, likely) or list(_consecutive(weight, fit))
    covered = sum(len(place.rows) for place in places)
    names = tuple(dict.fromkeys(place.parameter.name for place in places))
    if not places:
        fault = f"{weight.rows:,} x {weight.columns:,}: near no parameter of the checkpoint"
        return Kept(weight.name, (), weight.format, None, fault), set()
    measured = rounding(weight, [(place.start, place.parameter.values, place.rows) for place in places])
    fault = measured.fault(weight)
    if fault is None and covered < weight.rows and _any(weight, places[-1].start + len(places[-1].rows)):
        fault = f"{weight.rows - covered:,} of its {weight.rows:,} rows are near no parameter's"
    for place in places:
        for start in range(0, len(place.rows), step := max(1, _BLOCK // weight.columns)):
            rows = place.rows[start : start + step]
            values, _ = weight.read(place.start + start, place.start + start + len(rows))
            place.parameter.values[rows] = values
    return Kept(weight.name, names, weight.format, measured, fault), set(names)


@dataclass(frozen=True)
class _Place:
    """Rows of a weight from ``start`` on are these rows of a parameter."""

    start: int
    parameter: Parameter
    rows: NDArray[np.intp]


def _any(weight: Quantized, start: int) -> bool:
    """Whether there is anything but zeros from a row on (rows may be padded)."""
    return start < weight.rows and bool(weight.read(start, weight.rows)[0].any())


def _consecutive(weight: Quantized, parameters: Sequence[Parameter]) -> Iterator[_Place]:
    """Whole parameters, one after the other: q, k, v; gate, up."""
    at, left = 0, list(parameters)
    while at < weight.rows:
        fit = [p for p in left if at + len(p.values) <= weight.rows]
        alike = [(_alike(weight, at, p.values), -order) for order, p in enumerate(fit)]
        if not alike or max(alike)[0] < _ALIKE:
            return
        best = fit[-max(alike)[1]]
        yield _Place(at, best, np.arange(len(best.values)))
        left.remove(best)
        at += len(best.values)


def _alike(weight: Quantized, at: int, values: Rows) -> float:
    """The mean cosine of some rows."""
    rows = np.unique(np.linspace(0, len(values) - 1, _SAMPLES).astype(int))
    stored = np.concatenate([weight.read(at + int(row), at + int(row) + 1)[0] for row in rows])
    return float(_cosines(stored, values[rows]).mean())


def _cosines(one: Rows, other: Rows) -> NDArray[np.float64]:
    """Of each row with the same row of the other; 1 where both are zero."""
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    dots = np.einsum("rc,rc->r", one, other, dtype=np.float64)
    both = ~one.any(axis=1) & ~other.any(axis=1)
    return np.where(both, 1.0, dots / np.where(norms, norms, np.inf))


_WORK = 10**11
"""Multiplications that finding rows in any order may take."""


def _row_by_row(weight: Quantized, parameters: Sequence[Parameter]) -> list[_Place]:
    """Rows in any order (heads permuted, gate and up interleaved): each to the nearest that is left."""
    count = sum(len(p.values) for p in parameters)
    if not parameters or weight.rows * count * weight.columns > _WORK:
        return []
    every = np.concatenate([p.values for p in parameters])
    owner = np.repeat(np.arange(len(parameters)), [len(p.values) for p in parameters])
    first = np.concatenate([np.arange(len(p.values)) for p in parameters])
    unit = every / np.maximum(np.linalg.norm(every, axis=1, keepdims=True), 1e-30)
    values, _ = weight.read(0, weight.rows)
    nearest = (values @ unit.T).argmax(axis=1)
    if _cosines(values, every[nearest]).min() < _ALIKE or len(set(nearest.tolist())) < weight.rows:
        return []
    places = [(row, int(n)) for row, n in enumerate(nearest)]
    return [_Place(row, parameters[int(owner[n])], first[n : n + 1]) for row, n in places]


class Index:
    """Rows of the package's float tensors, looked up by their hash."""

    def __init__(self, floats: Sequence[Float], columns: set[int]) -> None:
        self._columns, self._floats = columns, floats
        self._hashes: dict[tuple[str, bool, int], Hashes] = {}
        gathered: dict[tuple[str, bool, int], list[Hashes]] = {}
        for each in floats:
            for width, hashes in self._rows(each):
                for role in (r for r, used in ((True, each.gathered), (False, each.multiplied)) if used):
                    gathered.setdefault((each.stored.dtype, role, width), []).append(hashes)
        self._hashes = {key: np.unique(np.concatenate(each)) for key, each in gathered.items()}

    def share(self, rows: Rows, dtype: str, *, gathered: bool) -> float:
        """Of the rows, how many the package has in that dtype and for that use, 0 to 1."""
        known = self._hashes.get((dtype, gathered, rows.shape[1]))
        if known is None:
            return 0.0
        found = 0
        for start in range(0, len(rows), step := max(1, _BLOCK // rows.shape[1])):
            found += int(np.isin(_hashed(CASTS[dtype](rows[start : start + step])), known).sum())
        return found / len(rows)

    def packed(self, values: Rows) -> str | None:
        """The narrow dtype of a vector that has these values somewhere within it (biases of q, k, v), or None."""
        for each in self._floats:
            dtype, held = each.stored.dtype, each.stored
            if dtype in NARROW and held.matrix[0] == 1 and held.size > values.size:
                whole, part = held.vector(), CASTS[dtype](values)
                starts = np.flatnonzero(whole[: held.size - values.size + 1] == part[0])
                if any(np.array_equal(whole[start : start + values.size], part) for start in starts):
                    return dtype
        return None

    def _rows(self, each: Float) -> Iterator[tuple[int, Hashes]]:
        rows, width = each.stored.matrix
        if width in self._columns:
            yield width, np.concatenate([_hashed(block) for _, block in each.stored.blocks()])
        if rows in self._columns and rows > 1:  # stored the other way round
            yield rows, _hashed(np.ascontiguousarray(each.stored.vector().reshape(rows, width).T))
        if len(each.stored.shape) == 3 and each.stored.shape[1] in self._columns:  # each expert's the other way round
            turned = each.stored.vector().reshape(each.stored.shape).transpose(0, 2, 1)
            yield each.stored.shape[1], _hashed(np.ascontiguousarray(turned.reshape(-1, each.stored.shape[1])))


def _hashed(rows: Rows) -> Hashes:
    """One 64-bit number a row, of its bits; both zeros are one."""
    bits = np.ascontiguousarray(rows + np.float32(0)).view(np.uint32).astype(np.uint64)
    factors = np.random.default_rng(bits.shape[1]).integers(1, 1 << 63, bits.shape[1], np.uint64) * np.uint64(2)
    return ((bits + np.uint64(1)) * (factors + np.uint64(1))).sum(axis=1, dtype=np.uint64)


def _floats(parameter: Parameter, index: Index, own: Own) -> None:
    """In which dtype the package has a parameter; rounded to it, it is put in place."""
    values = parameter.values
    for role in (True, False) if parameter.gathered or parameter.taken else (False,):
        for dtype, cast in CASTS.items():
            if index.share(values, dtype, gathered=role) > _MOST:
                if dtype != "fp32":
                    values[:] = cast(values)
                own.kept.append(Kept(None, (parameter.name,), dtype))
                return
    if not parameter.used:
        return
    if parameter.is_matrix:
        own.missing.append(parameter.name)
    elif (dtype := index.packed(values[0])) is not None:
        values[:] = CASTS[dtype](values)
        own.kept.append(Kept(None, (parameter.name,), dtype))
    elif (dtype := _offset(values, index)) is not None:
        own.offset[parameter.name] = dtype


def _offset(values: Rows, index: Index) -> str | None:
    """The dtype to which ``1 + w`` was rounded, if the package has it so and that has lost anything."""
    whole = values + np.float32(1)
    for dtype in ("bf16", "fp16"):
        rounded = CASTS[dtype](whole)
        if not np.array_equal(rounded, whole) and any(index.share(rounded, held, gathered=False) for held in CASTS):
            return dtype
    return None


_NEAR = 0.99
"""Cosine of a row with itself after another factor, or with a few wrong numbers."""


def _look_for(lost: Sequence[Parameter], parameters: Sequence[Parameter], floats: Sequence[Float], own: Own) -> None:
    """Which stored matrices could be the lost parameters, and whether they nearly are."""
    for each in floats:
        if min(each.stored.matrix) < 2 or not (fit := [p for p in lost if p.values.shape[1] in each.stored.matrix]):
            continue
        whole = each.stored.vector().reshape(each.stored.matrix)
        near = [p.name for p in fit if any(_has_rows(way, p.values) for way in (whole, whole.T))]
        own.near |= dict.fromkeys(near, each.stored.name)
        if not near and (whole != whole.flat[0]).any() and not _explained(whole, each.stored.dtype, parameters):
            own.unexplained.append(each.stored.name)


def _has_rows(stored: Rows, values: Rows) -> bool:
    """Whether some of the rows of a parameter are nearly among the stored ones."""
    if stored.shape[1] != values.shape[1]:
        return False
    some = values[np.unique(np.linspace(0, len(values) - 1, _SAMPLES).astype(int))]
    norms = np.linalg.norm(stored, axis=1)[:, None] * np.linalg.norm(some, axis=1)[None]
    return float((np.abs(stored @ some.T) / np.maximum(norms, 1e-30)).max(axis=0).mean()) > _NEAR


def _explained(stored: Rows, dtype: str, parameters: Sequence[Parameter]) -> bool:
    """Whether most rows, of either orientation, are a parameter's, rounded."""
    for rows in (stored, np.ascontiguousarray(stored.T)):
        known = [_hashed(CASTS[dtype](p.values)) for p in parameters if p.values.shape[1] == rows.shape[1]]
        if known and np.isin(_hashed(rows), np.concatenate(known)).mean() > _MOST:
            return True
    return False
