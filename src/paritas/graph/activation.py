"""What stands between the two halves of a feed-forward, in operators that every target has."""

import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.spec import Activation, ClampedSwiglu


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
        case Activation.RELU2:
            positive = op.Relu(x)
            return op.Mul(positive, positive)


def gated(graph: Graph, kind: Activation | ClampedSwiglu, gate: ir.Value, up: ir.Value) -> ir.Value:
    """``activation(gate) * up``, or the clamped form."""
    op = graph.op
    if isinstance(kind, Activation):
        return op.Mul(activation(graph, kind, gate), up)
    most = graph.scalar(kind.limit, f"swiglu.limit.{kind.limit!r}")
    least = graph.scalar(-kind.limit, f"swiglu.limit.{-kind.limit!r}")
    alpha = graph.scalar(kind.alpha, f"swiglu.alpha.{kind.alpha!r}")
    gate = op.Min(gate, most)
    opened = op.Mul(gate, op.Sigmoid(op.Mul(gate, alpha)))
    return op.Mul(opened, op.Add(op.Clip(up, least, most), graph.scalar(1.0, "one.fp32")))
