"""What a weight is, if it is not what belongs in its place: rounded, scaled, another tensor's, permuted, zero."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.audit.finding import layer_of
from paritas.audit.hashing import of_rows
from paritas.casts import CASTS
from paritas.diagnose.case import Case
from paritas.diagnose.slots import Slot

Rows = NDArray[np.float32]
_FEW = 0.1  # of the rows
_SHIFTS = 64  # values that a tensor may be read too early or too late


@dataclass(frozen=True)
class Likeness:
    """What was recognised.

    Attributes:
        word: for the kinds.
        fact: for people.
        facts: further values for the kinds.
    """

    word: str
    fact: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


def likeness(case: Case, slot: Slot, got: Rows, wanted: Rows, offset: float) -> Likeness:
    """What ``got`` is, beside ``wanted``; both with the offset that their side adds."""
    raw = wanted - np.float32(offset)
    for look in _LOOKS:
        if (found := look(got, wanted, raw, offset)) is not None:
            return found
    about = _scaled_by(got, wanted, _LAST_BIT.get(slot.use.record.dtype, 0.0))
    return _elsewhere(case, slot, got) or about or _unknown(got, wanted)


def _constant(got: Rows, wanted: Rows, raw: Rows, offset: float) -> Likeness | None:
    if got.size < 2 or not (got == got.flat[0]).all():
        return None
    value = float(got.flat[0])
    return Likeness("zero" if value == 0 else "constant", f"holds {value:g} everywhere", {"value": value})


def _offset_lost(got: Rows, wanted: Rows, raw: Rows, offset: float) -> Likeness | None:
    if offset and _near(got, raw):
        return Likeness("offset-missing", f"is the weight without the {offset:g} that the model adds")
    if not offset and _near(got, wanted + 1):
        return Likeness("offset-unwanted", "is 1 + the weight, where the model adds nothing")
    if offset and _near(got, wanted + np.float32(offset)):
        return Likeness("offset-twice", f"is the weight with {offset:g} added twice")
    return None


def _rounded(got: Rows, wanted: Rows, raw: Rows, offset: float) -> Likeness | None:
    for kind in ("bf16", "fp16"):
        cast = CASTS[kind]
        if offset and np.array_equal(got, cast(np.float32(offset) + cast(raw))):
            return Likeness("offset-rounded", f"is {offset:g} + weight formed in {kind}", {"type": kind})
        if np.array_equal(got, cast(wanted)) or np.array_equal(got, cast(raw) + np.float32(offset)):
            return Likeness("rounded", f"is rounded to {kind}", {"type": kind})
    return None


def _rows_wrong(got: Rows, wanted: Rows, raw: Rows, offset: float) -> Likeness | None:
    if got.shape[1] == 1:
        return None
    wrong = np.flatnonzero((got != wanted).any(axis=1))
    if not 0 < len(wrong) <= max(1, int(_FEW * len(got))):
        return None
    is_zero = not got[wrong].any()
    word = f"row{'s' if len(wrong) > 1 else ''} {', '.join(f'{row:,}' for row in wrong[:3])}"
    more = f" and {len(wrong) - 3:,} more" if len(wrong) > 3 else ""
    fact = f"{word}{more} of {len(got):,} {'hold zeros' if is_zero else 'are not the checkpoint' + chr(39) + 's'}"
    return Likeness("rows-zero" if is_zero else "rows-differ", fact, {"rows": tuple(int(r) for r in wrong)})


def _permuted(got: Rows, wanted: Rows, raw: Rows, offset: float) -> Likeness | None:
    if len(got) < 4 or not np.array_equal(_sorted(got), _sorted(wanted)):
        return None
    for width in _widths(len(got)):
        turned = wanted.reshape(-1, 2, width // 2, wanted.shape[1]).swapaxes(1, 2).reshape(wanted.shape)
        if np.array_equal(got, turned):
            return Likeness("interleaved", f"has the rows of each {width} in turn (rotated pairs side by side)")
        back = wanted.reshape(-1, width // 2, 2, wanted.shape[1]).swapaxes(1, 2).reshape(wanted.shape)
        if np.array_equal(got, back):
            return Likeness("uninterleaved", f"has the rows of each {width} in two halves (rotated pairs apart)")
    for width in _widths(len(got)):
        heads, others = (each.reshape(-1, width * wanted.shape[1]) for each in (got, wanted))
        if len(heads) > 1 and np.array_equal(_sorted(heads), _sorted(others)):
            return Likeness("heads-moved", f"has its heads of {width} rows in another order", {"width": width})
    return Likeness("permuted", "has its rows in another order")


def _columns_permuted(got: Rows, wanted: Rows, raw: Rows, offset: float) -> Likeness | None:
    """What a projection takes in another order: of o_proj, the heads or the numbers of a head."""
    if got.shape[1] < 4 or not np.array_equal(np.sort(got[0]), np.sort(wanted[0])):
        return None
    if not np.array_equal(_sorted(got.T), _sorted(wanted.T)):
        return None
    found = _permuted(np.ascontiguousarray(got.T), np.ascontiguousarray(wanted.T), raw.T, offset)
    fact = "has its columns in another order" if found is None else found.fact.replace("rows", "columns")
    return Likeness("heads-moved" if found and found.word == "heads-moved" else "columns-permuted", fact)


def _rows_moved(got: Rows, wanted: Rows, raw: Rows, offset: float) -> Likeness | None:
    """Rows of the tensor in other places: behind one that was left out or put in, each is a few too early or late."""
    if got.shape[1] < 4:
        return None
    hashes = [np.asarray(of_rows(each)).tolist() for each in (got, wanted)]
    places = {each: place for place, each in enumerate(hashes[1])}
    apart = [places[each] - place for place, each in enumerate(hashes[0]) if each in places]
    moved = [each for each in apart if each]
    if len(apart) <= (1 - _FEW) * len(got) or not moved:
        return None
    by = max(set(moved), key=moved.count)
    word = f"{abs(by)} too {'early' if by > 0 else 'late'}"
    return Likeness("rows-moved", f"has {len(moved):,} of its {len(got):,} rows in other places, most {word}")


def _misread(got: Rows, wanted: Rows, raw: Rows, offset: float) -> Likeness | None:
    """The tensor's values in its order, from another beginning: read at a wrong place of a file."""
    most = min(_SHIFTS, got.size // 4)  # what is left is far more than a coincidence
    for turned in (False, True):
        one, other = ((each.T if turned else each).ravel() for each in (got, wanted))
        for by in (*range(1, most + 1), *range(-most, 0)):
            first, second = (one[:-by], other[by:]) if by > 0 else (one[-by:], other[:by])
            if np.array_equal(first[:8], second[:8]) and np.array_equal(first, second):
                return Likeness("misread", f"is read {abs(by)} values too {'late' if by > 0 else 'early'}", {"by": by})
    return None


def _widths(rows: int) -> Iterator[int]:
    """Sizes that a head may have, the greatest first."""
    return (width for width in range(rows, 3, -1) if rows % width == 0 and width % 2 == 0)


def _sorted(rows: Rows) -> Rows:
    return rows[np.lexsort(rows.T[:16])]


def _negated(got: Rows, wanted: Rows, raw: Rows, offset: float) -> Likeness | None:
    return Likeness("negated", "has the other sign") if np.array_equal(got, -wanted) else None


def _transposed(got: Rows, wanted: Rows, raw: Rows, offset: float) -> Likeness | None:
    is_square = got.shape[0] == got.shape[1] > 1
    return Likeness("transposed", "is transposed") if is_square and np.array_equal(got.T, wanted) else None


_LAST_BIT = {"fp16": 2.0**-10, "bf16": 2.0**-7}


def _scaled(got: Rows, wanted: Rows, raw: Rows, offset: float) -> Likeness | None:
    return _scaled_by(got, wanted, 1e-5)


def _scaled_by(got: Rows, wanted: Rows, tolerance: float) -> Likeness | None:
    """By a factor that is further from 1 than the tolerance, which is relative to the largest value."""
    flat, other = got.reshape(-1).astype(np.float64), wanted.reshape(-1).astype(np.float64)
    square = float(other @ other)
    factor = float(flat @ other) / square if square else 0.0
    if not factor or np.abs(flat - factor * other).max() > tolerance * np.abs(flat).max():
        return None
    if abs(factor - 1) <= tolerance:
        return None
    return Likeness("scaled", f"is the weight times {factor:.9g}", {"factor": factor})


_LOOKS: tuple[Callable[[Rows, Rows, Rows, float], Likeness | None], ...] = (
    _constant,
    _offset_lost,
    _rounded,
    _rows_wrong,
    _permuted,
    _columns_permuted,
    _rows_moved,
    _misread,
    _negated,
    _transposed,
    _scaled,
)


def _near(got: Rows, wanted: Rows) -> bool:
    return bool(np.abs(got - wanted).max() <= 1e-6 * max(1.0, float(np.abs(wanted).max())))


def _elsewhere(case: Case, slot: Slot, got: Rows) -> Likeness | None:
    """The values of another tensor of the checkpoint."""
    others = [tensor for tensor in slot.use.record.tensors if tensor != slot.tensor]
    single = len(slot.use.record.tensors) == 1
    other = others[0] if others and single else _of_equal_values(case, slot, got)
    if other is None:
        return None
    is_layer = layer_of(other) != slot.layer
    word = "another-layer" if is_layer and _part(other) == _part(slot.tensor) else "another-tensor"
    return Likeness(word, f"holds the values of {other}", {"tensor": other})


def _of_equal_values(case: Case, slot: Slot, got: Rows) -> str | None:
    for name, source in case.identity.sources.items():
        first = source.first if source.values is None else source.values[:1]
        shape = (source.rows, source.columns) if source.values is None else (source.values.size, 1)
        if name == slot.tensor or shape != got.shape or not np.array_equal(first, got[0]):
            continue
        values = source.read(0, source.rows) if source.values is None else source.values.reshape(-1, 1)
        if np.array_equal(values, got):
            return name
    return None


def _part(tensor: str) -> str:
    return tensor.split(f".{layer_of(tensor)}.", 1)[-1]


_NO_WORD = frozenset({"near", "rows-differ", "rows-zero", "scaled", "rounded"})
"""What rounding of integers on another grid may look like too."""


def beyond_its_bits(case: Case, slot: Slot, found: Likeness) -> Likeness:
    """Of integers: why they are not the nearest to the checkpoint's, where that has been measured."""
    fault = case.faults.get(slot.use.record.name)
    return found if fault is None or found.word not in _NO_WORD else Likeness("beyond-its-bits", fault)


def _unknown(got: Rows, wanted: Rows) -> Likeness:
    apart = float(np.linalg.norm(got - wanted) / max(float(np.linalg.norm(wanted)), 1e-30))
    if not np.isfinite(apart):
        return Likeness("not-finite", "holds NaN or Inf")
    word = "unrelated" if apart > 0.7 else "near"
    return Likeness(word, f"relative L2 distance {apart:.1e} from the checkpoint's", {"distance": apart})
