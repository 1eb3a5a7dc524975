"""Wires a Decoder spec into a graph, in the operations of a target. Branches on the spec, never on a model's name."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from paritas.graph.altup import add_to_others, correct, gather, predict, spread
from paritas.graph.attention import attention, shared_attention
from paritas.graph.beside import mlp_and_experts
from paritas.graph.builder import Graph
from paritas.graph.convolution import real_tokens, short_convolution
from paritas.graph.laurel import laurel
from paritas.graph.mlp import feed_forward
from paritas.graph.norm import Residual, maybe_norm, norm
from paritas.graph.per_layer import gated_input, per_layer_inputs
from paritas.graph.rows import last_rows
from paritas.graph.states import past_states, present_states
from paritas.spec import (
    AltUp,
    Attention,
    Decoder,
    Laurel,
    Layer,
    MlpAndExperts,
    Norms,
    ParallelNorms,
    ShortConvolution,
)
from paritas.targets.base import Step, Target
from paritas.weights import Weight

Values = tuple[ir.Value, ...]
Through = tuple[Residual, list[Values]]
"""The residual stream behind all layers, and the present states of each."""


def build(
    graph: Graph,
    spec: Decoder,
    target: Target,
    context: int,
    hidden_states: Collection[int] = (),
    *,
    last_logits: bool = False,
) -> None:
    """The whole decoder: ids, mask and past states in; logits of every position and present states out.

    Args:
        graph: an empty one, over the checkpoint's tensors.
        spec: what to compute.
        target: in which operators.
        context: positions that the RoPE tables cover.
        hidden_states: layers of which ``hidden_states.N`` [batch, sequence, hidden] is an output too: the residual
            stream behind the layer, behind the last one normed, as transformers returns them.
        last_logits: logits of the last position alone, unless a call asks for more (:mod:`paritas.graph.rows`).
    """
    ids = graph.input("input_ids", ir.DataType.INT64, ["batch", "sequence"])
    mask = graph.input("attention_mask", ir.DataType.INT64, ["batch", "total"])
    past = past_states(graph, spec)
    step = target.begin(graph, spec, context, ids, mask)
    real = real_tokens(graph, spec, ids, mask)
    table = embedding(graph, spec)

    with graph.scope("model", "embed_tokens"):
        x = target.embedding(graph, table, ids)  # [batch, sequence, hidden]
        if spec.embed_scale != 1.0:
            x = graph.op.Mul(x, graph.scalar(spec.embed_scale, "embed_scale"))

    given = per_layer_inputs(graph, target, spec, ids, x)
    blocks = [
        Block(spec, target, step, layer, real, given[index] if given else None)
        for index, layer in enumerate(spec.layers)
    ]
    through = through_layers if spec.altup is None else partial(through_altup_layers, altup=spec.altup)
    tapped = dict[int, ir.Value]()
    stream, present = through(graph, blocks, x, past, Taps(hidden_states, tapped))
    with graph.scope("model"):
        x = stream.norm(spec.norm, "norm")
    tapped[len(blocks) - 1] = x
    rows = last_rows(graph, x, mask) if last_logits else x
    logits = head(graph, spec, target, table, rows)
    # ORT GenAI makes room for one row of logits where the shape says so, and for all rows otherwise.
    graph.output(logits, "logits", ir.DataType.FLOAT, ["batch", 1 if last_logits else "sequence", spec.vocab])
    present_states(graph, spec, present)
    for layer in sorted(hidden_states):
        graph.output(tapped[layer], f"hidden_states.{layer}", ir.DataType.FLOAT, ["batch", "sequence", spec.hidden])


@dataclass(frozen=True)
class Block:
    """A layer, and what it is written with.

    Attributes:
        real: tells padding, where a layer asks.
        given: the layer's per-layer input, [batch, sequence, width].
    """

    spec: Decoder
    target: Target
    step: Step
    layer: Layer
    real: ir.Value | None
    given: ir.Value | None


@dataclass(frozen=True)
class Taps:
    """Layers behind which somebody looks, and what is found there."""

    wanted: Collection[int]
    found: dict[int, ir.Value]

    def behind(self, layer: int, stream: Residual) -> None:
        """Keep the stream, if it is wanted here."""
        if layer in self.wanted:
            self.found[layer] = stream.value()


def through_layers(graph: Graph, blocks: Sequence[Block], x: ir.Value, past: Sequence[Values], taps: Taps) -> Through:
    """Layer after layer, each of which adds to one residual stream."""
    stream = Residual(graph, blocks[0].target, blocks[0].spec.hidden, x)
    present: list[Values] = []
    for index, block in enumerate(blocks):
        states = states_of(block.layer, past[index], present)
        with graph.scope("model", f"layers.{index}"):
            present.append(decoder_layer(graph, block, stream, states))
            after_layer(graph, block, stream)
        taps.behind(index, stream)
    return stream, present


def through_altup_layers(
    graph: Graph, blocks: Sequence[Block], x: ir.Value, past: Sequence[Values], taps: Taps, altup: AltUp
) -> Through:
    """Layer after layer, each of which computes with one of several streams and corrects all of them.

    Behind a layer there is no one stream to look at.
    """
    del taps
    target, hidden = blocks[0].target, blocks[0].spec.hidden
    present: list[Values] = []
    with graph.scope("model"):
        streams = spread(graph, target, altup, hidden, x)
        for index, block in enumerate(blocks):
            kind, states = block.layer.norm, states_of(block.layer, past[index], present)
            with graph.scope(f"layers.{index}"):
                predicted = predict(graph, target, altup, kind, hidden, streams)
                stream = Residual(graph, target, hidden, predicted[1])
                present.append(decoder_layer(graph, block, stream, states))
                streams, own = correct(graph, target, altup, kind, hidden, predicted, stream.value())
                if block.layer.per_layer is not None and block.given is not None:
                    more = gated_input(graph, target, block.layer.per_layer, kind, hidden, own, block.given)
                    streams = add_to_others(graph, altup, streams, more)
        return Residual(graph, target, hidden, gather(graph, target, altup, hidden, streams)), present


def states_of(layer: Layer, past: Values, present: list[Values]) -> Values:
    """What a layer reads: its own past states, or the present keys and values of the earlier layer that it shares."""
    owner = layer.mixer.keys_of if isinstance(layer.mixer, Attention) else None
    return past if owner is None else present[owner]


def decoder_layer(graph: Graph, block: Block, stream: Residual, states: Values) -> Values:
    """One layer, in the wiring that its norms say. Returns its present states."""
    match block.layer.norms:
        case Norms() as norms:
            return sequential_layer(graph, block, norms, stream, states)
        case ParallelNorms() as norms:
            return parallel_layer(graph, block, norms, stream, states)
        case Laurel() as norms:
            return laurel_layer(graph, block, norms, stream, states)


def after_layer(graph: Graph, block: Block, stream: Residual) -> None:
    """What some layers do to the stream at their end: their per-layer input, and a number that multiplies it."""
    layer, hidden = block.layer, block.spec.hidden
    if layer.per_layer is not None and block.given is not None:
        x = stream.value()
        stream.add(gated_input(graph, block.target, layer.per_layer, layer.norm, hidden, x, block.given))
    if layer.scalar:
        stream.multiply(graph.parameter("layer_scalar", graph.stored("layer_scalar", (1,))))


def sequential_layer(graph: Graph, block: Block, norms: Norms, stream: Residual, states: Values) -> Values:
    """The mixer, then the MLP, each added to the residual stream."""
    layer, target, hidden = block.layer, block.target, block.spec.hidden
    x = stream.maybe_norm(layer.norm, norms.before_attention)
    x, present = mixer(graph, block, x, states)
    stream.add(scaled(graph, layer, maybe_norm(graph, target, layer.norm, norms.after_attention, hidden, x)))
    then_mlp(graph, block, norms, stream)
    return present


def then_mlp(graph: Graph, block: Block, norms: Norms | Laurel, stream: Residual) -> None:
    """The second half of a layer whose MLP follows its mixer."""
    layer, target, hidden = block.layer, block.target, block.spec.hidden
    x = stream.maybe_norm(layer.norm, norms.before_mlp)
    x = fed_forward(graph, block, x, stream)
    stream.add(scaled(graph, layer, maybe_norm(graph, target, layer.norm, norms.after_mlp, hidden, x)))


def fed_forward(graph: Graph, block: Block, x: ir.Value, stream: Residual) -> ir.Value:
    """What the layer works with on each position, of the normed stream ``x`` and, where it asks, of the stream."""
    layer, target, hidden = block.layer, block.target, block.spec.hidden
    if isinstance(layer.mlp, MlpAndExperts):
        return mlp_and_experts(graph, target, layer.mlp, layer.norm, hidden, x, stream.value())
    return feed_forward(graph, target, layer.mlp, hidden, x)


def laurel_layer(graph: Graph, block: Block, norms: Laurel, stream: Residual, states: Values) -> Values:
    """The mixer and the learned residual of the same normed stream, then the MLP."""
    layer, target, hidden = block.layer, block.target, block.spec.hidden
    normed = stream.norm(layer.norm, norms.before_attention)
    x, present = mixer(graph, block, normed, states)
    stream.add(scaled(graph, layer, norm(graph, target, layer.norm, norms.after_attention, hidden, x)))
    stream.add(laurel(graph, target, norms, layer.norm, hidden, normed))
    stream.divide(graph.scalar(2.0**0.5, "sqrt.2"))
    then_mlp(graph, block, norms, stream)
    return present


def parallel_layer(graph: Graph, block: Block, norms: ParallelNorms, stream: Residual, states: Values) -> Values:
    """The mixer and the MLP, both of the same stream and added to it together."""
    layer, target, hidden = block.layer, block.target, block.spec.hidden
    first = stream.norm(layer.norm, norms.before_attention)
    second = first
    if norms.before_mlp != norms.before_attention:
        second = norm(graph, target, layer.norm, norms.before_mlp, hidden, stream.value())
    mixed, present = mixer(graph, block, first, states)
    made = fed_forward(graph, block, second, stream)
    stream.add(scaled(graph, layer, graph.op.Add(mixed, made)))
    return present


def mixer(graph: Graph, block: Block, x: ir.Value, states: Values) -> tuple[ir.Value, Values]:
    """What mixes the positions of the layer, [batch, sequence, hidden] in and out; also the present states."""
    match block.layer.mixer:
        case Attention(keys_of=int()) as spec:
            key, value = states
            return shared_attention(graph, block.target, block.step, spec, block.spec.hidden, x, (key, value)), ()
        case Attention() as spec:
            key, value = states
            return attention(graph, block.target, block.step, spec, block.spec.hidden, x, (key, value))
        case ShortConvolution() as spec:
            (state,) = states
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
        return graph.matrix("weight", graph.stored("weight", (spec.vocab, spec.hidden)))


def head(graph: Graph, spec: Decoder, target: Target, table: Weight, x: ir.Value) -> ir.Value:
    """Logits [batch, sequence, vocab]. A tied head multiplies by the embedding's own initializer: it is stored once."""
    if spec.tied_head:
        with graph.scope("model", "embed_tokens"):
            logits = target.head(graph, x, table, spec.hidden, spec.vocab)
    else:
        with graph.scope("lm_head"):
            own = graph.matrix("weight", graph.stored("weight", (spec.vocab, spec.hidden)))
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
