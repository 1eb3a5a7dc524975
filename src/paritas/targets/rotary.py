"""RoPE tables as a graph holds them, and which of their rows each token of a call takes."""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.graph.rope import inverse_frequencies, stacked_table, switch
from paritas.spec import Dynamic, Rope
from paritas.targets.base import positions
from paritas.weights import Computed


@dataclass(frozen=True)
class Rotary:
    """What a RotaryEmbedding takes: cos and sin [rows, dim / 2], and a row for each token, [batch, sequence]."""

    cos: ir.Value
    sin: ir.Value
    rows: ir.Value


def rotaries(graph: Graph, ropes: Iterable[Rope], context: int, ids: ir.Value, mask: ir.Value) -> Mapping[Rope, Rotary]:
    """For each distinct RoPE, so that no layer can use another one's.

    Where RoPE depends on the length of the call, the longest row of the batch decides, in each call anew and for
    every position of the call, as transformers does it; keys in the cache stay as they were rotated.
    """
    distinct = list(dict.fromkeys(ropes))
    return rotaries_at(graph, distinct, context, positions(graph, ids, mask)) if distinct else {}


def rotaries_at(graph: Graph, ropes: Iterable[Rope], context: int, where: ir.Value) -> Mapping[Rope, Rotary]:
    """The same for tokens at the positions ``where``, [batch, sequence]."""
    return {rope: _rotary(graph, rope, context, where) for rope in dict.fromkeys(ropes)}


def tables(graph: Graph, rope: Rope, context: int) -> tuple[ir.Value, ir.Value]:
    """cos and sin, [context, dim / 2]; more rows where RoPE switches (:func:`paritas.graph.rope.stacked_table`)."""
    shape = (context + (switch(rope, context) or 0), rope.dim // 2)

    def rows(turned: np.ufunc) -> Computed:
        return Computed(shape, lambda start, stop: stacked_table(rope, context, turned, start, stop))

    with graph.root():
        return graph.parameter(f"{name(rope)}.cos", rows(np.cos)), graph.parameter(f"{name(rope)}.sin", rows(np.sin))


def name(rope: Rope) -> str:
    """Of its tables: theta, width and scaling; lists of factors as a checksum."""
    scaling = "" if rope.scaling is None else f".{rope.scaling}"
    if len(scaling) > 120:
        scaling = f".{type(rope.scaling).__name__}({zlib.crc32(scaling.encode()):08x})"
    return f"rope.{rope.theta:.17g}.{rope.dim}{scaling}"


def _rotary(graph: Graph, rope: Rope, context: int, where: ir.Value) -> Rotary:
    if isinstance(rope.scaling, Dynamic):
        return _by_length(graph, rope, rope.scaling, context, where)
    cos, sin = tables(graph, rope, context)
    border = switch(rope, context)
    return Rotary(cos, sin, where if border is None else _beyond(graph, border, where))


def _beyond(graph: Graph, border: int, where: ir.Value) -> ir.Value:
    """Rows of stacked tables: those for calls beyond ``border`` positions follow the first ``border`` rows."""
    op = graph.op
    last = op.ReduceMax(where, keepdims=0)
    size = graph.constant(np.array(border), f"switch.{border}")
    return op.Add(where, op.Where(op.GreaterOrEqual(last, size), size, graph.constant(np.array(0), "zero")))


def _by_length(graph: Graph, rope: Rope, scaling: Dynamic, context: int, where: ir.Value) -> Rotary:
    """Frequencies for every length, [lengths, dim / 2]; cosines and sines are taken for the tokens of the call."""
    op, border = graph.op, scaling.original_context
    lengths = max(context - border, 0) + 1
    shape = (lengths, rope.dim // 2)

    def frequencies(start: int, stop: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return np.stack([inverse_frequencies(rope, border + extra) for extra in range(start, stop)])

    with graph.root():
        table = graph.parameter(f"{name(rope)}.frequencies", Computed(shape, frequencies))
    last = op.ReduceMax(where, keepdims=0)
    extra = op.Max(
        op.Sub(last, graph.constant(np.array(border - 1), f"last.{border}")), graph.constant(np.array(0), "zero")
    )
    flat = op.Reshape(where, graph.constant(np.array([-1, 1]), "shape.column"))
    angles = op.Mul(op.Cast(flat, to=ir.DataType.FLOAT), op.Gather(table, extra))
    count = op.Size(where)
    zero, one = graph.constant(np.array(0), "zero"), graph.constant(np.array(1), "one")
    rows = op.Reshape(op.Range(zero, count, one), op.Shape(where))
    return Rotary(op.Cos(angles), op.Sin(angles), rows)
