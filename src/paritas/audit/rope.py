"""RoPE tables at every position against transformers' own, and what a wrong table was made with.

One last bit of an inverse frequency is the reference's own noise: torch's kernels differ by it among themselves
(:mod:`paritas.graph.rope`). Exporters form frequency, angle and cosine by other formulas, each of which may cost a last
bit more. Three last bits of the angle, and the rounding of the table's type, are allowed; nothing else.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate
from paritas.audit.finding import Finding, layers
from paritas.audit.sites import Site
from paritas.audit.tensors import Stored
from paritas.audit.view import PASSES, View
from paritas.graph.rope import inverse_frequencies, tables
from paritas.spec import Decoder, Linear, Llama3, Rope

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
    """

    names: tuple[str, str]
    dtype: str
    positions: int
    pairs: int
    _cos: Stored | Rows
    _sin: Stored | Rows

    def rows(self, start: int, stop: int) -> tuple[Rows, Rows]:
        """Cosines and sines at positions ``[start, stop)``; of a table that holds each twice, the first half."""
        return _part(self._cos, start, stop)[:, : self.pairs], _part(self._sin, start, stop)[:, : self.pairs]


def _part(table: Stored | Rows, start: int, stop: int) -> Rows:
    return table.rows(start, stop) if isinstance(table, Stored) else table[start:stop]


def tables_of(view: View, found: Sequence[Site]) -> set[str]:
    """The initializers that rotations take their cosines and sines from."""
    stored = (_behind(view, name) for site in found for names in site.tables() for name in names)
    return {each.name for each in stored if each is not None}


def rope_findings(view: View, found: Sequence[Site], spec: Decoder, context: int) -> list[Finding]:
    """Findings about the cosines and sines that attention operators, or rotations before them, take.

    Args:
        view: the graph.
        found: its attention operators.
        spec: what should be.
        context: positions that the package says it covers.
    """
    by_table: dict[tuple[str, str], list[int]] = defaultdict(list)
    rotated: set[int] = set()
    for site in found:
        for names in dict.fromkeys(site.tables()):
            by_table[names].append(site.layer)
            rotated.add(site.layer)
    result: list[Finding] = []
    found_tables: list[Table] = []
    wrong: dict[tuple[Rope, str], list[int]] = defaultdict(list)
    for names, numbers in by_table.items():
        table = _table(view, names, spec.context)
        if table is None:
            result.append(_not_audited(numbers, names))
            continue
        found_tables.append(table)
        for rope in dict.fromkeys(_rope(spec, n) for n in numbers):
            of = sorted({n for n in numbers if _rope(spec, n) == rope})
            if rope is not None and (fact := compare(table, rope)):
                wrong[rope, fact].extend(of)
    result += _too_short(found_tables, context)
    result += [_wrong(numbers, rope, fact) for (rope, fact), numbers in wrong.items()]
    lost = [site.layer for site in found if site.layer not in rotated and _rope(spec, site.layer)]
    if lost:
        result.append(_unseen(view, found, lost))
    return result


def _rope(spec: Decoder, layer: int) -> Rope | None:
    return spec.layers[layer].attention.rope if layer < len(spec.layers) else None


def _table(view: View, names: tuple[str, str], context: int) -> Table | None:
    stored = [_behind(view, name) for name in names]
    cos, sin = stored
    if cos is not None and sin is not None and cos.matrix == sin.matrix:
        positions, _ = cos.matrix
        return Table((cos.name, sin.name), cos.dtype, positions, _pairs(cos.rows(0, min(positions, 64))), cos, sin)
    return _computed(view, names, context)


def _pairs(rows: Rows) -> int:
    """Half the width, where the second half repeats the first."""
    half = rows.shape[1] // 2
    return half if half and np.array_equal(rows[:, :half], rows[:, half:]) else rows.shape[1]


def _behind(view: View, name: str) -> Stored | None:
    """The table that rows are taken from by position."""
    for _ in range(12):
        if name in view.tensors:
            stored = view.tensors[name]
            return stored if stored.is_float and stored.matrix[0] > 1 else None
        node = view.maker.get(name)
        if node is None or node.op_type not in _THROUGH or not node.input:
            return None
        name = node.input[0]
    return None


def _computed(view: View, names: tuple[str, str], context: int) -> Table | None:
    ids = np.arange(context, dtype=np.int64)[None]
    feeds = {value.name: ids for value in view.proto.graph.input if "past" not in value.name}
    feeds |= {name: np.ones_like(ids) for name in feeds if "mask" in name}
    values = evaluate(view, names, feeds)
    if values is None:
        return None
    flat = [np.asarray(v, np.float32).reshape(-1, v.shape[-1]) for v in values]
    if any(len(v) != context for v in flat):
        return None
    return Table(names, "fp32", context, _pairs(flat[0][:64]), flat[0], flat[1])


def compare(table: Table, rope: Rope) -> str | None:
    """What is wrong with a table for this RoPE, in words; None if nothing is."""
    if table.pairs * 2 != rope.dim:
        return f"rotate {table.pairs * 2} dimensions of a head, the checkpoint says {rope.dim}"
    frequencies = inverse_frequencies(rope)
    count, worst, first = 0, 0.0, 0
    for start in range(0, table.positions, _BLOCK):
        stop = min(start + _BLOCK, table.positions)
        got, wanted = np.stack(table.rows(start, stop)), np.stack(tables(rope, start, stop))
        angles = np.arange(start, stop, dtype=np.float32)[:, None] * frequencies
        allowed = angles * np.float32(3 * 2**-23) + np.float32(_ULP.get(table.dtype, 2**-23))
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
    return f"use {estimate(table)}, the checkpoint says {words(rope)}; {at}"


def estimate(table: Table) -> str:
    """Theta and factor of a table in closed form: the angles at position 1 are the inverse frequencies."""
    cos, sin = table.rows(1, 2)
    angles = np.arctan2(sin[0], cos[0])
    amplitude = float(np.hypot(cos[0], sin[0]).mean())
    return formula(angles) + ("" if abs(amplitude - 1) < 1e-3 else f" and an attention factor of {amplitude:.4g}")


def formula(frequencies: Rows) -> str:
    """Theta and factor of inverse frequencies: their logarithms lie on a line, whose slope and offset these are."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(frequencies.astype(np.float64))
    if not np.isfinite(logs).all() or len(logs) < 2:
        return "angles that are no RoPE's"
    x = np.arange(len(logs)) / len(logs)
    slope = float(((x - x.mean()) * (logs - logs.mean())).sum() / ((x - x.mean()) ** 2).sum())
    offset = float(logs.mean() - slope * x.mean())
    if np.abs(slope * x + offset - logs).max() < 1e-3:
        factor = math.exp(-offset)
        return _words(math.exp(-slope), 1.0 if abs(factor - 1) < 2e-3 else factor)
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


def _unseen(view: View, found: Sequence[Site], lost: Sequence[int]) -> Finding:
    whole = [site for site in found if site.layer in lost and site.q.weight is not None]
    if len(whole) == len(lost):
        return Finding(
            "rope-missing",
            "error",
            layers(lost),
            "queries go from their projection into the attention without a rotation",
            "Rotate queries and keys, or set do_rotary.",
        )
    return Finding(
        "rope-not-audited",
        "note",
        layers(lost),
        "no rotary operator was found before the attention",
        "paritas verify compares logits at many positions.",
    )
