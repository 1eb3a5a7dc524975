"""A linear layer of the checkpoint."""

import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.targets.base import Target


def linear(
    graph: Graph, target: Target, name: str, x: ir.Value, inputs: int, outputs: int, bias: bool = False
) -> ir.Value:
    """``x @ name.weight.T (+ name.bias)``: [batch, sequence, inputs] -> [batch, sequence, outputs]."""
    with graph.scope(name):
        y = target.linear(graph, x, graph.stored("weight", (outputs, inputs)))
        return graph.op.Add(y, graph.parameter("bias", graph.stored("bias", (outputs,)))) if bias else y
