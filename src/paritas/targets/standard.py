"""Attention, RotaryEmbedding and norms of the standard operator set (23), with positions and masks in the graph.

The ``onnx`` target is made of these; ``ort`` takes them for layers that its fused operators have no kernel for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.spec import Attention, Pairing, Rope
from paritas.targets.base import LayerScale, RmsScale, Scale, Step
from paritas.targets.rotary import Rotary, rotaries, rotaries_at


@dataclass(frozen=True)
class StandardStep(Step):
    """Positions and masks of one forward pass.

    Attributes:
        rotaries: tables and rows, by RoPE.
        masks: bool [batch, 1, sequence, total], true where a key is visible, by window.
    """

    rotaries: Mapping[Rope, Rotary]
    masks: Mapping[int | None, ir.Value]


def begin(graph: Graph, attentions: Iterable[Attention], context: int, ids: ir.Value, mask: ir.Value) -> StandardStep:
    """Positions count the real tokens (as transformers' generate does); masks compare slots (as its masks do)."""
    specs = list(attentions)
    ropes = [spec.rope for spec in specs if spec.rope is not None]
    with graph.scope("step"):
        windows = {spec.window for spec in specs}
        return StandardStep(context, rotaries(graph, ropes, context, ids, mask), masks(graph, ids, mask, windows))


def begin_drafting(
    graph: Graph, attentions: Sequence[Attention], context: int, where: ir.Value, keys: Sequence[ir.Value]
) -> StandardStep:
    """Of a drafter's token, which sees all borrowed keys, or the last ``window + 1`` of them.

    One more than a window of the model itself has: transformers makes this mask of its two-sided window, which counts
    the distance and not the keys.
    """
    op = graph.op
    ropes = [spec.rope for spec in attentions if spec.rope is not None]
    with graph.scope("step"):
        zero, one = graph.constant(np.array(0), "zero"), graph.constant(np.array(1), "one")
        seen: dict[int | None, ir.Value] = {}
        for spec in attentions:
            if spec.window in seen or spec.keys_of is None:
                continue
            length = op.Squeeze(op.Shape(keys[spec.keys_of], start=2, end=3))
            back = op.Sub(length, op.Range(zero, length, one))  # 1 for the last key
            reach = length if spec.window is None else graph.constant(np.array(spec.window + 1), f"reach.{spec.window}")
            axes = graph.constant(np.array([0, 1, 2]), "axes.0.1.2")
            seen[spec.window] = op.Unsqueeze(op.LessOrEqual(back, reach), axes)
        return StandardStep(context, rotaries_at(graph, ropes, context, where), seen)


def rotate(graph: Graph, step: StandardStep, rope: Rope, heads: int, head_dim: int, x: ir.Value) -> ir.Value:
    """RotaryEmbedding of x [batch, sequence, heads * head_dim]."""
    rotary = step.rotaries[rope]
    partial = {} if rope.dim == head_dim else {"rotary_embedding_dim": rope.dim}
    pairs = {"interleaved": 1} if rope.pairing is Pairing.NEIGHBOURS else {}
    return graph.op.RotaryEmbedding(x, rotary.cos, rotary.sin, rotary.rows, num_heads=heads, **partial, **pairs)


def attention(
    graph: Graph,
    step: StandardStep,
    spec: Attention,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    past: tuple[ir.Value, ir.Value],
    sinks: ir.Value | None,
) -> tuple[ir.Value, tuple[ir.Value, ir.Value]]:
    """RotaryEmbedding twice, then Attention with the mask of the layer's window; the cache is concatenated."""
    if spec.rope is not None:
        q = rotate(graph, step, spec.rope, spec.heads, spec.head_dim, q)
        k = rotate(graph, step, spec.rope, spec.kv_heads, spec.head_dim, k)
    capped = {} if spec.softcap is None else {"softcap": spec.softcap}
    scored = {} if sinks is None else {"qk_matmul_output_mode": 2}  # scores with mask and cap, before the softmax
    out, key, value, *scores = graph.op.Attention(
        q,
        k,
        v,
        step.masks[spec.window],
        *past,
        scale=spec.scale,
        q_num_heads=spec.heads,
        kv_num_heads=spec.kv_heads,
        **capped,
        **scored,
        _outputs=3 if sinks is None else 4,
    )
    return out if sinks is None else sunk(graph, spec, out, scores[0], sinks), (key, value)


def shared_attention(
    graph: Graph, spec: Attention, q: ir.Value, shared: tuple[ir.Value, ir.Value], mask: ir.Value
) -> ir.Value:
    """Attention of q [batch, sequence, heads * head_dim] over keys and values [batch, kv_heads, total, head_dim].

    The mask [batch, 1, sequence, total] says all: which key is causal to which query an attention whose keys are more
    than its queries, without a past, cannot know.
    """
    op, width = graph.op, spec.heads * spec.head_dim
    split = graph.constant(np.array([0, 0, spec.heads, spec.head_dim]), f"shape.heads.{spec.heads}.{spec.head_dim}")
    joined = graph.constant(np.array([0, 0, width]), f"shape.joined.{width}")
    capped = {} if spec.softcap is None else {"softcap": spec.softcap}
    queries = op.Transpose(op.Reshape(q, split), perm=[0, 2, 1, 3])
    out = op.Attention(queries, *shared, mask, scale=spec.scale, **capped)
    return op.Reshape(op.Transpose(out, perm=[0, 2, 1, 3]), joined)


def sunk(graph: Graph, spec: Attention, out: ir.Value, scores: ir.Value, sinks: ir.Value) -> ir.Value:
    """Attention's output where softmax had one score more, a sink of no value: less, by what the sink takes.

    ``sum(exp(s)) / (sum(exp(s)) + exp(sink))`` is ``sigmoid(logsumexp(s) - sink)``.

    Args:
        out: [batch, sequence, heads * head_dim].
        scores: [batch, heads, sequence, total], masked.
        sinks: [heads].
    """
    op = graph.op
    total = op.ReduceLogSumExp(scores, graph.constant(np.array([-1]), "axis.last"), keepdims=1)
    sink = op.Reshape(sinks, graph.constant(np.array([spec.heads, 1, 1]), f"shape.sinks.{spec.heads}"))
    left = op.Transpose(op.Sigmoid(op.Sub(total, sink)), perm=[0, 2, 1, 3])  # [batch, sequence, heads, 1]
    split = graph.constant(np.array([0, 0, spec.heads, spec.head_dim]), f"shape.heads.{spec.heads}.{spec.head_dim}")
    width = spec.heads * spec.head_dim
    joined = graph.constant(np.array([0, 0, width]), f"shape.joined.{width}")
    return op.Reshape(op.Mul(op.Reshape(out, split), left), joined)


def convolution(
    graph: Graph, x: ir.Value, weight: ir.Value, bias: ir.Value | None, past: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Each channel by itself, over ``past`` and x; see :meth:`paritas.targets.base.Target.convolution`."""
    op = graph.op
    assert weight.shape is not None
    channels, _, kernel = weight.shape.numpy()
    whole = op.Concat(past, x, axis=2)
    kept = graph.constant(np.array([1 - kernel]), f"last.{kernel - 1}")
    end, axis = graph.constant(np.array([2**62]), "end"), graph.constant(np.array([2]), "axis.2")
    return op.Conv(whole, weight, bias, group=channels, kernel_shape=[kernel]), op.Slice(whole, kept, end, axis)


def norm(graph: Graph, x: ir.Value, scale: Scale) -> ir.Value:
    """RMSNormalization or LayerNormalization."""
    if isinstance(scale, RmsScale):
        return graph.op.RMSNormalization(x, scale.weight, axis=-1, epsilon=scale.eps, stash_type=1)
    return layer_norm(graph, x, scale)


def layer_norm(graph: Graph, x: ir.Value, scale: LayerScale) -> ir.Value:
    """LayerNormalization of ``x`` less its mean, which is the same.

    It keeps ONNX Runtime from fusing a sum before it into SkipLayerNormalization, whose variance is the mean of
    squares less the square of the mean, each summed one by one: at a width of 3,072 it is 6 times less exact than
    torch's kernel where the mean is 0, and more where it is not (``benchmarks/layer_norm.py``).
    """
    op = graph.op
    last = graph.constant(np.array([-1]), "axis.last")
    centred = op.Sub(x, op.ReduceMean(x, last, keepdims=1))
    # A bias that is none is no input: ONNX Runtime 1.32's fusions crash at one without a name.
    weights = (scale.weight,) if scale.bias is None else (scale.weight, scale.bias)
    return op.LayerNormalization(centred, *weights, axis=-1, epsilon=scale.eps, stash_type=1)


def masks(graph: Graph, ids: ir.Value, mask: ir.Value, windows: set[int | None]) -> Mapping[int | None, ir.Value]:
    """Which keys each query sees, by window."""
    op = graph.op
    one = graph.constant(np.array(1), "one")
    zero = graph.constant(np.array(0), "zero")
    length = op.Squeeze(op.Shape(ids, start=1, end=2))
    total = op.Squeeze(op.Shape(mask, start=1, end=2))
    keys = op.Range(zero, total, one)  # [total]
    queries = op.Unsqueeze(op.Range(op.Sub(total, length), total, one), graph.constant(np.array([1]), "axis.1"))
    real = op.Cast(op.Unsqueeze(mask, graph.constant(np.array([1, 2]), "axes.1.2")), to=ir.DataType.BOOL)
    # A token always sees itself: a query of the padding would otherwise see nothing, and softmax would make it NaN.
    visible = op.Or(op.And(op.LessOrEqual(keys, queries), real), op.Equal(keys, queries))
    return _within(graph, windows, visible, queries, keys)


def masks_by_position(
    graph: Graph, positions: ir.Value, mask: ir.Value, windows: set[int | None]
) -> Mapping[int | None, ir.Value]:
    """The same for keys that lie at their positions, row by row, and nothing that matters behind a row's last one.

    Args:
        positions: of the queries, [batch, sequence].
        mask: [batch, total].
        windows: as they are wanted.
    """
    op = graph.op
    total = op.Squeeze(op.Shape(mask, start=1, end=2))
    keys = op.Range(graph.constant(np.array(0), "zero"), total, graph.constant(np.array(1), "one"))
    queries = op.Unsqueeze(positions, graph.constant(np.array([1, 3]), "axes.1.3"))  # [batch, 1, sequence, 1]
    visible = op.LessOrEqual(keys, queries)
    return _within(graph, windows, visible, queries, keys)


def _within(
    graph: Graph, windows: set[int | None], visible: ir.Value, queries: ir.Value, keys: ir.Value
) -> Mapping[int | None, ir.Value]:
    """``visible``, and of it the keys within each window: so many, the query's own included."""
    op = graph.op

    def masked(window: int | None) -> ir.Value:
        if window is None:
            return visible
        first = op.Sub(queries, graph.constant(np.array(window), f"window.{window}"))
        return op.And(visible, op.Greater(keys, first))

    return {window: masked(window) for window in sorted(windows, key=lambda w: w or 0)}
