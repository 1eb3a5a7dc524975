"""Weights of integers in their places: read as the numbers they stand for, and written on their own grid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from paritas.audit.hashing import of_rows
from paritas.audit.view import View
from paritas.diagnose.edit import Array, Edit, RefusedError
from paritas.diagnose.slots import Rows, Slot
from paritas.runtime.quantized import Grid, Packed, Plain, Quantized
from paritas.verify.grids import limit


@dataclass(frozen=True)
class IntegerSlot(Slot):
    """A place in which integers stand.

    Attributes:
        view: the graph.
        weight: the integers, with their scales and zero points.
        others: every weight of integers of the graph.
    """

    view: View = field(kw_only=True)
    weight: Quantized = field(kw_only=True)
    others: Sequence[Quantized] = field(kw_only=True)

    def value(self, view: View) -> Rows:
        """Dequantised ``[rows, columns]``."""
        return self.weight.read(self.start, self.stop)[0]

    def write(self, edit: Edit, values: Rows, what: str) -> None:
        """Put ``values`` there: rows that the graph has, with their own scales; else the nearest of the place's grid.

        Raises:
            RefusedError: the grid cannot say them.
        """
        donors = [each for each in (self.weight, *self.others) if _fits(each, self.weight)]
        if isinstance(self.weight, Packed) and (found := _rows_of(values, donors)):
            self._copy(edit, found, what)
        elif (donor := self._whole(values, donors)) is not None:
            for name, other in zip(self.weight.members, donor.members, strict=True):
                edit.set_initializer(name, self.view.tensors[other].array(), what)
        else:
            self._round(edit, values, what)

    def _whole(self, values: Rows, donors: Sequence[Quantized]) -> Quantized | None:
        """The weight that has these values from beginning to end, members of the same shapes."""
        if (self.start, self.stop) != (0, self.weight.rows):
            return None
        shapes = self._shapes(self.weight)
        same = (each for each in donors if self._shapes(each) == shapes)
        return next((each for each in same if np.array_equal(each.read(0, each.rows)[0], values)), None)

    def _shapes(self, weight: Quantized) -> list[tuple[tuple[int, ...], str]]:
        return [(self.view.tensors[name].shape, self.view.tensors[name].dtype) for name in weight.members]

    def _copy(self, edit: Edit, found: Sequence[tuple[Quantized, int]], what: str) -> None:
        """Row by row: integers, scales and zero points."""
        for place, name in enumerate(self.weight.members):
            stored = np.array(edit.values(name))
            matrix = stored.reshape(self.weight.rows, -1)
            given = {d.name: self.view.tensors[d.members[place]].array().reshape(d.rows, -1) for d, _ in found}
            for row, (donor, other) in enumerate(found):
                matrix[self.start + row] = given[donor.name][other]
            if not np.array_equal(stored, edit.values(name)):
                edit.set_initializer(name, stored, what)

    def _round(self, edit: Edit, values: Rows, what: str) -> None:
        """The nearest integers, with the scales and zero points that stand there."""
        grid = self.weight.grid(self.start, self.stop)
        if ((grid.steps == 0) & (values != 0)).any():
            grid = replace(grid, steps=self._scale(edit, grid, values, what))
        if self._is_beyond(grid, values):
            grid = replace(grid, zeros=self._zeros(edit, grid, values, what))
        steps = np.where(grid.steps == 0, 1, grid.steps).astype(np.float64)
        least, most = self.weight.least, self.weight.least + 2**self.weight.bits - 1
        integers = np.clip(np.rint(values / steps + grid.zeros), least, most).astype(np.int64)
        integers = np.where(grid.steps == 0, grid.integers.astype(np.int64), integers)
        stored = np.array(edit.values(self.weight.name))
        if isinstance(self.weight, Plain) and self.weight.transposed:
            stored[:, self.start : self.stop] = integers.T.astype(stored.dtype)
        elif isinstance(self.weight, Plain):
            stored[self.start : self.stop] = integers.astype(stored.dtype)
        else:
            rows = stored.reshape(self.weight.rows, -1)
            rows[self.start : self.stop] = _packed(integers, rows, self.weight.bits)
        edit.set_initializer(self.weight.name, stored, what)

    def _is_beyond(self, grid: Grid, values: Rows) -> bool:
        """Whether more than a quantiser clips lies beyond the ends of the grid."""
        exact = values / np.where(grid.steps == 0, 1, grid.steps) + grid.zeros
        least, most = self.weight.least, self.weight.least + 2**self.weight.bits - 1
        return bool(np.maximum(least - exact, exact - most).max() > limit(self.weight.bits))

    def _zeros(self, edit: Edit, grid: Grid, values: Rows, what: str) -> Rows:
        """The zero points of which the integers that stand there are the nearest, block by block; as they are, if none.

        Half of a block's integers tell it, whatever the other half is.
        """
        weight, width = self.weight, self.weight.block
        if not isinstance(weight, Packed) or len(weight.members) < 3 or grid.steps.min() == 0:
            return grid.zeros
        offsets = (grid.integers - values / grid.steps).astype(np.float64)
        padded = np.pad(offsets, ((0, 0), (0, -offsets.shape[1] % width)), constant_values=np.nan)
        most = weight.least + 2**weight.bits - 1
        zeros = np.clip(np.rint(np.nanmedian(padded.reshape(len(offsets), -1, width), axis=2)), weight.least, most)
        stored = np.array(edit.values(weight.members[2]))
        if stored.dtype != np.uint8:
            return grid.zeros
        rows = stored.reshape(weight.rows, -1)
        rows[self.start : self.stop] = _packed(zeros.astype(np.int64), rows, weight.bits)
        edit.set_initializer(weight.members[2], stored, what)
        return np.repeat(zeros.astype(np.float32), width, axis=1)[:, : weight.columns]

    def _scale(self, edit: Edit, grid: Grid, values: Rows, what: str) -> Rows:
        """The steps, where a scale of zero is the least that reaches the largest value of its block instead.

        Raises:
            RefusedError: scales are not kept a block.
        """
        weight, width = self.weight, self.weight.block
        if not isinstance(weight, Packed) or len(weight.members) < 2:
            raise RefusedError("a scale is zero, and others share it")
        most = weight.least + 2**weight.bits - 1
        room = np.where(values > 0, most - grid.zeros, grid.zeros - weight.least)
        if ((room <= 0) & (values != 0)).any():
            raise RefusedError("a zero point at the end of the grid leaves one sign no room")
        needed = np.abs(values) / np.maximum(room, 1)
        blocks = np.pad(needed, ((0, 0), (0, -needed.shape[1] % width))).reshape(len(needed), -1, width).max(axis=2)
        name = weight.members[1]
        stored = np.array(edit.values(name))
        rows = stored.reshape(weight.rows, -1)
        part = rows[self.start : self.stop]
        part[part == 0] = blocks.astype(stored.dtype)[part == 0]
        edit.set_initializer(name, stored, what)
        return np.repeat(part.astype(np.float32), width, axis=1)[:, : weight.columns]


def with_integers(view: View, weights: Mapping[str, Quantized], slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """The same places; those of integers know how to read and write them."""
    others = tuple(weights.values())

    def known(slot: Slot) -> Slot:
        weight = weights.get(slot.use.record.name)
        if weight is None:
            return slot
        given = {each.name: getattr(slot, each.name) for each in fields(Slot)}
        return IntegerSlot(**given, view=view, weight=weight, others=others)

    return tuple(known(slot) for slot in slots)


def _fits(one: Quantized, other: Quantized) -> bool:
    """Whether rows of one can stand in the other."""
    return (one.bits, one.columns, one.block, one.format, type(one)) == (
        other.bits,
        other.columns,
        other.block,
        other.format,
        type(other),
    )


def _rows_of(values: Rows, donors: Sequence[Quantized]) -> list[tuple[Quantized, int]]:
    """For each row, where the graph has it; empty if one is nowhere."""
    left = {int(number) for number in of_rows(values)}
    found: dict[int, tuple[Quantized, int]] = {}
    for donor in donors:
        rows = of_rows(donor.read(0, donor.rows)[0])
        found = {int(number): (donor, row) for row, number in enumerate(rows)} | found
        if left <= found.keys():
            return [found[int(number)] for number in of_rows(values)]
    return []


def _packed(integers: NDArray[np.int64], rows: Array, bits: int) -> Array:
    """Integers ``[rows, columns]`` as the graph packs them, low bits first; columns beyond the weight's are zeros."""
    per = 8 // bits if rows.dtype == np.uint8 else 1
    padded = np.pad(integers, ((0, 0), (0, rows.shape[1] * per - integers.shape[1])))
    parts = padded.reshape(len(integers), -1, per) << (np.arange(per) * bits)
    return parts.sum(axis=2).astype(rows.dtype)
