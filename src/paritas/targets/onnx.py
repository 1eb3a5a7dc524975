"""Standard operators only (opset 23): Attention, RotaryEmbedding, RMSNormalization. Left padding works."""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.spec import Attention, Decoder, Experts, Layer, Rope
from paritas.targets import mixture, standard
from paritas.targets.base import ExpertWeights, Scale, Step, Target, attentions
from paritas.weights import Weight


class OnnxTarget(Target):
    """Plain ONNX."""

    name = "onnx"

    def opsets(self, spec: Decoder) -> Mapping[str, int]:
        """The one that has Attention and RotaryEmbedding."""
        return {"": 23}

    def shares_cache_buffers(self, spec: Decoder) -> bool:
        """Attention returns a new cache."""
        return False

    def check(self, spec: Decoder) -> None:
        """Everything in the spec can be said in standard operators."""

    def falls_back(self, layer: Layer) -> str | None:
        """There is one choice."""
        return None

    def begin(self, graph: Graph, spec: Decoder, context: int, ids: ir.Value, mask: ir.Value) -> Step:
        """Positions and masks."""
        return standard.begin(graph, attentions(spec), context, ids, mask)

    def begin_drafting(
        self, graph: Graph, attentions: Sequence[Attention], context: int, where: ir.Value, keys: Sequence[ir.Value]
    ) -> Step:
        """Positions as they are given, and masks by what is borrowed."""
        return standard.begin_drafting(graph, attentions, context, where, keys)

    def norm(self, graph: Graph, x: ir.Value, scale: Scale) -> ir.Value:
        """RMSNormalization or LayerNormalization."""
        return standard.norm(graph, x, scale)

    def rotate(self, graph: Graph, step: Step, rope: Rope, heads: int, head_dim: int, x: ir.Value) -> ir.Value:
        """RotaryEmbedding."""
        return standard.rotate(graph, cast(standard.StandardStep, step), rope, heads, head_dim, x)

    def attention(
        self,
        graph: Graph,
        step: Step,
        spec: Attention,
        q: ir.Value,
        k: ir.Value,
        v: ir.Value,
        past: tuple[ir.Value, ir.Value],
        sinks: ir.Value | None,
    ) -> tuple[ir.Value, tuple[ir.Value, ir.Value]]:
        """RotaryEmbedding twice, then Attention with the mask of the layer's window; the cache is concatenated."""
        return standard.attention(graph, cast(standard.StandardStep, step), spec, q, k, v, past, sinks)

    def shared_attention(
        self, graph: Graph, step: Step, spec: Attention, q: ir.Value, shared: tuple[ir.Value, ir.Value]
    ) -> ir.Value:
        """RotaryEmbedding, then Attention with the mask of the layer's window and no cache of its own."""
        step = cast(standard.StandardStep, step)
        if spec.rope is not None:
            q = self.rotate(graph, step, spec.rope, spec.heads, spec.head_dim, q)
        return standard.shared_attention(graph, spec, q, shared, step.masks[spec.window])

    def experts(self, graph: Graph, spec: Experts, x: ir.Value, scores: ir.Value, weights: ExpertWeights) -> ir.Value:
        """A Loop over the experts that were chosen."""
        return mixture.experts(graph, spec, x, scores, weights)

    def convolution(
        self, graph: Graph, x: ir.Value, weight: ir.Value, bias: ir.Value | None, past: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Conv with a group for each channel, over the state and what follows it."""
        return standard.convolution(graph, x, weight, bias, past)

    def head(self, graph: Graph, x: ir.Value, table: Weight, hidden: int, vocab: int) -> ir.Value:
        """Gemm reads the table as it lies (transB): a tied one is stored once. It wants two axes, hence the shapes."""
        op = graph.op
        rows = op.Reshape(x, graph.constant(np.array([-1, hidden]), "shape.rows"))
        logits = op.Gemm(rows, graph.parameter("weight", table), transB=1)
        batch_and_sequence = op.Shape(x, start=0, end=2)
        shape = op.Concat(batch_and_sequence, graph.constant(np.array([vocab]), "vocab"), axis=0)
        return op.Reshape(logits, shape)
