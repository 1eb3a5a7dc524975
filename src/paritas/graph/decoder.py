"""Wires a Decoder spec into a graph, in the operations of a target. Branches on the spec, never on a model's name."""

import onnx_ir as ir

from paritas.graph.attention import attention
from paritas.graph.builder import Graph
from paritas.graph.mlp import mlp
from paritas.graph.norm import Residual, maybe_norm
from paritas.spec import Decoder, Layer
from paritas.targets.base import Step, Target
from paritas.weights import Weight


def build(graph: Graph, spec: Decoder, target: Target, context: int) -> None:
    """The whole decoder: ids, mask and past caches in; logits of every position and present caches out.

    Args:
        graph: an empty one, over the checkpoint's tensors.
        spec: what to compute.
        target: in which operators.
        context: positions that the RoPE tables cover.
    """
    ids = graph.input("input_ids", ir.DataType.INT64, ["batch", "sequence"])
    mask = graph.input("attention_mask", ir.DataType.INT64, ["batch", "total"])
    past = [_past(graph, index, layer) for index, layer in enumerate(spec.layers)]
    step = target.begin(graph, spec, context, ids, mask)
    table = embedding(graph, spec)

    with graph.scope("model", "embed_tokens"):
        x = graph.op.Gather(graph.parameter("weight", table), ids)  # [batch, sequence, hidden]
        if spec.embed_scale != 1.0:
            x = graph.op.Mul(x, graph.scalar(spec.embed_scale, "embed_scale"))

    stream = Residual(graph, target, spec.hidden, x)
    present = [decoder_layer(graph, spec, target, step, stream, i, past[i]) for i in range(len(spec.layers))]
    with graph.scope("model"):
        x = stream.norm(spec.norm, "norm")
    logits = head(graph, spec, target, table, x)
    graph.output(logits, "logits", ir.DataType.FLOAT, ["batch", "sequence", spec.vocab])
    for index, (layer, pair) in enumerate(zip(spec.layers, present, strict=True)):
        for part, value in zip(("key", "value"), pair, strict=True):
            graph.output(value, f"present.{index}.{part}", ir.DataType.FLOAT, _cache_shape(layer, "total"))


def decoder_layer(
    graph: Graph,
    spec: Decoder,
    target: Target,
    step: Step,
    stream: Residual,
    index: int,
    past: tuple[ir.Value, ir.Value],
) -> tuple[ir.Value, ir.Value]:
    """One layer: attention, then the MLP, each added to the residual stream. Returns the present cache."""
    layer = spec.layers[index]
    with graph.scope("model", f"layers.{index}"):
        x = stream.norm(layer.norm, layer.norms.before_attention)
        x, present = attention(graph, target, step, layer.attention, spec.hidden, x, past)
        stream.add(maybe_norm(graph, target, layer.norm, layer.norms.after_attention, spec.hidden, x))
        x = stream.norm(layer.norm, layer.norms.before_mlp)
        x = mlp(graph, target, layer.mlp, spec.hidden, x)
        stream.add(maybe_norm(graph, target, layer.norm, layer.norms.after_mlp, spec.hidden, x))
    return present


def embedding(graph: Graph, spec: Decoder) -> Weight:
    """The embedding table, [vocab, hidden]."""
    with graph.scope("model", "embed_tokens"):
        return graph.stored("weight", (spec.vocab, spec.hidden))


def head(graph: Graph, spec: Decoder, target: Target, table: Weight, x: ir.Value) -> ir.Value:
    """Logits [batch, sequence, vocab]. A tied head multiplies by the embedding's own initializer: it is stored once."""
    if spec.tied_head:
        with graph.scope("model", "embed_tokens"):
            shared = graph.parameter("weight", table)
        logits = target.head(graph, x, shared, spec.hidden, spec.vocab)
    else:
        with graph.scope("lm_head"):
            own = graph.parameter("weight", graph.stored("weight", (spec.vocab, spec.hidden)))
            logits = target.head(graph, x, own, spec.hidden, spec.vocab)
    if spec.softcap is not None:
        cap = graph.scalar(spec.softcap, "softcap")
        logits = graph.op.Mul(graph.op.Tanh(graph.op.Div(logits, cap)), cap)
    return logits


def _past(graph: Graph, index: int, layer: Layer) -> tuple[ir.Value, ir.Value]:
    shape = _cache_shape(layer, "past")
    key = graph.input(f"past_key_values.{index}.key", ir.DataType.FLOAT, shape)
    value = graph.input(f"past_key_values.{index}.value", ir.DataType.FLOAT, shape)
    return key, value


def _cache_shape(layer: Layer, length: str) -> list[int | str]:
    return ["batch", layer.attention.kv_heads, length, layer.attention.head_dim]
