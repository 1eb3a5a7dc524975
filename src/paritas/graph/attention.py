"""Causal self-attention with grouped key/value heads, RoPE, an optional window and optional QK-norm."""

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.graph.linear import linear
from paritas.graph.norm import norm
from paritas.spec import Attention, Norm
from paritas.targets.base import Step, Target


def attention(
    graph: Graph,
    target: Target,
    step: Step,
    spec: Attention,
    hidden: int,
    x: ir.Value,
    past: tuple[ir.Value, ir.Value],
) -> tuple[ir.Value, tuple[ir.Value, ir.Value]]:
    """[batch, sequence, hidden] in and out; also the present key and value, [batch, kv_heads, total, head_dim]."""
    q_width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    with graph.scope("self_attn"):
        q = linear(graph, target, "q_proj", x, hidden, q_width, spec.qkv_bias)
        k = linear(graph, target, "k_proj", x, hidden, kv_width, spec.qkv_bias)
        v = linear(graph, target, "v_proj", x, hidden, kv_width, spec.qkv_bias)
        if spec.qk_norm is not None:  # before RoPE: the norm's weight is not the same for both halves of a pair
            q = _head_norm(graph, target, spec.qk_norm, "q_norm", spec.heads, spec.head_dim, q)
            k = _head_norm(graph, target, spec.qk_norm, "k_norm", spec.kv_heads, spec.head_dim, k)
        mixed, present = target.attention(graph, step, spec, q, k, v, past)
        return linear(graph, target, "o_proj", mixed, q_width, hidden, spec.output_bias), present


def _head_norm(graph: Graph, target: Target, spec: Norm, name: str, heads: int, head_dim: int, x: ir.Value) -> ir.Value:
    split = graph.constant(np.array([0, 0, heads, head_dim]), f"shape.heads.{heads}.{head_dim}")
    joined = graph.constant(np.array([0, 0, heads * head_dim]), f"shape.joined.{heads * head_dim}")
    normed = norm(graph, target, spec, name, head_dim, graph.op.Reshape(x, split))
    return graph.op.Reshape(normed, joined)
