"""Standard operators only (opset 23): Attention, RotaryEmbedding, RMSNormalization. Left padding works."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.spec import Attention, Decoder
from paritas.targets.base import Step, Target, rope_tables


@dataclass(frozen=True)
class OnnxStep(Step):
    """positions [batch, sequence]; masks: window -> bool [batch, 1, sequence, total], true where a key is visible."""

    positions: ir.Value
    masks: Mapping[int | None, ir.Value]


class OnnxTarget(Target):
    """Plain ONNX."""

    name = "onnx"
    opsets: ClassVar[Mapping[str, int]] = {"": 23}
    shares_cache_buffers = False

    def check(self, spec: Decoder) -> None:
        """Everything in the spec can be said in standard operators."""

    def begin(self, graph: Graph, spec: Decoder, context: int, ids: ir.Value, mask: ir.Value) -> OnnxStep:
        """Positions count the real tokens (as transformers' generate does); masks compare slots (as its masks do)."""
        with graph.scope("step"):
            windows = {layer.attention.window for layer in spec.layers}
            return OnnxStep(context, _positions(graph, ids, mask), _masks(graph, ids, mask, windows))

    def norm(self, graph: Graph, x: ir.Value, scale: ir.Value, eps: float) -> ir.Value:
        """RMSNormalization."""
        return graph.op.RMSNormalization(x, scale, axis=-1, epsilon=eps, stash_type=1)

    def add_norm(
        self, graph: Graph, x: ir.Value, delta: ir.Value, scale: ir.Value, eps: float
    ) -> tuple[ir.Value, ir.Value]:
        """Add, then RMSNormalization."""
        total = graph.op.Add(x, delta)
        return self.norm(graph, total, scale, eps), total

    def attention(
        self,
        graph: Graph,
        step: Step,
        spec: Attention,
        q: ir.Value,
        k: ir.Value,
        v: ir.Value,
        past: tuple[ir.Value, ir.Value],
    ) -> tuple[ir.Value, tuple[ir.Value, ir.Value]]:
        """RotaryEmbedding twice, then Attention with the mask of the layer's window; the cache is concatenated."""
        step = cast(OnnxStep, step)
        cos, sin = rope_tables(graph, spec.rope, step.context)
        partial = {} if spec.rope.dim == spec.head_dim else {"rotary_embedding_dim": spec.rope.dim}
        q = graph.op.RotaryEmbedding(q, cos, sin, step.positions, num_heads=spec.heads, **partial)
        k = graph.op.RotaryEmbedding(k, cos, sin, step.positions, num_heads=spec.kv_heads, **partial)
        out, key, value = graph.op.Attention(
            q,
            k,
            v,
            step.masks[spec.window],
            *past,
            scale=spec.scale,
            q_num_heads=spec.heads,
            kv_num_heads=spec.kv_heads,
            _outputs=3,
        )
        return out, (key, value)

    def head(self, graph: Graph, x: ir.Value, table: ir.Value, hidden: int, vocab: int) -> ir.Value:
        """Gemm reads the table as it lies (transB): a tied one is stored once. It wants two axes, hence the shapes."""
        op = graph.op
        rows = op.Reshape(x, graph.constant(np.array([-1, hidden]), "shape.rows"))
        logits = op.Gemm(rows, table, transB=1)
        batch_and_sequence = op.Shape(x, start=0, end=2)
        shape = op.Concat(batch_and_sequence, graph.constant(np.array([vocab]), "vocab"), axis=0)
        return op.Reshape(logits, shape)


def _positions(graph: Graph, ids: ir.Value, mask: ir.Value) -> ir.Value:
    op = graph.op
    one = graph.constant(np.array(1), "one")
    zero = graph.constant(np.array(0), "zero")
    counted = op.Max(op.Sub(op.CumSum(mask, one), one), zero)  # [batch, total]
    length = op.Shape(ids, start=1, end=2)
    total = op.Shape(mask, start=1, end=2)
    axis = graph.constant(np.array([1]), "axis.1")
    return op.Slice(counted, op.Sub(total, length), total, axis)


def _masks(graph: Graph, ids: ir.Value, mask: ir.Value, windows: set[int | None]) -> Mapping[int | None, ir.Value]:
    op = graph.op
    one = graph.constant(np.array(1), "one")
    zero = graph.constant(np.array(0), "zero")
    length = op.Squeeze(op.Shape(ids, start=1, end=2))
    total = op.Squeeze(op.Shape(mask, start=1, end=2))
    keys = op.Range(zero, total, one)  # [total]
    queries = op.Unsqueeze(op.Range(op.Sub(total, length), total, one), graph.constant(np.array([1]), "axis.1"))
    real = op.Cast(op.Unsqueeze(mask, graph.constant(np.array([1, 2]), "axes.1.2")), to=ir.DataType.BOOL)
    # A token always sees itself: a query of the padding would otherwise see nothing, and softmax would make it NaN.
    visible = op.Or(op.And(op.LessOrEqual(keys, queries), real), op.Equal(keys, queries))

    def masked(window: int | None) -> ir.Value:
        if window is None:
            return visible
        first = op.Sub(queries, graph.constant(np.array(window), f"window.{window}"))
        return op.And(visible, op.Greater(keys, first))

    return {window: masked(window) for window in sorted(windows, key=lambda w: w or 0)}
