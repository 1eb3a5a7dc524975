"""Per-layer inputs: what the layers are given beside the residual stream, of each token's id and embedding."""

import numpy as np
import onnx_ir as ir

from paritas.graph.activation import activation
from paritas.graph.builder import Graph
from paritas.graph.linear import linear
from paritas.graph.norm import norm
from paritas.spec import AnyNorm, Decoder, PerLayerGate, PerLayerInputs
from paritas.targets.base import Target


def per_layer_inputs(graph: Graph, target: Target, spec: Decoder, ids: ir.Value, embedded: ir.Value) -> list[ir.Value]:
    """The input to each layer, [batch, sequence, width] each; an empty list if there is none.

    Args:
        ids: [batch, sequence].
        embedded: their scaled embeddings, [batch, sequence, hidden].
    """
    if spec.per_layer is None:
        return []
    own, op, depth = spec.per_layer, graph.op, len(spec.layers)
    with graph.scope("model"):
        projected = linear(graph, target, "per_layer_model_projection", embedded, spec.hidden, depth * own.width)
        projected = op.Mul(projected, graph.scalar(own.projection_scale, "per_layer.projection_scale"))
        split = graph.constant(np.array([0, 0, depth, own.width]), "shape.per_layer")
        context = norm(graph, target, own.norm, "per_layer_projection_norm", own.width, op.Reshape(projected, split))
        token = op.Reshape(_token_part(graph, target, own, depth, ids), split)
        mixed = op.Mul(op.Add(context, token), graph.scalar(own.scale, "per_layer.scale"))
        places = [graph.constant(np.array(index), f"layer.{index}") for index in range(depth)]
        return [op.Gather(mixed, place, axis=2) for place in places]


def gated_input(
    graph: Graph, target: Target, spec: PerLayerGate, kind: AnyNorm, hidden: int, x: ir.Value, own: ir.Value
) -> ir.Value:
    """What the layer's own input [batch, sequence, width] adds to ``x`` [batch, sequence, hidden].

    ``kind`` is that of the layer's norms.
    """
    gate = activation(graph, spec.activation, linear(graph, target, "per_layer_input_gate", x, hidden, spec.width))
    given = linear(graph, target, "per_layer_projection", graph.op.Mul(gate, own), spec.width, hidden)
    return norm(graph, target, kind, "post_per_layer_input_norm", hidden, given)


def _token_part(graph: Graph, target: Target, spec: PerLayerInputs, depth: int, ids: ir.Value) -> ir.Value:
    """Rows of the table, scaled, [batch, sequence, depth * width]."""
    op = graph.op
    if spec.outside is not None:
        least, rows = graph.constant(np.array(0), "zero"), graph.constant(np.array(spec.vocab), "per_layer.vocab")
        inside = op.And(op.GreaterOrEqual(ids, least), op.Less(ids, rows))
        ids = op.Where(inside, ids, graph.constant(np.array(spec.outside), "per_layer.outside"))
    with graph.scope("embed_tokens_per_layer"):
        table = graph.matrix("weight", graph.stored("weight", (spec.vocab, depth * spec.width)))
        return op.Mul(target.embedding(graph, table, ids), graph.scalar(spec.token_scale, "token_scale"))
