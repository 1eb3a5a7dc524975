"""Norms, and the residual stream whose additions wait for them."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.spec import AnyNorm, LayerNorm
from paritas.targets.base import LayerScale, RmsScale, Scale, Target
from paritas.weights import Stack, Weight


def norm(graph: Graph, target: Target, spec: AnyNorm, name: str, width: int, x: ir.Value) -> ir.Value:
    """A norm of the last axis of ``x``, by the parameters ``name.weight`` and, if it has one, ``name.bias`` [width]."""
    return target.norm(graph, x, _scale(graph, spec, name, width))


def maybe_norm(graph: Graph, target: Target, spec: AnyNorm, name: str | None, width: int, x: ir.Value) -> ir.Value:
    """A norm at a place where not every family has one."""
    return x if name is None else norm(graph, target, spec, name, width, x)


Stored = Callable[[Graph, str, int, int], Weight]
"""How a checkpoint holds a weight of each head: graph, its name, heads, head_dim -> [heads, head_dim]."""


def one_tensor(graph: Graph, name: str, heads: int, head_dim: int) -> Weight:
    """``name`` [heads, head_dim]."""
    return graph.stored(name, (heads, head_dim))


def tensor_a_head(graph: Graph, name: str, heads: int, head_dim: int) -> Weight:
    """``norms.0.name``, ``norms.1.name`` and so on, [head_dim] each."""
    tensors = [graph.tensor(f"norms.{head}.{name}", (head_dim,)) for head in range(heads)]
    sources = tuple(tensor.name for tensor in tensors)
    return Stack((heads, head_dim), sources, lambda head: tensors[head].rows(0, head_dim))


def norm_of_each_head(
    graph: Graph, target: Target, spec: AnyNorm, name: str, heads: int, head_dim: int, x: ir.Value, stored: Stored
) -> ir.Value:
    """A norm of the last axis of [..., heads, head_dim], by a weight (and a bias) of each head's own."""
    ones = graph.constant(np.ones(head_dim, np.float32), f"ones.{head_dim}")
    plain = LayerScale(ones, None, spec.eps) if isinstance(spec, LayerNorm) else RmsScale(ones, spec.eps)
    with graph.scope(name):
        weight = graph.parameter("weight", stored(graph, "weight", heads, head_dim) + spec.offset)
        scaled = graph.op.Mul(target.norm(graph, x, plain), weight)
        if isinstance(spec, LayerNorm) and spec.bias:
            return graph.op.Add(scaled, graph.parameter("bias", stored(graph, "bias", heads, head_dim)))
        return scaled


class Residual:
    """The residual stream. An addition waits for the next norm, so that a target can write the two as one operator."""

    def __init__(self, graph: Graph, target: Target, width: int, x: ir.Value) -> None:
        self._graph = graph
        self._target = target
        self._width = width
        self._x = x
        self._pending: ir.Value | None = None

    def add(self, delta: ir.Value) -> None:
        """Add ``delta`` [batch, sequence, width] to the stream."""
        if self._pending is not None:
            self._x = self._graph.op.Add(self._x, self._pending)
        self._pending = delta

    def value(self) -> ir.Value:
        """The stream so far, as it is."""
        if self._pending is not None:
            self._x, self._pending = self._graph.op.Add(self._x, self._pending), None
        return self._x

    def multiply(self, factor: ir.Value) -> None:
        """Multiply the stream so far."""
        self._x = self._graph.op.Mul(self.value(), factor)

    def divide(self, divisor: ir.Value) -> None:
        """Divide the stream so far."""
        self._x = self._graph.op.Div(self.value(), divisor)

    def norm(self, spec: AnyNorm, name: str) -> ir.Value:
        """The stream so far, normalised by ``name``."""
        scale = _scale(self._graph, spec, name, self._width)
        if self._pending is None:
            return self._target.norm(self._graph, self._x, scale)
        normed, self._x = self._target.add_norm(self._graph, self._x, self._pending, scale)
        self._pending = None
        return normed

    def maybe_norm(self, spec: AnyNorm, name: str | None) -> ir.Value:
        """The stream so far, normalised where there is a norm."""
        return self.value() if name is None else self.norm(spec, name)


def _scale(graph: Graph, spec: AnyNorm, name: str, width: int) -> Scale:
    if not spec.weight:
        ones = graph.constant(np.ones(width, np.float32), f"ones.{width}")
        return LayerScale(ones, None, spec.eps) if isinstance(spec, LayerNorm) else RmsScale(ones, spec.eps)
    with graph.scope(name):
        weight = graph.parameter("weight", graph.stored("weight", (width,)) + spec.offset)
        if not isinstance(spec, LayerNorm):
            return RmsScale(weight, spec.eps)
        bias = graph.parameter("bias", graph.stored("bias", (width,))) if spec.bias else None
        return LayerScale(weight, bias, spec.eps)
