"""The semantic operations that a target writes in its own operators.

A target sees operations and spec values; it never sees a family or a configuration. What it cannot express it
refuses (:class:`paritas.errors.Unsupported`, with the reason and what to do); it never approximates.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.graph.rope import tables
from paritas.spec import Attention, Decoder, Rope
from paritas.weights import Computed, Weight


@dataclass(frozen=True)
class Step:
    """What every layer of one forward pass shares. Each target has its own kind."""

    context: int


class Target(ABC):
    """How each operation is written in ONNX."""

    name: ClassVar[str]
    opsets: ClassVar[Mapping[str, int]]
    shares_cache_buffers: ClassVar[bool]  # attention writes the present cache over the past one

    @abstractmethod
    def check(self, spec: Decoder) -> None:
        """Refuse a spec that this target cannot express, before any work.

        Raises:
            Unsupported: with the first layer and the reason.
        """

    @abstractmethod
    def begin(self, graph: Graph, spec: Decoder, context: int, ids: ir.Value, mask: ir.Value) -> Step:
        """Values that all layers share: positions, masks, lengths. ids [batch, sequence], mask [batch, total]."""

    @abstractmethod
    def norm(self, graph: Graph, x: ir.Value, scale: ir.Value, eps: float) -> ir.Value:
        """RMSNorm over the last axis, accumulated in fp32."""

    @abstractmethod
    def add_norm(
        self, graph: Graph, x: ir.Value, delta: ir.Value, scale: ir.Value, eps: float
    ) -> tuple[ir.Value, ir.Value]:
        """RMSNorm of ``x + delta``; returns the norm and the sum."""

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
    ) -> tuple[ir.Value, tuple[ir.Value, ir.Value]]:
        """RoPE on q and k, cache, masked softmax. q [batch, sequence, heads * head_dim], k and v with kv_heads."""

    @abstractmethod
    def head(self, graph: Graph, x: ir.Value, table: ir.Value, hidden: int, vocab: int) -> ir.Value:
        """``x @ table.T`` for a table [vocab, hidden] that the graph may also use for the embedding."""

    def linear(self, graph: Graph, x: ir.Value, weight: Weight) -> ir.Value:
        """``x @ weight.T`` for a weight [outputs, inputs] as the checkpoint stores it."""
        return graph.op.MatMul(x, graph.parameter("weight", weight.T))


def rope_tables(graph: Graph, rope: Rope, context: int) -> tuple[ir.Value, ir.Value]:
    """cos and sin, [context, dim / 2]: one pair for each distinct Rope, so that no layer can use another one's."""
    name = f"rope.{rope.theta:g}.{rope.dim}" + (f".{rope.scaling}" if rope.scaling else "")
    shape = (context, rope.dim // 2)
    with graph.root():
        cos = graph.parameter(f"{name}.cos", Computed(shape, lambda start, stop: tables(rope, start, stop)[0]))
        sin = graph.parameter(f"{name}.sin", Computed(shape, lambda start, stop: tables(rope, start, stop)[1]))
    return cos, sin
