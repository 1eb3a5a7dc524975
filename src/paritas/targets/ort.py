"""ONNX Runtime's fused operators: GroupQueryAttention with its own rotary and window, SkipSimplifiedLayerNormalization.

The attention takes positions and padding from lengths, so a batch has to be padded on the right. A batch padded on
the left needs the ``onnx`` target.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import onnx_ir as ir

from paritas.errors import Unsupported
from paritas.graph.builder import Graph
from paritas.spec import Attention, Decoder
from paritas.targets.base import Step, Target, rope_tables

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class OrtStep(Step):
    """last: index of the last real token of each row, int32 [batch]; total: length of the longest row, int32 scalar."""

    last: ir.Value
    total: ir.Value


class OrtTarget(Target):
    """ONNX Runtime, CPU and other providers that have GroupQueryAttention."""

    name = "ort"
    opsets: ClassVar[Mapping[str, int]] = {"": 21, MICROSOFT: 1}
    shares_cache_buffers = True

    def check(self, spec: Decoder) -> None:
        """GroupQueryAttention's kernels want heads of a multiple of 16 and rotary halves of a multiple of 8."""
        for index, layer in enumerate(spec.layers):
            attention = layer.attention
            if attention.head_dim % 16 or attention.rope.dim % 16:
                raise Unsupported(
                    "target-head-dim",
                    f"GroupQueryAttention needs head_dim and rotary dimension to be multiples of 16; layer {index} "
                    f"has {attention.head_dim} and {attention.rope.dim}",
                    hint="Use --target onnx.",
                )

    def begin(self, graph: Graph, spec: Decoder, context: int, ids: ir.Value, mask: ir.Value) -> OrtStep:
        """Lengths out of the mask."""
        op = graph.op
        with graph.scope("step"):
            one = graph.constant(np.array([1]), "axis.1")
            last = op.Cast(op.Sub(op.ReduceSum(mask, one, keepdims=0), one), to=ir.DataType.INT32)
            total = op.Cast(op.Squeeze(op.Shape(mask, start=1, end=2)), to=ir.DataType.INT32)
            return OrtStep(context, last, total)

    def norm(self, graph: Graph, x: ir.Value, scale: ir.Value, eps: float) -> ir.Value:
        """SimplifiedLayerNormalization: ONNX Runtime's RMSNorm, older than the standard's and in its main domain."""
        return graph.op.SimplifiedLayerNormalization(x, scale, axis=-1, epsilon=eps, stash_type=1)

    def add_norm(
        self, graph: Graph, x: ir.Value, delta: ir.Value, scale: ir.Value, eps: float
    ) -> tuple[ir.Value, ir.Value]:
        """SkipSimplifiedLayerNormalization gives the norm and the sum."""
        normed, _, _, total = graph.op.SkipSimplifiedLayerNormalization(
            x, delta, scale, epsilon=eps, _domain=MICROSOFT, _outputs=4
        )
        return normed, total

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
        """GroupQueryAttention does the rotary, the cache (in place, if the runtime shares buffers) and the window."""
        step = cast(OrtStep, step)
        cos, sin = rope_tables(graph, spec.rope, step.context)
        out, key, value = graph.op.GroupQueryAttention(
            q,
            k,
            v,
            *past,
            step.last,
            step.total,
            cos,
            sin,
            num_heads=spec.heads,
            kv_num_heads=spec.kv_heads,
            scale=spec.scale,
            local_window_size=spec.window or -1,
            do_rotary=1,
            rotary_interleaved=0,
            _domain=MICROSOFT,
            _outputs=3,
        )
        return out, (key, value)

    def head(self, graph: Graph, x: ir.Value, table: ir.Value, hidden: int, vocab: int) -> ir.Value:
        """FusedMatMul reads the table as it lies (transB), so that a tied one is stored once."""
        return graph.op.FusedMatMul(x, table, transB=1, _domain=MICROSOFT)
