"""What works on each position alone: the gated MLP and the plain one."""

import onnx_ir as ir

from paritas.graph.activation import activation
from paritas.graph.builder import Graph
from paritas.graph.experts import experts
from paritas.graph.linear import Part, linear, linear_part, router
from paritas.graph.sparsity import sparse
from paritas.spec import Experts, Mlp, MlpModule, PlainMlp
from paritas.targets.base import Target


def feed_forward(graph: Graph, target: Target, spec: MlpModule, hidden: int, x: ir.Value) -> ir.Value:
    """Whatever the layer has, [batch, sequence, hidden] in and out."""
    with graph.scope("mlp"):
        match spec:
            case Mlp():
                return mlp(graph, target, spec, hidden, x)
            case PlainMlp():
                return plain_mlp(graph, target, spec, hidden, x)
            case Experts():
                return mixture(graph, target, spec, hidden, x)


def mixture(graph: Graph, target: Target, spec: Experts, hidden: int, x: ir.Value) -> ir.Value:
    """The chosen experts and the shared one, if there is one."""
    routed = experts(graph, target, spec, hidden, x)
    if spec.shared is None:
        return routed
    with graph.scope("shared_expert"):
        shared = mlp(graph, target, spec.shared, hidden, x)
    share = graph.op.Sigmoid(router(graph, target, "shared_expert_gate", x, hidden, 1))
    return graph.op.Add(routed, graph.op.Mul(share, shared))


def mlp(graph: Graph, target: Target, spec: Mlp, hidden: int, x: ir.Value) -> ir.Value:
    """``down(activation(gate(x)) * up(x))``, [batch, sequence, hidden] in and out."""
    if spec.packed is None:
        gate = linear(graph, target, "gate_proj", x, hidden, spec.width, spec.bias)
        up = linear(graph, target, "up_proj", x, hidden, spec.width, spec.bias)
    else:
        first = Part(spec.packed, 2 * spec.width, [(0, spec.width)])
        second = Part(spec.packed, 2 * spec.width, [(spec.width, 2 * spec.width)])
        gate = linear_part(graph, target, "gate_proj", first, x, hidden, spec.bias)
        up = linear_part(graph, target, "up_proj", second, x, hidden, spec.bias)
    if spec.sparsity is not None:
        gate = sparse(graph, spec.sparsity, gate)
    gated = graph.op.Mul(activation(graph, spec.activation, gate), up)
    return linear(graph, target, "down_proj", gated, spec.width, hidden, spec.bias)


def plain_mlp(graph: Graph, target: Target, spec: PlainMlp, hidden: int, x: ir.Value) -> ir.Value:
    """``down(activation(up(x)))``, [batch, sequence, hidden] in and out."""
    up = linear(graph, target, "up_proj", x, hidden, spec.width, spec.bias)
    return linear(graph, target, "down_proj", activation(graph, spec.activation, up), spec.width, hidden, spec.bias)
