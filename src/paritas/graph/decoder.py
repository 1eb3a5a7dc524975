"""Wires a Decoder spec into a graph, in the operations of a target. Branches on the spec, never on a model's name."""

from dataclasses import dataclass

import onnx_ir as ir

from paritas.graph.attention import attention
from paritas.graph.builder import Graph
from paritas.graph.convolution import real_tokens, short_convolution
from paritas.graph.mlp import feed_forward
from paritas.graph.norm import Residual, maybe_norm, norm
from paritas.graph.states import past_states, present_states
from paritas.spec import Attention, Decoder, Layer, Norms, ParallelNorms, ShortConvolution
from paritas.targets.base import Step, Target
from paritas.weights import Weight

Values = tuple[ir.Value, ...]


def build(graph: Graph, spec: Decoder, target: Target, context: int) -> None:
    """The whole decoder: ids, mask and past states in; logits of every position and present states out.

    Args:
        graph: an empty one, over the checkpoint's tensors.
        spec: what to compute.
        target: in which operators.
        context: positions that the RoPE tables cover.
    """
    ids = graph.input("input_ids", ir.DataType.INT64, ["batch", "sequence"])
    mask = graph.input("attention_mask", ir.DataType.INT64, ["batch", "total"])
    past = past_states(graph, spec)
    step = target.begin(graph, spec, context, ids, mask)
    real = real_tokens(graph, spec, ids, mask)
    table = embedding(graph, spec)

    with graph.scope("model", "embed_tokens"):
        x = graph.op.Gather(graph.parameter("weight", table), ids)  # [batch, sequence, hidden]
        if spec.embed_scale != 1.0:
            x = graph.op.Mul(x, graph.scalar(spec.embed_scale, "embed_scale"))

    stream = Residual(graph, target, spec.hidden, x)
    present = [
        decoder_layer(graph, Block(spec, target, step, layer, real), stream, index, past[index])
        for index, layer in enumerate(spec.layers)
    ]
    with graph.scope("model"):
        x = stream.norm(spec.norm, "norm")
    logits = head(graph, spec, target, table, x)
    graph.output(logits, "logits", ir.DataType.FLOAT, ["batch", "sequence", spec.vocab])
    present_states(graph, spec, present)


@dataclass(frozen=True)
class Block:
    """A layer, and what it is written with; ``real`` tells padding, where a layer asks."""

    spec: Decoder
    target: Target
    step: Step
    layer: Layer
    real: ir.Value | None


def decoder_layer(graph: Graph, block: Block, stream: Residual, index: int, past: Values) -> Values:
    """One layer, in the wiring that its norms say. Returns the present states."""
    with graph.scope("model", f"layers.{index}"):
        match block.layer.norms:
            case Norms() as norms:
                return sequential_layer(graph, block, norms, stream, past)
            case ParallelNorms() as norms:
                return parallel_layer(graph, block, norms, stream, past)


def sequential_layer(graph: Graph, block: Block, norms: Norms, stream: Residual, past: Values) -> Values:
    """The mixer, then the MLP, each added to the residual stream."""
    layer, target, hidden = block.layer, block.target, block.spec.hidden
    x = stream.maybe_norm(layer.norm, norms.before_attention)
    x, present = mixer(graph, block, x, past)
    stream.add(scaled(graph, layer, maybe_norm(graph, target, layer.norm, norms.after_attention, hidden, x)))
    x = stream.maybe_norm(layer.norm, norms.before_mlp)
    x = feed_forward(graph, target, layer.mlp, hidden, x)
    stream.add(scaled(graph, layer, maybe_norm(graph, target, layer.norm, norms.after_mlp, hidden, x)))
    return present


def parallel_layer(graph: Graph, block: Block, norms: ParallelNorms, stream: Residual, past: Values) -> Values:
    """The mixer and the MLP, both of the same stream and added to it together."""
    layer, target, hidden = block.layer, block.target, block.spec.hidden
    first = stream.norm(layer.norm, norms.before_attention)
    second = first
    if norms.before_mlp != norms.before_attention:
        second = norm(graph, target, layer.norm, norms.before_mlp, hidden, stream.value())
    mixed, present = mixer(graph, block, first, past)
    made = feed_forward(graph, target, layer.mlp, hidden, second)
    stream.add(scaled(graph, layer, graph.op.Add(mixed, made)))
    return present


def mixer(graph: Graph, block: Block, x: ir.Value, past: Values) -> tuple[ir.Value, Values]:
    """What mixes the positions of the layer, [batch, sequence, hidden] in and out; also the present states."""
    match block.layer.mixer:
        case Attention() as spec:
            key, value = past
            return attention(graph, block.target, block.step, spec, block.spec.hidden, x, (key, value))
        case ShortConvolution() as spec:
            (state,) = past
            assert block.real is not None
            y, present = short_convolution(graph, block.target, spec, block.spec.hidden, x, block.real, state)
            return y, (present,)


def scaled(graph: Graph, layer: Layer, x: ir.Value) -> ir.Value:
    """What is added to the residual stream, by the layer's multiplier."""
    if layer.residual_scale == 1.0:
        return x
    return graph.op.Mul(x, graph.scalar(layer.residual_scale, f"residual_scale.{layer.residual_scale!r}"))


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
    if spec.head_bias:
        with graph.scope("lm_head"):
            logits = graph.op.Add(logits, graph.parameter("bias", graph.stored("bias", (spec.vocab,))))
    if spec.logits_scale != 1.0:
        logits = graph.op.Mul(logits, graph.scalar(spec.logits_scale, "logits_scale"))
    if spec.softcap is not None:
        cap = graph.scalar(spec.softcap, "softcap")
        logits = graph.op.Mul(graph.op.Tanh(graph.op.Div(logits, cap)), cap)
    return logits
