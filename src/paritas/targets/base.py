"""The semantic operations that a target writes in its own operators.

A target sees operations and spec values; it never sees a family or a configuration. What it cannot express it
refuses (:class:`paritas.errors.Unsupported`, with the reason and what to do); it never approximates.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from paritas.errors import Unsupported
from paritas.graph.builder import Graph
from paritas.spec import Attention, Decoder, Experts, Layer, Rope
from paritas.weights import Float, Stack, Storage, Weight


@dataclass(frozen=True)
class Step:
    """What every layer of one forward pass shares. Each target has its own kind."""

    context: int


@dataclass(frozen=True)
class RmsScale:
    """What an RMSNorm multiplies by: weight [width], offset included."""

    weight: ir.Value
    eps: float


@dataclass(frozen=True)
class LayerScale:
    """What a LayerNorm multiplies by and adds: weight and bias [width]."""

    weight: ir.Value
    bias: ir.Value | None
    eps: float


Scale = RmsScale | LayerScale


@dataclass(frozen=True)
class ExpertWeights:
    """What the experts of a layer multiply by and add: gate and up [experts, width, hidden], down transposed; biases.

    Biases are [experts, width] and [experts, hidden], and there are all or none. ``scale`` [experts] multiplies what
    each expert gives.
    """

    gate: Stack
    up: Stack
    down: Stack
    gate_bias: Stack | None = None
    up_bias: Stack | None = None
    down_bias: Stack | None = None
    scale: ir.Value | None = field(default=None, kw_only=True)


class Target(ABC):
    """How each operation is written in ONNX."""

    name: ClassVar[str]

    @abstractmethod
    def opsets(self, spec: Decoder) -> Mapping[str, int]:
        """Versions of the operator sets that the graph needs, by domain."""

    @abstractmethod
    def shares_cache_buffers(self, spec: Decoder) -> bool:
        """Whether every attention writes the present cache over the past one."""

    @abstractmethod
    def check(self, spec: Decoder) -> None:
        """Refuse a spec that this target cannot express, before any work.

        Raises:
            Unsupported: with the first layer and the reason.
        """

    @abstractmethod
    def falls_back(self, layer: Layer) -> str | None:
        """Why a layer is not written in this target's first choice of operators, and in which; None if it is."""

    @abstractmethod
    def begin(self, graph: Graph, spec: Decoder, context: int, ids: ir.Value, mask: ir.Value) -> Step:
        """Values that all layers share: positions, masks, lengths. ids [batch, sequence], mask [batch, total]."""

    def begin_drafting(
        self, graph: Graph, attentions: Sequence[Attention], context: int, where: ir.Value, keys: Sequence[ir.Value]
    ) -> Step:
        """Values that all layers of a drafter share, whose one token a call stands behind borrowed keys.

        Args:
            graph: to write into.
            attentions: of its layers; ``keys_of`` counts in ``keys``.
            context: positions that the RoPE tables cover.
            where: the token's position, [batch, 1].
            keys: [batch, kv_heads, length, head_dim] each.

        Raises:
            Unsupported: ``target-drafter``.
        """
        raise Unsupported(
            "target-drafter",
            f"the target {self.name} has no operator for one query over the keys of another model",
            hint="A drafter is written in standard operators, whatever its target model is written in.",
        )

    @abstractmethod
    def norm(self, graph: Graph, x: ir.Value, scale: Scale) -> ir.Value:
        """RMSNorm or LayerNorm over the last axis, accumulated in fp32."""

    def add_norm(self, graph: Graph, x: ir.Value, delta: ir.Value, scale: Scale) -> tuple[ir.Value, ir.Value]:
        """The norm of ``x + delta``; returns the norm and the sum.

        ONNX Runtime's operators of both at once (SkipSimplifiedLayerNormalization) sum squares one after the other: on
        rows of thousands they are ten times less exact, and no faster (benchmarks/layer_norm.py).
        """
        total = graph.op.Add(x, delta)
        return self.norm(graph, total, scale), total

    @abstractmethod
    def rotate(self, graph: Graph, step: Step, rope: Rope, heads: int, head_dim: int, x: ir.Value) -> ir.Value:
        """RoPE by itself, for attention that wants it done: x [batch, sequence, heads * head_dim]."""

    @abstractmethod
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
        """RoPE on q and k, cache, masked softmax. q [batch, sequence, heads * head_dim], k and v with kv_heads.

        ``spec`` without a RoPE rotates nothing. ``sinks`` [heads] are scores that take their share and give nothing.
        """

    @abstractmethod
    def shared_attention(
        self, graph: Graph, step: Step, spec: Attention, q: ir.Value, shared: tuple[ir.Value, ir.Value]
    ) -> ir.Value:
        """RoPE on q [batch, sequence, heads * head_dim] and masked softmax over keys and values of another layer.

        ``shared`` is what :meth:`attention` gave as present for that layer, [batch, kv_heads, total, head_dim] each.
        """

    @abstractmethod
    def experts(self, graph: Graph, spec: Experts, x: ir.Value, scores: ir.Value, weights: ExpertWeights) -> ir.Value:
        """Each token's best experts by ``scores`` [batch, sequence, experts], weighed and summed: as ``x`` in shape."""

    @abstractmethod
    def convolution(
        self, graph: Graph, x: ir.Value, weight: ir.Value, bias: ir.Value | None, past: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Each channel of x [batch, channels, sequence] by its own kernel, of weight [channels, 1, kernel].

        ``past`` [batch, channels, kernel - 1] comes before x; also returns as many last columns of the two.
        """

    @abstractmethod
    def head(self, graph: Graph, x: ir.Value, table: Weight, hidden: int, vocab: int) -> ir.Value:
        """``x @ table.T`` for a table [vocab, hidden] of the present scope, which may be the embedding's too."""

    def cannot_store(self, storage: Storage) -> str | None:
        """Why this target has no operators for matrices that are stored so; None if it has."""
        return None if isinstance(storage, Float) else "standard operators have none that multiplies by blocks"

    def embedding(self, graph: Graph, table: Weight, ids: ir.Value) -> ir.Value:
        """Rows of a table [count, width] of the present scope: ids [batch, sequence] -> [batch, sequence, width]."""
        return graph.op.Gather(graph.parameter("weight", table), ids)

    def linear(self, graph: Graph, x: ir.Value, weight: Weight) -> ir.Value:
        """``x @ weight.T`` for a weight [outputs, inputs] as the checkpoint stores it."""
        return graph.op.MatMul(x, graph.parameter("weight", weight.T))


def attentions(spec: Decoder) -> list[Attention]:
    """Of the layers that attend."""
    return [layer.mixer for layer in spec.layers if isinstance(layer.mixer, Attention)]


def positions(graph: Graph, ids: ir.Value, mask: ir.Value) -> ir.Value:
    """The position of each token of the call, [batch, sequence]: real tokens before it; of padding, any."""
    op = graph.op
    one = graph.constant(np.array(1), "one")
    zero = graph.constant(np.array(0), "zero")
    counted = op.Max(op.Sub(op.CumSum(mask, one), one), zero)  # [batch, total]
    length = op.Shape(ids, start=1, end=2)
    total = op.Shape(mask, start=1, end=2)
    axis = graph.constant(np.array([1]), "axis.1")
    return op.Slice(counted, op.Sub(total, length), total, axis)
