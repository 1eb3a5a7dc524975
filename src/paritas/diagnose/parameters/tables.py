"""Cosines and sines of a rotation, by position: a stored table, or what the graph computes of positions."""

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


@dataclass(frozen=True)
class Table:
    """A row a position.

    Attributes:
        cos, sin: ``[positions, pairs]``.
        dtype: of the stored table; ``fp32`` of a computed one.
        names: of the two values that the rotation takes.
        sources: of the two initializers; empty if it is computed.
        doubled: whether the stored table has each column twice, in halves.
    """

    cos: Rows
    sin: Rows
    dtype: str
    names: tuple[str, str]
    sources: tuple[str, ...] = ()
    doubled: bool = False
    kind: Any = np.float32

    def stored(self, name: str) -> str:
        """The initializer behind one of the two values."""
        return self.sources[self.names.index(name)] if self.sources else name

    def angles(self) -> Rows:
        """Of position 1: the inverse frequencies."""
        return np.arctan2(self.sin[1], self.cos[1])

    def amplitude(self) -> float:
        """What both are multiplied by."""
        return float(np.hypot(self.cos[1], self.sin[1]).mean())

    def words(self) -> str:
        """For people: theta, factor, attention factor."""
        amplitude = self.amplitude()
        more = "" if abs(amplitude - 1) < 1e-3 else f" times {amplitude:.5g}"
        partial = f", {2 * self.cos.shape[1]} dimensions"
        return formula(self.angles()) + more + partial


def read_table(case: Case, cos: str, sin: str) -> Table | None:
    """The table behind the two values that a rotation takes; None if it is neither stored nor computable."""
    stored = [_behind(case, name) for name in (cos, sin)]
    if stored[0] is not None and stored[1] is not None:
        arrays = [case.view.tensors[name].array() for name in stored if name is not None]
        rows = [array.reshape(-1, array.shape[-1]).astype(np.float32) for array in arrays]
        pairs = _pairs(rows[0])
        dtype = case.view.tensors[stored[0]].dtype
        halves = (rows[0][:, :pairs], rows[1][:, :pairs])
        return Table(*halves, dtype, (cos, sin), (stored[0], stored[1]), pairs < rows[0].shape[1], arrays[0].dtype)
    values = evaluate_part(case.view, [cos, sin], feeds(case.view, _COMPUTED, 0), _COMPUTED)
    if values is None:
        return None
    flat = [np.asarray(v, np.float32).reshape(-1, v.shape[-1]) for v in values]
    if any(len(each) != _COMPUTED for each in flat):
        return None
    pairs = _pairs(flat[0])
    return Table(flat[0][:, :pairs], flat[1][:, :pairs], "fp32", (cos, sin), (), pairs < flat[0].shape[1])


def _pairs(rows: Rows) -> int:
    half = rows.shape[1] // 2
    return half if half and np.array_equal(rows[:, :half], rows[:, half:]) else rows.shape[1]


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
