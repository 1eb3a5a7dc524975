"""Norms, and the residual stream whose additions wait for them."""

import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.spec import Norm
from paritas.targets.base import Target


def norm(graph: Graph, target: Target, spec: Norm, name: str, width: int, x: ir.Value) -> ir.Value:
    """RMSNorm of the last axis of ``x``, by the parameter ``name.weight`` [width]."""
    return target.norm(graph, x, _scale(graph, spec, name, width), spec.eps)


def maybe_norm(graph: Graph, target: Target, spec: Norm, name: str | None, width: int, x: ir.Value) -> ir.Value:
    """A norm at a place where not every family has one."""
    return x if name is None else norm(graph, target, spec, name, width, x)


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

    def norm(self, spec: Norm, name: str) -> ir.Value:
        """The stream so far, normalised by ``name.weight``."""
        scale = _scale(self._graph, spec, name, self._width)
        if self._pending is None:
            return self._target.norm(self._graph, self._x, scale, spec.eps)
        normed, self._x = self._target.add_norm(self._graph, self._x, self._pending, scale, spec.eps)
        self._pending = None
        return normed


def _scale(graph: Graph, spec: Norm, name: str, width: int) -> ir.Value:
    with graph.scope(name):
        return graph.parameter("weight", graph.stored("weight", (width,)) + spec.offset)
