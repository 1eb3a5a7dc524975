"""Right rotations that repairs put into a graph: rows of cosines and sines for the tokens of a call, and their use."""

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.diagnose.case import Case
from paritas.diagnose.edit import Edit, RefusedError
from paritas.diagnose.subgraphs import cast, integer, op, positions

Rows = NDArray[np.float32]
_MOST = 4
"""Ways to rotate, by the length of a call, of which each is a table; more are kept as frequencies."""


def context(case: Case) -> int:
    """Positions that a repaired rotation is made for."""
    return case.package.context or case.truths.facts.positions or 4096


def hangs_on_length(case: Case, layer: int) -> bool:
    """Whether the reference rotates a token otherwise in a longer call."""
    few, end = np.arange(8), context(case) - 1
    near, far = case.live.rope(layer, few), case.live.rope(layer, np.append(few, end))
    return near is not None and far is not None and not _same(near, (far[0][:8], far[1][:8]))


def _same(one: tuple[Rows, Rows], other: tuple[Rows, Rows]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def rows(edit: Edit, case: Case, layer: int) -> tuple[str, str]:
    """Cosines and sines ``[batch, new, pairs]`` of the new tokens, as the reference has them in each call.

    Raises:
        RefusedError: the graph has no positions, or the reference rotates otherwise.
    """
    layer = _first_alike(case, layer)
    cos, sin = edit.once(f"rows of layer {layer}", lambda: "\n".join(_made(edit, case, layer))).split("\n")
    return cos, sin


def _first_alike(case: Case, layer: int) -> int:
    """The first layer that rotates as this one does: they share what is made for it."""
    at = np.array([0, 1, 2, 3, context(case) - 1])
    right = case.live.rope(layer, at)
    if right is None:
        raise RefusedError("the reference's rotation is no table of positions")
    others = ((other, case.live.rope(other, at)) for other in sorted(case.live.facts))
    return next(other for other, turn in others if turn is not None and _same(turn, right))


def _made(edit: Edit, case: Case, layer: int) -> tuple[str, str]:
    if not hangs_on_length(case, layer):
        table = case.live.rope(layer, np.arange(context(case)))
        assert table is not None
        places = positions(edit, case)
        return _taken(edit, table[0], places), _taken(edit, table[1], places)
    lengths = borders(case, layer)
    return _stacked(edit, case, layer, lengths) if len(lengths) < _MOST else _by_frequency(edit, case, layer, lengths)


def _taken(edit: Edit, table: Rows, places: str) -> str:
    key = f"rows {hash(table.tobytes())} {table.shape} {places}"
    return edit.once(key, lambda: op(edit, "Gather", edit.add_initializer("rotation", table), places))


def borders(case: Case, layer: int) -> list[int]:
    """Lengths of a call from which on the reference rotates otherwise, ascending."""
    key = ("borders", layer)
    if key not in case.view.memory:
        case.view.memory[key] = _borders(case, layer)
    return case.view.memory[key]


def _borders(case: Case, layer: int) -> list[int]:
    last = context(case)

    def at(length: int) -> tuple[Rows, Rows]:
        found = case.live.rope(layer, np.array([1, length - 1]))
        assert found is not None
        return found[0][:1], found[1][:1]

    found: list[int] = []

    def split(low: int, high: int, one: tuple[Rows, Rows], other: tuple[Rows, Rows]) -> None:
        if _same(one, other):
            return
        if high - low == 1:
            found.append(high)
            return
        middle = (low + high) // 2
        between = at(middle)
        split(low, middle, one, between)
        split(middle, high, between, other)

    split(2, last, at(2), at(last))
    return found


def _longest(edit: Edit, case: Case) -> str:
    """Position of the last token of the longest row, a scalar."""
    return edit.once("longest", lambda: op(edit, "ReduceMax", positions(edit, case), keepdims=0))


def _stacked(edit: Edit, case: Case, layer: int, starts: list[int]) -> tuple[str, str]:
    """A table for each way to rotate, one behind the other, and the first row of the one that a call takes."""
    count = context(case)
    lengths = [start - 1 for start in starts] + [count]
    cos, sin = (np.concatenate(each) for each in zip(*(_table(case, layer, n, count) for n in lengths), strict=True))

    def make() -> str:
        places, last = positions(edit, case), _longest(edit, case)
        for start in starts:
            is_longer = cast(edit, op(edit, "GreaterOrEqual", last, integer(edit, start - 1)), onnx.TensorProto.INT64)
            places = op(edit, "Add", places, op(edit, "Mul", is_longer, integer(edit, count)))
        return places

    places = edit.once(f"rows by length {starts} {count}", make)
    return _taken(edit, cos, places), _taken(edit, sin, places)


def _table(case: Case, layer: int, length: int, count: int) -> tuple[Rows, Rows]:
    """Of a call of that length, ``[count, pairs]``; what lies beyond the length is zero."""
    found = case.live.rope(layer, np.arange(length))
    assert found is not None
    return tuple(np.pad(half, ((0, count - length), (0, 0))) for half in found)  # type: ignore[return-value]


def _by_frequency(edit: Edit, case: Case, layer: int, starts: list[int]) -> tuple[str, str]:
    """Frequencies for each way to rotate ``[ways, pairs]``, and which way a call takes ``[lengths]``."""
    lengths = [starts[0] - 1, *starts]
    found = [_frequencies(case, layer, length) for length in lengths]
    table, factors = np.stack([each[0] for each in found]), np.array([[each[1]] for each in found], np.float32)
    ways = np.searchsorted(np.array(starts), np.arange(1, context(case) + 1), side="right")

    def make() -> str:
        way = op(edit, "Gather", edit.add_initializer("ways", ways.astype(np.int64)), _longest(edit, case))
        frequencies = op(edit, "Gather", edit.add_initializer("frequencies", table), way)
        places = cast(edit, op(edit, "Unsqueeze", positions(edit, case), integer(edit, [2])), onnx.TensorProto.FLOAT)
        factor = op(edit, "Gather", edit.add_initializer("factors", factors), way)
        return f"{op(edit, 'Mul', places, frequencies)}\n{factor}"

    key = f"angles {hash(table.tobytes())}"
    angles, factor = edit.once(key, make).split("\n")

    def half(operator: str) -> str:
        return edit.once(f"{key} {operator}", lambda: op(edit, "Mul", op(edit, operator, angles), factor))

    return half("Cos"), half("Sin")


def _frequencies(case: Case, layer: int, length: int) -> tuple[Rows, float]:
    """Radians a position, and the factor of cosines and sines, in a call of that length.

    The phase at ever farther positions tells a frequency ever more sharply: to a last bit of the farthest angle.
    """
    powers = 2 ** np.arange(max(int(np.log2(max(length - 1, 1))), 0) + 1)
    found = case.live.rope(layer, np.append(powers, length - 1))
    assert found is not None
    cos, sin = (half.astype(np.float64) for half in found)
    phases = np.arctan2(sin, cos)
    frequency = phases[0].copy()
    for at, power in enumerate(powers.tolist()):
        turns: NDArray[np.float64] = np.rint((frequency * power - phases[at]) / (2 * np.pi))
        frequency[:] = (phases[at] + 2 * np.pi * turns) / power
    return frequency.astype(np.float32), float(np.hypot(cos[0], sin[0]).mean())


def turned(edit: Edit, case: Case, layer: int, value: str, heads: int, axis: int | None = None) -> str:
    """Queries or keys, rotated as the reference does it, in the standard's own operators.

    Args:
        edit: of the graph.
        case: of the package.
        layer: its number.
        value: ``[batch, new, heads * head_dim]``, or with an axis of heads.
        heads: of the value.
        axis: of its heads: 2, or 1 before the tokens; None if it has none.

    Raises:
        RefusedError: the graph has no positions.
    """
    facts, cos_sin = case.live.facts[layer], rows(edit, case, layer)
    name = axis or 2
    cos, sin = (edit.once(f"{each} {name}", lambda n=each: _with_heads(edit, n, name)) for each in cos_sin)
    width = facts.head_dim
    by_head = value if axis else op(edit, "Reshape", value, integer(edit, [0, 0, heads, width]))
    right = case.live.rope(layer, np.arange(2))
    assert right is not None
    out = _turned(edit, by_head, (cos, sin), right[0].shape[1], width, facts.neighbours)
    return out if axis else op(edit, "Reshape", out, integer(edit, [0, 0, heads * width]))


def _with_heads(edit: Edit, value: str, axis: int) -> str:
    return op(edit, "Unsqueeze", value, integer(edit, [axis]))


def _turned(edit: Edit, x: str, turn: tuple[str, str], pairs: int, width: int, neighbours: bool) -> str:
    """``x`` ``[..., width]`` with its first ``pairs`` pairs rotated."""
    cos, sin = turn
    ends = ((0, 2 * pairs, 2), (1, 2 * pairs, 2)) if neighbours else ((0, pairs, 1), (pairs, 2 * pairs, 1))
    one, other = (_part(edit, x, *each) for each in ends)
    first = op(edit, "Sub", op(edit, "Mul", one, cos), op(edit, "Mul", other, sin))
    second = op(edit, "Add", op(edit, "Mul", other, cos), op(edit, "Mul", one, sin))
    parts = [first, second]
    if neighbours:
        wide = [op(edit, "Unsqueeze", each, integer(edit, [-1])) for each in parts]
        parts = [op(edit, "Reshape", op(edit, "Concat", *wide, axis=-1), integer(edit, [0, 0, 0, 2 * pairs]))]
    if 2 * pairs < width:
        parts.append(_part(edit, x, 2 * pairs, width, 1))
    return parts[0] if len(parts) == 1 else op(edit, "Concat", *parts, axis=-1)


def _part(edit: Edit, x: str, start: int, stop: int, step: int) -> str:
    return op(edit, "Slice", x, *(integer(edit, [each]) for each in (start, stop, -1, step)))
