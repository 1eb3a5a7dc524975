"""A gated MLP and experts of the same stream, each with norms of its own."""

import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.graph.experts import routed
from paritas.graph.linear import router
from paritas.graph.mlp import feed_forward
from paritas.graph.norm import norm
from paritas.spec import AnyNorm, MlpAndExperts
from paritas.targets.base import RmsScale, Target


def mlp_and_experts(
    graph: Graph, target: Target, spec: MlpAndExperts, kind: AnyNorm, hidden: int, x: ir.Value, stream: ir.Value
) -> ir.Value:
    """Their sum, [batch, sequence, hidden] as ``x``, which the MLP takes, and ``stream``, which the experts take.

    ``kind`` is that of the layer's norms.
    """
    made = feed_forward(graph, target, spec.mlp, hidden, x)
    made = norm(graph, target, kind, spec.after_mlp, hidden, made)
    with graph.scope("router"):
        scores = _scores(graph, target, spec, kind, hidden, stream)
        scale = graph.parameter("per_expert_scale", graph.stored("per_expert_scale", (spec.experts.count,)))
    taken = norm(graph, target, kind, spec.before_experts, hidden, stream)
    given = routed(graph, target, spec.experts, hidden, taken, scores, scale if spec.experts.scaled else None)
    return graph.op.Add(made, norm(graph, target, kind, spec.after_experts, hidden, given))


def _scores(
    graph: Graph, target: Target, spec: MlpAndExperts, kind: AnyNorm, hidden: int, stream: ir.Value
) -> ir.Value:
    """What the router says of each expert, [batch, sequence, experts]."""
    scale = graph.parameter("scale", graph.stored("scale", (hidden,)))
    normed = target.norm(graph, stream, RmsScale(scale, kind.eps))
    scaled = graph.op.Mul(normed, graph.scalar(spec.router_scale, f"router_scale.{spec.router_scale!r}"))
    return router(graph, target, "proj", scaled, hidden, spec.experts.count)
