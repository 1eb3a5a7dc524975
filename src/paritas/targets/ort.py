"""ONNX Runtime's fused operators: GroupQueryAttention with its own rotary and window, MoE, FusedMatMul.

The attention takes positions and padding from lengths, so a batch has to be padded on the right. A batch padded on
the left needs the ``onnx`` target.

Its kernels have limits, which are known from the spec. A layer beyond them is written in the next best operators:
RoPE by itself before GroupQueryAttention, or the standard Attention.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.spec import (
    Activation,
    Attention,
    Decoder,
    Dynamic,
    Experts,
    FeedForward,
    Layer,
    LongRope,
    Mixer,
    MlpAndExperts,
    Pairing,
    Place,
    Rope,
    ShortConvolution,
)
from paritas.targets import blocks, mixture, rotary, standard
from paritas.targets.base import ExpertWeights, RmsScale, Scale, Step, Target, attentions, positions
from paritas.weights import Blocks, Storage, Weight

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class OrtStep(Step):
    """Lengths of one forward pass.

    Attributes:
        last: index of the last real token of each row, int32 [batch].
        total: length of the longest row, int32 scalar.
        outside: what layers need that the fused operator does not serve whole: rows of the RoPE tables, masks.
        shared: masks [batch, 1, sequence, total] over keys that the fused operator has cached, by window.
    """

    last: ir.Value
    total: ir.Value
    outside: standard.StandardStep
    shared: Mapping[int | None, ir.Value]


class OrtTarget(Target):
    """ONNX Runtime, CPU and other providers that have GroupQueryAttention."""

    name = "ort"

    def opsets(self, spec: Decoder) -> Mapping[str, int]:
        """ONNX Runtime knows more fusions of 21 than of 23, which the standard Attention needs."""
        return {"": 21 if all(map(_fuses, attentions(spec))) else 23, MICROSOFT: 1}

    def shares_cache_buffers(self, spec: Decoder) -> bool:
        """GroupQueryAttention writes its cache in place; the standard Attention does not.

        A layer that attends to another one's keys takes all of them, and a buffer holds more than these.
        """
        return all(map(_fuses, attentions(spec)))

    def check(self, spec: Decoder) -> None:
        """What a kernel has no room for is written in other operators."""

    def falls_back(self, layer: Layer) -> str | None:
        """By the limits of the kernels of GroupQueryAttention and of MoE."""
        found = (self._mixer_falls_back(layer.mixer), self._mlp_falls_back(layer.mlp))
        return "; ".join(each for each in found if each is not None) or None

    def _mlp_falls_back(self, spec: FeedForward) -> str | None:
        experts = spec.experts if isinstance(spec, MlpAndExperts) else spec
        if not isinstance(experts, Experts) or _mixes(experts):
            return None
        if experts.scaled:
            return "Loop over the chosen experts: MoE has no scale of each expert"
        return f"Loop over the chosen experts: MoE has no kernel for a gate by {experts.activation}"

    def _mixer_falls_back(self, spec: Mixer) -> str | None:
        if isinstance(spec, ShortConvolution):
            return None
        if spec.keys_of is not None:
            return "Attention: GroupQueryAttention has no kernel for the keys of another layer"
        if not _fuses(spec):
            return f"Attention: GroupQueryAttention takes no heads of {spec.head_dim} elements"
        if spec.rope is not None and not _rotates(spec):
            if isinstance(spec.rope.scaling, LongRope | Dynamic):
                return "RotaryEmbedding by itself: GroupQueryAttention has one table, and RoPE changes with the length"
            if _normed_after(spec):
                return "RotaryEmbedding by itself: norms of queries and keys follow it"
            return (
                "RotaryEmbedding by itself: GroupQueryAttention rotates multiples of 16 elements, of heads of "
                f"multiples of 16, not {spec.rope.dim} of {spec.head_dim}"
            )
        return None

    def begin(self, graph: Graph, spec: Decoder, context: int, ids: ir.Value, mask: ir.Value) -> OrtStep:
        """Lengths out of the mask."""
        op = graph.op
        with graph.scope("step"):
            one = graph.constant(np.array([1]), "axis.1")
            last = op.Cast(op.Sub(op.ReduceSum(mask, one, keepdims=0), one), to=ir.DataType.INT32)
            total = op.Cast(op.Squeeze(op.Shape(mask, start=1, end=2)), to=ir.DataType.INT32)
            outside, shared = _outside(graph, spec, context, ids, mask), _over_shared(graph, spec, ids, mask)
            return OrtStep(context, last, total, outside, shared)

    def norm(self, graph: Graph, x: ir.Value, scale: Scale) -> ir.Value:
        """SimplifiedLayerNormalization: ONNX Runtime's RMSNorm, older than the standard's and in its main domain."""
        if isinstance(scale, RmsScale):
            return graph.op.SimplifiedLayerNormalization(x, scale.weight, axis=-1, epsilon=scale.eps, stash_type=1)
        return standard.norm(graph, x, scale)

    def rotate(self, graph: Graph, step: Step, rope: Rope, heads: int, head_dim: int, x: ir.Value) -> ir.Value:
        """ONNX Runtime's RotaryEmbedding, older than the standard's."""
        step = cast(OrtStep, step)
        own = step.outside.rotaries[rope]
        partial = {} if rope.dim == head_dim else {"rotary_embedding_dim": rope.dim}
        return graph.op.RotaryEmbedding(
            x, own.rows, own.cos, own.sin, num_heads=heads, interleaved=_interleaved(rope), **partial, _domain=MICROSOFT
        )

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
        """GroupQueryAttention does the rotary, the cache (in place, if the runtime shares buffers) and the window."""
        step = cast(OrtStep, step)
        if not _fuses(spec):
            return standard.attention(graph, step.outside, spec, q, k, v, past, sinks)
        if spec.rope is not None and not _rotates(spec):
            q = self.rotate(graph, step, spec.rope, spec.heads, spec.head_dim, q)
            k = self.rotate(graph, step, spec.rope, spec.kv_heads, spec.head_dim, k)
            spec = replace(spec, rope=None)
        tables: tuple[ir.Value | None, ...] = ()
        turning = {"do_rotary": 0}
        if spec.rope is not None:
            tables = rotary.tables(graph, spec.rope, step.context)
            turning = {"do_rotary": 1, "rotary_interleaved": _interleaved(spec.rope)}
        out, key, value = graph.op.GroupQueryAttention(
            q,
            k,
            v,
            *past,
            step.last,
            step.total,
            *(tables if sinks is None else (*(tables or (None, None)), None, None, sinks)),
            num_heads=spec.heads,
            kv_num_heads=spec.kv_heads,
            scale=spec.scale,
            local_window_size=spec.window or -1,
            softcap=spec.softcap or 0.0,
            **turning,
            _domain=MICROSOFT,
            _outputs=3,
        )
        return out, (key, value)

    def shared_attention(
        self, graph: Graph, step: Step, spec: Attention, q: ir.Value, shared: tuple[ir.Value, ir.Value]
    ) -> ir.Value:
        """RotaryEmbedding, then the standard Attention; the mask knows how the other layer's operator caches."""
        step = cast(OrtStep, step)
        if spec.rope is not None:
            q = self.rotate(graph, step, spec.rope, spec.heads, spec.head_dim, q)
        masks = step.shared if _has_kernel(spec.head_dim) else step.outside.masks
        return standard.shared_attention(graph, spec, q, shared, masks[spec.window])

    def experts(self, graph: Graph, spec: Experts, x: ir.Value, scores: ir.Value, weights: ExpertWeights) -> ir.Value:
        """MoE where it has the activation (on the CPU, a SwiGLU of interleaved rows), else as the standard target."""
        write = mixture.fused if _mixes(spec) else mixture.experts
        return write(graph, spec, x, scores, weights)

    def convolution(
        self, graph: Graph, x: ir.Value, weight: ir.Value, bias: ir.Value | None, past: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """CausalConvWithState."""
        return graph.op.CausalConvWithState(
            x, weight, bias, past, ndim=1, activation="none", _domain=MICROSOFT, _outputs=2
        )

    def cannot_store(self, storage: Storage) -> str | None:
        """It has operators for all."""
        return None

    def embedding(self, graph: Graph, table: Weight, ids: ir.Value) -> ir.Value:
        """Gather, or GatherBlockQuantized of integers."""
        return (blocks.rows if isinstance(table.storage, Blocks) else super().embedding)(graph, table, ids)

    def linear(self, graph: Graph, x: ir.Value, weight: Weight) -> ir.Value:
        """MatMul, or MatMulNBits of integers."""
        return (blocks.product if isinstance(weight.storage, Blocks) else super().linear)(graph, x, weight)

    def head(self, graph: Graph, x: ir.Value, table: Weight, hidden: int, vocab: int) -> ir.Value:
        """FusedMatMul reads the table as it lies (transB), so that a tied one is stored once; so does MatMulNBits."""
        if isinstance(table.storage, Blocks):
            return blocks.product(graph, x, table)
        return graph.op.FusedMatMul(x, graph.parameter("weight", table), transB=1, _domain=MICROSOFT)


def _fuses(spec: Attention) -> bool:
    """Whether the layer is written as GroupQueryAttention."""
    return spec.keys_of is None and _has_kernel(spec.head_dim)


def _has_kernel(head_dim: int) -> bool:
    """Whether GroupQueryAttention has one for such heads."""
    return head_dim % 8 == 0


def _rotates(spec: Attention) -> bool:
    """Whether GroupQueryAttention itself can do the layer's RoPE."""
    rope = spec.rope
    if rope is None or isinstance(rope.scaling, LongRope | Dynamic) or _normed_after(spec) or spec.keys_of is not None:
        return False
    return spec.head_dim % 16 == 0 and rope.dim % 16 == 0


def _mixes(spec: Experts) -> bool:
    """Whether MoE has a kernel for the experts' activation, and can say all else."""
    return not spec.scaled and (spec.activation is Activation.SILU or not isinstance(spec.activation, Activation))


def _normed_after(spec: Attention) -> bool:
    return spec.qk_norm is not None and spec.qk_norm.place is Place.AFTER_ROPE


def _outside(graph: Graph, spec: Decoder, context: int, ids: ir.Value, mask: ir.Value) -> standard.StandardStep:
    """Positions for RoPE by itself, and masks for the standard Attention, where there is a layer that wants them."""
    specs = list(attentions(spec))
    alone = [each.rope for each in specs if each.rope is not None and not _rotates(each)]
    windows = {each.window for each in specs if not _has_kernel(each.head_dim)}
    return standard.StandardStep(
        context,
        rotary.rotaries(graph, alone, context, ids, mask),
        standard.masks(graph, ids, mask, windows) if windows else {},
    )


def _over_shared(graph: Graph, spec: Decoder, ids: ir.Value, mask: ir.Value) -> Mapping[int | None, ir.Value]:
    """Masks of the layers that attend to keys which GroupQueryAttention has cached: each key lies at its position."""
    sharing = [each for each in attentions(spec) if each.keys_of is not None and _has_kernel(each.head_dim)]
    if not sharing:
        return {}
    return standard.masks_by_position(graph, positions(graph, ids, mask), mask, {each.window for each in sharing})


def _interleaved(rope: Rope) -> int:
    return int(rope.pairing is Pairing.NEIGHBOURS)
