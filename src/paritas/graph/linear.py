"""A linear layer of the checkpoint: a module of its own, or some rows of a packed one."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.targets.base import Target


@dataclass(frozen=True)
class Part:
    """Rows of the module ``name`` of the scope above, whose weight has ``rows`` in all."""

    name: str
    rows: int
    ranges: Sequence[tuple[int, int]]


def linear(
    graph: Graph, target: Target, name: str, x: ir.Value, inputs: int, outputs: int, bias: bool = False
) -> ir.Value:
    """``x @ name.weight.T (+ name.bias)``: [batch, sequence, inputs] -> [batch, sequence, outputs]."""
    with graph.scope(name):
        y = target.linear(graph, x, graph.matrix("weight", graph.stored("weight", (outputs, inputs))))
        return graph.op.Add(y, graph.parameter("bias", graph.stored("bias", (outputs,)))) if bias else y


def router(
    graph: Graph, target: Target, name: str, x: ir.Value, inputs: int, outputs: int, bias: bool = False
) -> ir.Value:
    """The same of a small matrix that decides: rounded, it would choose other experts, so it never is."""
    with graph.scope(name):
        y = target.linear(graph, x, graph.stored("weight", (outputs, inputs)))
        return graph.op.Add(y, graph.parameter("bias", graph.stored("bias", (outputs,)))) if bias else y


def linear_part(
    graph: Graph, target: Target, name: str, part: Part, x: ir.Value, inputs: int, bias: bool = False
) -> ir.Value:
    """The same with a part of a packed module; the graph calls it ``name``, as if it were one of its own."""
    with graph.scope(part.name):
        weight = graph.packed("weight", (part.rows, inputs), part.ranges)
        offset = graph.packed("bias", (part.rows,), part.ranges) if bias else None
    with graph.scope(name):
        y = target.linear(graph, x, graph.matrix("weight", weight))
        return y if offset is None else graph.op.Add(y, graph.parameter("bias", offset))
