"""AltUp: several residual streams; each layer computes with one of them, predicts the others and corrects all.

Streams are one tensor, [batch, sequence, streams, hidden]. Source: transformers models/gemma3n/modeling_gemma3n.py.
"""

from functools import reduce

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.graph.linear import linear
from paritas.graph.norm import norm
from paritas.spec import AltUp, AnyNorm
from paritas.targets.base import Target

_LEAST = 1e-5  # the least mean square that a projection is divided by the root of


def spread(graph: Graph, target: Target, spec: AltUp, hidden: int, x: ir.Value) -> ir.Value:
    """The streams that the embedding [batch, sequence, hidden] begins: itself, and projections of it, of its size."""
    op, size = graph.op, _root_mean_square(graph, x)
    made = [x]
    with graph.scope("altup_projections"):
        for index in range(spec.streams - 1):
            made.append(_of_size(graph, linear(graph, target, f"{index}", x, hidden, hidden), size))
    axis = graph.constant(np.array([2]), "axis.2")
    return op.Concat(*(op.Unsqueeze(each, axis) for each in made), axis=2)


def gather(graph: Graph, target: Target, spec: AltUp, hidden: int, streams: ir.Value) -> ir.Value:
    """One stream [batch, sequence, hidden] of all: the mean of the first and of projections of the others, of its size.

    Which stream layers compute with makes no difference here.
    """
    first = _stream(graph, streams, 0)
    size, made = _root_mean_square(graph, first), [first]
    with graph.scope("altup_unembed_projections"):
        for index in range(spec.streams - 1):
            projected = linear(graph, target, f"{index}", _stream(graph, streams, index + 1), hidden, hidden)
            made.append(_of_size(graph, projected, size))
    return graph.op.Div(reduce(graph.op.Add, made), graph.scalar(spec.streams, f"streams.count.{spec.streams}"))


def predict(
    graph: Graph, target: Target, spec: AltUp, kind: AnyNorm, hidden: int, streams: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """What a layer takes its streams for: each, and all of them by coefficients that the active one tells.

    Returns:
        The predictions, in the shape of ``streams``; and the active one, [batch, sequence, hidden].
    """
    op, count = graph.op, spec.streams
    with graph.scope("altup"):
        told = _modalities(graph, target, spec, kind, hidden, _stream(graph, streams, spec.active))
        square = graph.constant(np.array([0, 0, count, count]), f"shape.streams.{count}")
        told = op.Reshape(linear(graph, target, "prediction_coefs", told, count, count * count), square)
        predicted = op.Add(op.MatMul(told, streams), streams)  # row j holds what each stream gives to the stream j
        return predicted, _stream(graph, predicted, spec.active)


def correct(
    graph: Graph,
    target: Target,
    spec: AltUp,
    kind: AnyNorm,
    hidden: int,
    predicted: tuple[ir.Value, ir.Value],
    activated: ir.Value,
) -> tuple[ir.Value, ir.Value]:
    """The predictions, each corrected by its share of what the layer did to the active one.

    Args:
        kind: of the layer's norms.
        predicted: what :func:`predict` gave.
        activated: what the layer made of the active one, [batch, sequence, hidden].

    Returns:
        The streams; and the active one of them, times ``correct_output_scale`` if the model has that.
    """
    op, (all_, active) = graph.op, predicted
    with graph.scope("altup"):
        told = _modalities(graph, target, spec, kind, hidden, activated)
        shares = linear(graph, target, "correction_coefs", told, spec.streams, spec.streams)
        shares = op.Unsqueeze(
            op.Add(shares, graph.scalar(1.0, "one.fp32")), graph.constant(np.array([-1]), "axis.last")
        )
        change = op.Unsqueeze(op.Sub(activated, active), graph.constant(np.array([2]), "axis.2"))
        streams = op.Add(op.Mul(change, shares), all_)
        own = _stream(graph, streams, spec.active)
        if spec.correct_scale:
            scale = graph.stored("correct_output_scale", (hidden,))
            own = op.Mul(own, graph.parameter("correct_output_scale", scale))
        return streams, own


def add_to_others(graph: Graph, spec: AltUp, streams: ir.Value, x: ir.Value) -> ir.Value:
    """``x`` [batch, sequence, hidden] added to every stream but the first, whichever the active one is."""
    op = graph.op
    sizes = graph.constant(np.array([1, spec.streams - 1]), f"streams.first.{spec.streams}")
    first, others = op.Split(streams, sizes, axis=2, _outputs=2)
    given = op.Unsqueeze(x, graph.constant(np.array([2]), "axis.2"))
    return op.Concat(first, op.Add(others, given), axis=2)


def _modalities(graph: Graph, target: Target, spec: AltUp, kind: AnyNorm, hidden: int, x: ir.Value) -> ir.Value:
    """A number between -1 and 1 for each stream, that the coefficients are made of, [batch, sequence, streams]."""
    normed = norm(graph, target, kind, "router_norm", hidden, x)
    scaled = graph.op.Mul(normed, graph.scalar(1.0 / hidden, "altup.router_scale"))
    return graph.op.Tanh(linear(graph, target, "modality_router", scaled, hidden, spec.streams))


def _stream(graph: Graph, streams: ir.Value, index: int) -> ir.Value:
    return graph.op.Gather(streams, graph.constant(np.array(index), f"stream.{index}"), axis=2)


def _mean_square(graph: Graph, x: ir.Value) -> ir.Value:
    return graph.op.ReduceMean(graph.op.Mul(x, x), graph.constant(np.array([-1]), "axis.last"), keepdims=1)


def _root_mean_square(graph: Graph, x: ir.Value) -> ir.Value:
    return graph.op.Sqrt(_mean_square(graph, x))


def _of_size(graph: Graph, x: ir.Value, size: ir.Value) -> ir.Value:
    """``x`` with the root mean square ``size``."""
    op = graph.op
    own = op.Sqrt(op.Max(_mean_square(graph, x), graph.scalar(_LEAST, "altup.least_square")))
    return op.Div(op.Mul(x, size), own)
