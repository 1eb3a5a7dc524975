"""Wires a Drafter spec into a graph of its own: one token a call, over keys and values that the target has cached."""

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.graph.decoder import Block, decoder_layer, embedding, head
from paritas.graph.decoder import after_layer as finish
from paritas.graph.linear import linear
from paritas.graph.norm import Residual
from paritas.spec import Attention, Clusters, Decoder, Drafter
from paritas.targets.base import Target
from paritas.weights import Weight

Pair = tuple[ir.Value, ir.Value]


def build_drafter(graph: Graph, spec: Drafter, target: Target, context: int) -> None:
    """``inputs_embeds`` [batch, 1, 2 * target_hidden], ``position_ids`` and borrowed keys and values in;
    ``logits`` and ``last_hidden_state`` [batch, 1, target_hidden], which is the next call's second half, out.

    Args:
        graph: an empty one, over the drafter's tensors.
        spec: what to compute.
        target: in which operators.
        context: positions that the RoPE tables cover.
    """
    decoder = spec.decoder
    embeds = graph.input("inputs_embeds", ir.DataType.FLOAT, ["batch", 1, 2 * spec.target_hidden])
    where = graph.input("position_ids", ir.DataType.INT64, ["batch", 1])
    borrowed = [_borrowed(graph, decoder, index, kind) for index, kind in enumerate(spec.borrowed)]
    attentions = [layer.attention for layer in decoder.layers]
    step = target.begin_drafting(graph, attentions, context, where, [keys for keys, _ in borrowed])
    stream = Residual(
        graph,
        target,
        decoder.hidden,
        linear(graph, target, "pre_projection", embeds, 2 * spec.target_hidden, decoder.hidden),
    )
    for index, layer in enumerate(decoder.layers):
        block = Block(decoder, target, step, layer, None, None)
        with graph.scope("model", f"layers.{index}"):
            decoder_layer(graph, block, stream, borrowed[layer.attention.keys_of or 0])
            finish(graph, block, stream)
    with graph.scope("model"):
        x = stream.norm(decoder.norm, "norm")
    carry = linear(graph, target, "post_projection", x, decoder.hidden, spec.target_hidden)
    table = embedding(graph, decoder)
    logits = (
        head(graph, decoder, target, table, x)
        if spec.clusters is None
        else _of_clusters(graph, target, decoder, spec.clusters, table, x)
    )
    graph.output(logits, "logits", ir.DataType.FLOAT, ["batch", 1, decoder.vocab])
    graph.output(carry, "last_hidden_state", ir.DataType.FLOAT, ["batch", 1, spec.target_hidden])


def _borrowed(graph: Graph, spec: Decoder, index: int, kind: str) -> Pair:
    """Keys and values [batch, kv_heads, length, head_dim] of the target's last layer of a kind."""
    reader = next(layer.attention for layer in spec.layers if layer.attention.keys_of == index)
    key, value = (_input(graph, reader, f"shared_kv.{kind}.{half}", kind) for half in ("key", "value"))
    return key, value


def _input(graph: Graph, reader: Attention, name: str, kind: str) -> ir.Value:
    sizes = ["batch", reader.kv_heads, f"{kind}_length", reader.head_dim]
    return graph.input(name, ir.DataType.FLOAT, sizes)


def _of_clusters(
    graph: Graph, target: Target, spec: Decoder, clusters: Clusters, table: Weight, x: ir.Value
) -> ir.Value:
    """Logits [batch, 1, vocab] of the likeliest clusters' tokens; of all others, one less than the least of those."""
    op, size = graph.op, spec.vocab // clusters.count
    with graph.scope("masked_embedding"):
        scores = linear(graph, target, "centroids", x, spec.hidden, clusters.count)
        # Ids up to 2^24 are exact in fp32, in which weights are written.
        order = graph.parameter("token_ordering", graph.stored("token_ordering", (spec.vocab,)))
        shape = graph.constant(np.array([clusters.count, size]), "shape.clusters")
        by_cluster = op.Reshape(op.Cast(order, to=ir.DataType.INT64), shape)
        chosen = graph.constant(np.array([clusters.chosen]), "chosen")
        _, best = op.TopK(scores, chosen, _outputs=2)
        flat = graph.constant(np.array([0, 0, clusters.chosen * size]), "shape.tokens")
        tokens = op.Reshape(op.Gather(by_cluster, best), flat)  # [batch, 1, chosen * size]
    with graph.scope("model", "embed_tokens"):
        rows = target.embedding(graph, table, tokens)  # [batch, 1, chosen * size, hidden]
    logits = op.Squeeze(
        op.MatMul(rows, op.Unsqueeze(x, graph.constant(np.array([3]), "axis.3"))),
        graph.constant(np.array([3]), "axis.3"),
    )
    low = op.Sub(op.ReduceMin(logits, keepdims=0), graph.scalar(1.0, "one.fp32"))
    ends = op.Concat(op.Shape(x, start=0, end=2), graph.constant(np.array([spec.vocab]), "vocab"), axis=0)
    return op.ScatterElements(op.Expand(low, ends), tokens, logits, axis=2)
