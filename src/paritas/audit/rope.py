"""RoPE tables at every position against transformers' own, and what a wrong table was made with.

One last bit of an inverse frequency is the reference's own noise: torch's kernels differ by it among themselves
(:mod:`paritas.graph.rope`). Exporters form frequency, angle and cosine by other formulas, each of which may cost a last
bit more. Three last bits of the angle, and the rounding of the table's type, are allowed; nothing else.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.attending import Attending
from paritas.audit.evaluate import evaluate_part
from paritas.audit.finding import Finding, layers
from paritas.audit.masks import feeds
from paritas.audit.told import Told, Unknown
from paritas.audit.view import PASSES, View
from paritas.graph.rope import far, inverse_frequencies, switch, tables
from paritas.runtime.stored import Stored
from paritas.spec import Dynamic, Linear, Llama3, LongRope, Proportional, Rope, Yarn

Rows = NDArray[np.float32]
_ULP = {"fp32": 2**-23, "fp64": 2**-23, "fp16": 2**-10, "bf16": 2**-7}
_BLOCK = 4096  # positions at a time
_THROUGH = frozenset({*PASSES, "Gather", "Slice", "Concat", "Expand", "Mul"})


@dataclass(frozen=True)
class Table:
    """Cosines and sines as the graph holds or computes them, a row a position.

    Attributes:
        names: of the two values, or of the two initializers.
        dtype: of the initializers; ``fp32`` of computed ones.
        positions, pairs: size.
        step: columns from one pair to the next.
    """

    names: tuple[str, str]
    dtype: str
    positions: int
    pairs: int
    _cos: Stored | Rows
    _sin: Stored | Rows
    step: int = 1

    @property
    def stored(self) -> bool:
        """Whether the graph holds it, and so has an end."""
        return isinstance(self._cos, Stored)

    def rows(self, start: int, stop: int) -> tuple[Rows, Rows]:
        """Cosines and sines at positions ``[start, stop)``; of a table that holds each twice, each once."""
        rows = (_part(table, start, stop) for table in (self._cos, self._sin))
        cos, sin = (each[:, : self.pairs * self.step : self.step] for each in rows)
        return cos, sin


def _part(table: Stored | Rows, start: int, stop: int) -> Rows:
    return table.rows(start, stop) if isinstance(table, Stored) else table[start:stop]


def tables_of(view: View, names: Iterable[tuple[str, str]]) -> set[str]:
    """The tensors that rotations take their cosines and sines from, or make them of."""
    found: set[str] = set()
    for name in dict.fromkeys(name for pair in names for name in pair):
        stored = _behind(view, name)
        if stored is not None:
            found.add(stored.name)
        else:
            nodes = list(view.by_value(name))
            found |= {each for node in nodes for each in (*node.input, *node.output) if each in view.tensors}
    return found


def rope_findings(view: View, found: Sequence[Attending], told: Told, context: int) -> list[Finding]:
    """Findings about the cosines and sines that attention operators, or rotations before them, take.

    Args:
        view: the graph.
        found: how it attends.
        told: what should be.
        context: positions that the package says it covers.
    """
    by_table: dict[tuple[tuple[str, str], str | None], list[int]] = defaultdict(list)
    for each in found:
        for names in each.tables:
            by_table[names, each.rows].append(each.layer)
    result: list[Finding] = []
    stored: list[Table] = []
    wrong: dict[tuple[Rope, str], list[int]] = defaultdict(list)
    for (names, rows), numbers in by_table.items():
        for rope in dict.fromkeys(told.layer(n).rope for n in numbers):
            if rope is None or isinstance(rope, Unknown):
                continue
            of = sorted({n for n in numbers if told.layer(n).rope == rope})
            made_for = context if isinstance(told.context, Unknown) else told.context
            border = switch(rope, made_for)
            if border is None:
                read = [(table, rope)] if (table := _table(view, names, made_for)) else []
            else:
                ends = ((border, rope), (made_for, far(rope)))
                read = [(t, part) for count, part in ends if (t := _taken(view, names, rows, count))]
            if not read:
                result.append(_not_audited(of, names))
            stored += [table for table, _ in read if table.stored]
            facts = (compare(table, part, told.by) for table, part in read)
            if fact := next(filter(None, facts), None):
                wrong[rope, fact].extend(of)
    result += _too_short(stored, context)
    result += [_wrong(numbers, rope, fact) for (rope, fact), numbers in wrong.items()]
    return result + list(_rotated(found, told))


def every_rotation_read(found: Sequence[Attending], told: Told) -> bool:
    """Whether cosines and sines are known of every layer that has a RoPE."""
    read = {each.layer for each in found if each.tables}
    return all(
        n in read for n, layer in enumerate(told.layers) if layer.attends is not False and layer.rope is not None
    )


def _rotated(found: Sequence[Attending], told: Told) -> Iterator[Finding]:
    """Layers that rotate and should not, and the reverse."""
    missing, unwanted, unread = list[int](), list[int](), list[int]()
    for each in found:
        rope = told.layer(each.layer).rope
        rotates = bool(each.tables) or (not isinstance(each.steps, Unknown) and "rotary" in each.steps[0])
        if rope is None and rotates:
            unwanted.append(each.layer)
        elif isinstance(rope, Rope) and not each.tables:
            (unread if rotates or isinstance(each.steps, Unknown) else missing).append(each.layer)
    if missing:
        fact = "queries go from their projection into the attention without a rotation"
        yield Finding("rope-missing", "error", layers(missing), fact, "Rotate queries and keys, or set do_rotary.")
    if unwanted:
        fact = f"queries and keys are rotated, {told.by} says that these layers have no RoPE"
        yield Finding("rope-unwanted", "error", layers(unwanted), fact, "Leave the rotation out.")
    if unread:
        yield Finding(
            "rope-not-audited",
            "note",
            layers(unread),
            "no cosines and sines were found before the attention",
            "paritas verify compares logits at many positions.",
        )


def _table(view: View, names: tuple[str, str], context: int) -> Table | None:
    """What the graph holds, or computes at every position."""
    cos, sin = (_behind(view, name) for name in names)
    if cos is None or sin is None or cos.matrix != sin.matrix:
        return _computed(view, names, context)
    positions, _ = cos.matrix
    pairs, step = _pairs(cos.rows(0, min(positions, 64)))
    return Table((cos.name, sin.name), cos.dtype, positions, pairs, cos, sin, step)


def _taken(view: View, names: tuple[str, str], rows: str | None, count: int) -> Table | None:
    """What a call of ``count`` tokens takes: the graph may take other rows of its tables in a longer call."""
    cos, sin = (_behind(view, name) for name in names)
    if cos is None or sin is None or cos.matrix != sin.matrix:
        return _computed(view, names, count)
    index = next((node.input[1] for node in _way(view, names[0]) if node.op_type == "Gather"), rows)
    places = np.arange(count)
    if index is not None:
        values = evaluate_part(view, [index], feeds(view, count, 0), count)
        if values is None or values[0].size != count:
            return None
        places = values[0].reshape(-1)
    if places.max() >= cos.matrix[0]:
        return None
    every = [table.rows(0, cos.matrix[0])[places] for table in (cos, sin)]
    pairs, step = _pairs(every[0][:64])
    return Table((cos.name, sin.name), cos.dtype, count, pairs, every[0], every[1], step)


def _way(view: View, name: str) -> Iterator[onnx.NodeProto]:
    """Nodes from a value back to the table that it is rows of."""
    for _ in range(12):
        node = view.maker.get(name)
        if node is None or node.op_type not in _THROUGH or not node.input:
            return
        yield node
        name = node.input[0]


def _pairs(rows: Rows) -> tuple[int, int]:
    """Pairs of a table, and how far apart their columns lie: each may be there twice, in halves or side by side."""
    width = rows.shape[1]
    if width % 2 == 0 and np.array_equal(rows[:, : width // 2], rows[:, width // 2 :]):
        return width // 2, 1
    if width % 2 == 0 and np.array_equal(rows[:, ::2], rows[:, 1::2]):
        return width // 2, 2
    return width, 1


def _behind(view: View, name: str) -> Stored | None:
    """The table that rows are taken from by position."""
    last = next(iter(reversed([node.input[0] for node in _way(view, name)])), name)
    stored = view.tensors.get(last)
    return stored if stored is not None and stored.is_float and stored.matrix[0] > 1 else None


def _computed(view: View, names: tuple[str, str], context: int) -> Table | None:
    values = evaluate_part(view, names, feeds(view, context, 0), context)
    if values is None:
        return None
    flat = [np.asarray(v, np.float32).reshape(-1, v.shape[-1]) for v in values]
    if any(len(v) != context for v in flat):
        return None
    kind = {"float16": "fp16", "bfloat16": "bf16"}.get(values[0].dtype.name, "fp32")
    pairs, step = _pairs(flat[0][:64])
    return Table(names, kind, context, pairs, flat[0], flat[1], step)


def compare(table: Table, rope: Rope, by: str = "the checkpoint") -> str | None:
    """What is wrong with a table for this RoPE, in words; None if nothing is."""
    if table.pairs * 2 != rope.dim:
        return f"rotate {table.pairs * 2} dimensions of a head, {by} says {rope.dim}"
    frequencies = inverse_frequencies(rope)
    count, worst, first = 0, 0.0, 0
    for start in range(0, table.positions, _BLOCK):
        stop = min(start + _BLOCK, table.positions)
        got, wanted = np.stack(table.rows(start, stop)), np.stack(tables(rope, start, stop))
        angles = np.arange(start, stop, dtype=np.float32)[:, None] * frequencies
        allowed = angles * np.float32(3 * 2**-23) + np.float32(_ULP.get(table.dtype, 2**-23))
        allowed *= np.float32(rope.attention_factor)
        difference = np.abs(got - wanted)
        bad = ~(difference <= allowed)
        if bad.any():
            rows = np.flatnonzero(bad.any(axis=(0, 2)))
            first = first if count else start + int(rows[0])
            count += len(rows)
            worst = max(worst, float(np.nanmax(difference)))
    if not count:
        return None
    at = f"{count:,} of {table.positions:,} positions differ, first {first:,}, by up to {worst:.2g}"
    return f"use {estimate(table)}, {by} says {words(rope)}; {at}"


def estimate(table: Table) -> str:
    """Theta and factor of a table in closed form: the angles at position 1 are the inverse frequencies."""
    cos, sin = table.rows(1, 2)
    angles = np.arctan2(sin[0], cos[0])
    amplitude = float(np.hypot(cos[0], sin[0]).mean())
    return formula(angles) + ("" if abs(amplitude - 1) < 1e-3 else f" and an attention factor of {amplitude:.4g}")


def formula(frequencies: Rows) -> str:
    """Theta and factor of inverse frequencies: their logarithms lie on a line, whose slope and offset these are."""
    turning = int(np.count_nonzero(frequencies)) or len(frequencies)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(frequencies[:turning].astype(np.float64))
    if not np.isfinite(logs).all() or len(logs) < 2:
        return "angles that are no RoPE's"
    x = np.arange(len(logs)) / len(frequencies)
    slope = float(((x - x.mean()) * (logs - logs.mean())).sum() / ((x - x.mean()) ** 2).sum())
    offset = float(logs.mean() - slope * x.mean())
    if np.abs(slope * x + offset - logs).max() < 1e-3:
        factor = math.exp(-offset)
        known = _words(math.exp(-slope), 1.0 if abs(factor - 1) < 2e-3 else factor)
        return known + _standing(turning, len(frequencies))
    return f"frequencies scaled by band (from {frequencies[0]:.4g} to {frequencies[-1]:.4g} radians a position)"


def words(rope: Rope) -> str:
    """A RoPE in a few words."""
    match rope.scaling:
        case None:
            return _words(rope.theta, 1.0)
        case Linear(factor):
            return _words(rope.theta, factor)
        case Llama3(factor=factor, original_context=original):
            return f"{_words(rope.theta, 1.0)} with Llama 3 scaling by {factor:g} from {original:,} positions"
        case Dynamic(factor=factor, original_context=original):
            return f"{_words(rope.theta, 1.0)} with dynamic scaling by {factor:g} beyond {original:,} positions"
        case Yarn(factor=factor, original_context=original, attention_factor=attention):
            scaling = f"YaRN by {factor:g} from {original:,} positions, attention factor {attention:.4g}"
            return f"{_words(rope.theta, 1.0)} with {scaling}"
        case LongRope(original_context=original, attention_factor=attention):
            scaling = f"LongRoPE from {original:,} positions, attention factor {attention:.4g}"
            return f"{_words(rope.theta, 1.0)} with {scaling}"
        case Proportional(pairs, factor):
            return _words(rope.theta, factor) + _standing(pairs, rope.dim // 2)


def _standing(turning: int, pairs: int) -> str:
    """Of a RoPE most of whose pairs do not turn."""
    return "" if turning == pairs else f", the first {turning} of {pairs} pairs turning"


def _words(theta: float, factor: float) -> str:
    rounded = float(f"{theta:.4g}")
    return f"theta {rounded:g}" + ("" if factor == 1.0 else f" factor {float(f'{factor:.4g}'):g}")


def _wrong(numbers: Sequence[int], rope: Rope, fact: str) -> Finding:
    return Finding(
        "rope-table-wrong",
        "error",
        layers(numbers),
        f"{layers(numbers)} {fact if len(set(numbers)) > 1 else fact.replace(' ', 's ', 1)}",
        f"Give these layers cosines and sines of {words(rope)}.",
    )


def _not_audited(numbers: Sequence[int], names: tuple[str, str]) -> Finding:
    return Finding(
        "rope-not-audited",
        "note",
        layers(numbers),
        f"{names[0]} and {names[1]} are neither tables nor computed from positions alone",
        "paritas verify compares logits at many positions.",
    )


def _too_short(found: Sequence[Table], context: int) -> Iterator[Finding]:
    table = min(found, key=lambda table: table.positions, default=None)
    if table is not None and table.positions < context:
        yield Finding(
            "context-beyond-tables",
            "error",
            "genai_config.json, model.context_length",
            f"{context:,} positions are promised, {table.names[0]} has {table.positions:,}",
            f"Write {table.positions} into context_length and search.max_length, or longer tables into the graph.",
        )
