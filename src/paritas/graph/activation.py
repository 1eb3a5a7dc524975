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
        case Activation.XIELU:
            return xielu(graph, x)


def xielu(graph: Graph, x: ir.Value) -> ir.Value:
    """``a x^2 + beta x`` where x is positive, ``b (e^x - 1 - x) + beta x`` elsewhere, with a and b - beta of softplus.

    ``e^x - 1`` is ``2 t / (1 - t)`` with ``t = tanh(x / 2)``, which loses nothing near 0.
    """
    op = graph.op
    half, one = graph.scalar(0.5, "half.fp32"), graph.scalar(1.0, "one.fp32")
    with graph.scope("act_fn"):
        up, down = (op.Softplus(graph.parameter(each, graph.stored(each, (1,)))) for each in ("alpha_p", "alpha_n"))
        beta, eps = _number(graph, "beta", 0.5), _number(graph, "eps", -1e-6)
    least = op.Min(x, eps)
    tanh = op.Tanh(op.Mul(least, half))
    below = op.Sub(op.Div(op.Add(tanh, tanh), op.Sub(one, tanh)), x)
    bent = op.Where(
        op.Greater(x, graph.scalar(0.0, "zero.fp32")), op.Mul(op.Mul(up, x), x), op.Mul(op.Add(down, beta), below)
    )
    return op.Add(bent, op.Mul(x, beta))


def _number(graph: Graph, name: str, default: float) -> ir.Value:
    """A buffer of the present scope; older checkpoints leave it to the class."""
    if graph.has(name):
        return graph.parameter(name, graph.stored(name, ()))
    return graph.scalar(default, f"xielu.{name}")


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
