"""The gated MLP."""

import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.graph.linear import linear
from paritas.spec import Activation, Mlp
from paritas.targets.base import Target


def mlp(graph: Graph, target: Target, spec: Mlp, hidden: int, x: ir.Value) -> ir.Value:
    """``down(activation(gate(x)) * up(x))``, [batch, sequence, hidden] in and out."""
    with graph.scope("mlp"):
        gate = linear(graph, target, "gate_proj", x, hidden, spec.width, spec.bias)
        up = linear(graph, target, "up_proj", x, hidden, spec.width, spec.bias)
        gated = graph.op.Mul(activation(graph, spec.activation, gate), up)
        return linear(graph, target, "down_proj", gated, spec.width, hidden, spec.bias)


def activation(graph: Graph, kind: Activation, x: ir.Value) -> ir.Value:
    """An activation, in operators that every target has (ONNX Runtime fuses x * sigmoid(x) by itself)."""
    op = graph.op
    match kind:
        case Activation.SILU:
            return op.Mul(x, op.Sigmoid(x))
        case Activation.GELU:
            return op.Gelu(x, approximate="none")
        case Activation.GELU_TANH:
            return op.Gelu(x, approximate="tanh")
        case Activation.RELU:
            return op.Relu(x)
