"""Cosines and sines of a rotation, by position: a stored table, or what the graph computes of positions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate_part
from paritas.audit.masks import feeds
from paritas.audit.rope import formula
from paritas.audit.view import PASSES
from paritas.diagnose.case import Case

Rows = NDArray[np.float32]
_THROUGH = frozenset({*PASSES, "Gather", "Slice", "Concat", "Expand", "Mul"})
_COMPUTED = 256  # positions of a table that is computed
_ULP = {"fp32": 2**-23, "fp16": 2**-10, "bf16": 2**-7}
_LAST_BITS = 3 * 2**-23
_FREQUENCY = 1e-4  # relative; a frequency that a length changes is changed by more


@dataclass(frozen=True)
class Table:
    """A row a position.

    Attributes:
        cos, sin: ``[positions, pairs]``.
        dtype: of the stored table; ``fp32`` of a computed one.
        names: of the two values that the rotation takes.
        sources: of the two initializers; empty if it is computed.
        twice: how the graph has each column twice: ``halves``, ``neighbours``; empty if it has it once.
    """

    cos: Rows
    sin: Rows
    dtype: str
    names: tuple[str, str]
    sources: tuple[str, ...] = ()
    twice: str = ""
    kind: Any = np.float32

    def stored(self, name: str) -> str:
        """The initializer behind one of the two values."""
        return self.sources[self.names.index(name)] if self.sources else name

    def angles(self) -> Rows:
        """Of position 1: the inverse frequencies."""
        return np.arctan2(self.sin[1], self.cos[1])

    def amplitude(self) -> float:
        """What both are multiplied by."""
        at = min(1, len(self.cos) - 1)
        return float(np.hypot(self.cos[at], self.sin[at]).mean())

    def turns_like(self, other: "Table") -> bool:
        """Whether the frequencies and the factor are another table's, which may be longer."""
        return (
            self.cos.shape[1] == other.cos.shape[1]
            and np.allclose(self.angles(), other.angles(), rtol=_FREQUENCY, atol=0)
            and bool(abs(self.amplitude() / other.amplitude() - 1) < _FREQUENCY)
        )

    def words(self) -> str:
        """For people: theta, factor, attention factor."""
        amplitude = self.amplitude()
        more = "" if abs(amplitude - 1) < 1e-3 else f" times {amplitude:.5g}"
        partial = f", {2 * self.cos.shape[1]} dimensions"
        return formula(self.angles()) + more + partial


def beginning(got: Table, wanted: Table) -> str:
    """Where two tables begin to differ, where that is not at once."""
    if got.cos.shape != wanted.cos.shape:
        return ""
    far = np.maximum(np.abs(got.cos - wanted.cos), np.abs(got.sin - wanted.sin)).max(axis=1)
    first = int(np.flatnonzero(far > 1e-5)[0]) if (far > 1e-5).any() else int(far.argmax())
    return f"; from position {first:,} on, by up to {float(far.max()):.2g}"


def apart(got: Table, wanted: Table, places: NDArray[np.int64] | None = None) -> bool:
    """Whether two tables differ by more than rounding of angles and of the table's type.

    Args:
        got: a table.
        wanted: the right one.
        places: positions of their rows; None: from the first on.
    """
    at = np.arange(len(got.cos)) if places is None else places
    frequencies = np.ones(1, np.float32) if len(wanted.cos) < 2 else np.abs(wanted.angles())
    allowed = at.astype(np.float32)[:, None] * frequencies * np.float32(_LAST_BITS)
    allowed = (allowed + np.float32(_ULP.get(got.dtype, 2**-23))) * np.float32(max(1.0, wanted.amplitude()))
    return bool((np.abs(got.cos - wanted.cos) > allowed).any() or (np.abs(got.sin - wanted.sin) > allowed).any())


def others(case: Case, layer: int, count: int) -> Callable[[Table], int | None]:
    """Another layer whose reference rotation a table is."""

    def look(table: Table) -> int | None:
        for other in case.live.facts:
            right = case.live.rope(other, np.arange(count)) if other != layer else None
            if (
                right is not None
                and right[0].shape == table.cos.shape
                and not apart(table, Table(*right, "fp32", ("", "")))
            ):
                return other
        return None

    return look


def read_table(case: Case, cos: str, sin: str) -> Table | None:
    """The table behind the two values that a rotation takes; None if it is neither stored nor computable."""
    stored = [_behind(case, name) for name in (cos, sin)]
    if stored[0] is not None and stored[1] is not None:
        arrays = [case.view.tensors[name].array() for name in stored if name is not None]
        rows = [array.reshape(-1, array.shape[-1]).astype(np.float32) for array in arrays]
        twice = twice_of(rows[0])
        dtype = case.view.tensors[stored[0]].dtype
        return Table(
            once(rows[0], twice),
            once(rows[1], twice),
            dtype,
            (cos, sin),
            (stored[0], stored[1]),
            twice,
            arrays[0].dtype,
        )
    values = evaluate_part(case.view, [cos, sin], feeds(case.view, _COMPUTED, 0), _COMPUTED)
    if values is None:
        return None
    flat = [np.asarray(v, np.float32).reshape(-1, v.shape[-1]) for v in values]
    if any(len(each) != _COMPUTED for each in flat):
        return None
    twice = twice_of(flat[0])
    return Table(once(flat[0], twice), once(flat[1], twice), "fp32", (cos, sin), (), twice)


def twice_of(rows: Rows) -> str:
    """How each column stands twice among the columns of some rows: ``halves``, ``neighbours``; empty if it does not."""
    half = rows.shape[1] // 2
    if rows.shape[1] % 2 or not half:
        return ""
    if np.array_equal(rows[:, :half], rows[:, half:]):
        return "halves"
    return "neighbours" if np.array_equal(rows[:, ::2], rows[:, 1::2]) else ""


def once(rows: Rows, twice: str) -> Rows:
    """Each column once."""
    return {"halves": rows[:, : rows.shape[1] // 2], "neighbours": rows[:, ::2]}.get(twice, rows)


def widened(rows: Rows, twice: str) -> Rows:
    """Columns as often as the graph has them."""
    wide = {"halves": lambda: np.concatenate([rows, rows], axis=1), "neighbours": lambda: np.repeat(rows, 2, axis=1)}
    return wide[twice]() if twice else rows


def _behind(case: Case, name: str) -> str | None:
    for _ in range(12):
        if name in case.view.tensors:
            stored = case.view.tensors[name]
            return name if stored.is_float and stored.matrix[0] > 1 else None
        node = case.view.maker.get(name)
        if node is None or node.op_type not in _THROUGH or not node.input:
            return None
        name = node.input[0]
    return None
