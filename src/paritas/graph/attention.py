"""Causal self-attention with grouped key/value heads: projections, norms of queries and keys, RoPE, window."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.graph.linear import Part, linear, linear_part
from paritas.graph.norm import norm, norm_of_each_head, one_tensor, tensor_a_head
from paritas.spec import AnyNorm, Attention, Extent, Packed, Packing, Place, QkNorm
from paritas.targets.base import Step, Target

Pair = tuple[ir.Value, ir.Value]


def attention(
    graph: Graph, target: Target, step: Step, spec: Attention, hidden: int, x: ir.Value, past: Pair
) -> tuple[ir.Value, Pair]:
    """[batch, sequence, hidden] in and out; also the present key and value, [batch, kv_heads, total, head_dim]."""
    with graph.scope("self_attn"):
        q, k, v = _projections(graph, target, spec, hidden, x)
        if spec.v_norm is not None:
            v = _head_norm(graph, target, spec.v_norm, "v_norm", spec.kv_heads, spec.head_dim, v)
        if spec.qk_norm is not None and spec.qk_norm.place is Place.BEFORE_ROPE:
            q, k = _normed(graph, target, spec, spec.qk_norm, q, k)
        if spec.clip is not None:
            limits = [graph.scalar(limit, f"clip.{limit!r}") for limit in (-spec.clip, spec.clip)]
            q, k, v = (graph.op.Clip(each, *limits) for each in (q, k, v))
        if spec.qk_norm is not None and spec.qk_norm.place is Place.AFTER_ROPE:
            if spec.rope is not None:
                q = target.rotate(graph, step, spec.rope, spec.heads, spec.head_dim, q)
                k = target.rotate(graph, step, spec.rope, spec.kv_heads, spec.head_dim, k)
            q, k = _normed(graph, target, spec, spec.qk_norm, q, k)
            spec = replace(spec, rope=None)
        sinks = graph.parameter("sinks", graph.stored("sinks", (spec.heads,))) if spec.sinks else None
        mixed, present = target.attention(graph, step, spec, q, k, v, past, sinks)
        width = spec.heads * spec.head_dim
        return linear(graph, target, "o_proj", mixed, width, hidden, spec.output_bias), present


def shared_attention(
    graph: Graph, target: Target, step: Step, spec: Attention, hidden: int, x: ir.Value, shared: Pair
) -> ir.Value:
    """The same of queries alone: ``shared`` are another layer's present key and value, the call's own tokens included.

    The other layer has normed and turned its keys already.
    """
    with graph.scope("self_attn"):
        q = linear(graph, target, "q_proj", x, hidden, spec.heads * spec.head_dim, spec.qkv_bias)
        if spec.qk_norm is not None:
            q = _qk_norm(graph, target, spec.qk_norm, "q_norm", spec.heads, spec.head_dim, q)
        mixed = target.shared_attention(graph, step, spec, q, shared)
        return linear(graph, target, "o_proj", mixed, spec.heads * spec.head_dim, hidden, spec.output_bias)


def _projections(
    graph: Graph, target: Target, spec: Attention, hidden: int, x: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    names = ("q_proj", "k_proj", "v_proj")
    counts = (spec.heads, spec.kv_heads, spec.kv_heads)
    if spec.packed is None:
        given = names[: 2 if spec.values_are_keys else 3]
        q, k, *values = (
            linear(graph, target, name, x, hidden, count * spec.head_dim, spec.qkv_bias)
            for name, count in zip(given, counts, strict=False)
        )
        v = values[0] if values else k
    else:
        parts = _parts(spec.packed, counts, spec.head_dim)
        q, k, v = (
            linear_part(graph, target, name, part, x, hidden, spec.qkv_bias)
            for name, part in zip(names, parts, strict=True)
        )
    return q, k, v


def _parts(packed: Packed, heads: Sequence[int], head_dim: int) -> list[Part]:
    """Where queries, keys and values lie in the packed module."""
    rows = sum(heads) * head_dim
    if packed.packing is Packing.BY_HEAD:
        queries = heads[0] // heads[1] * head_dim
        within = [(0, queries), (queries, queries + head_dim), (queries + head_dim, queries + 2 * head_dim)]
        firsts = range(0, rows, queries + 2 * head_dim)
        return [Part(packed.name, rows, [(first + a, first + b) for first in firsts]) for a, b in within]
    ends = np.cumsum([count * head_dim for count in heads]).tolist()
    return [Part(packed.name, rows, [(start, end)]) for start, end in zip([0, *ends], ends, strict=False)]


def _normed(graph: Graph, target: Target, spec: Attention, qk: QkNorm, q: ir.Value, k: ir.Value) -> Pair:
    return (
        _qk_norm(graph, target, qk, "q_norm", spec.heads, spec.head_dim, q),
        _qk_norm(graph, target, qk, "k_norm", spec.kv_heads, spec.head_dim, k),
    )


def _qk_norm(graph: Graph, target: Target, qk: QkNorm, name: str, heads: int, head_dim: int, x: ir.Value) -> ir.Value:
    if qk.extent is Extent.PROJECTION:
        return norm(graph, target, qk.norm, name, heads * head_dim, x)
    if qk.extent is Extent.HEAD:
        return _head_norm(graph, target, qk.norm, name, heads, head_dim, x)
    split, joined = _shapes(graph, heads, head_dim)
    apart = graph.op.Reshape(x, split)
    match qk.extent:
        case Extent.EACH_HEAD:
            normed = norm_of_each_head(graph, target, qk.norm, name, heads, head_dim, apart, one_tensor)
        case Extent.HEAD_BY_HEAD:
            normed = norm_of_each_head(graph, target, qk.norm, name, heads, head_dim, apart, tensor_a_head)
    return graph.op.Reshape(normed, joined)


def _head_norm(
    graph: Graph, target: Target, spec: AnyNorm, name: str, heads: int, head_dim: int, x: ir.Value
) -> ir.Value:
    """A norm of each head of [batch, sequence, heads * head_dim], with one weight for all heads or none."""
    split, joined = _shapes(graph, heads, head_dim)
    return graph.op.Reshape(norm(graph, target, spec, name, head_dim, graph.op.Reshape(x, split)), joined)


def _shapes(graph: Graph, heads: int, head_dim: int) -> tuple[ir.Value, ir.Value]:
    """Heads apart, and joined again."""
    return (
        graph.constant(np.array([0, 0, heads, head_dim]), f"shape.heads.{heads}.{head_dim}"),
        graph.constant(np.array([0, 0, heads * head_dim]), f"shape.joined.{heads * head_dim}"),
    )
