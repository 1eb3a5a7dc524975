"""LFM2's short convolution: a gated causal convolution over few positions, with the last inputs as its state."""

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.graph.linear import linear
from paritas.spec import Decoder, ShortConvolution
from paritas.targets.base import Target


def short_convolution(
    graph: Graph, target: Target, spec: ShortConvolution, hidden: int, x: ir.Value, real: ir.Value, past: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """[batch, sequence, hidden] in and out; also the present state, [batch, hidden, kernel - 1].

    Padding is masked where the convolution sees it, so that a padded row is what it is alone. transformers masks x
    instead, which is the same unless ``in_proj`` has a bias (of no published checkpoint): there the padding leaves
    products of the bias in its state.

    Args:
        real: 1 for a token and 0 for padding, [batch, 1, sequence].
    """
    op = graph.op
    with graph.scope("conv"):
        blocks = linear(graph, target, "in_proj", x, hidden, 3 * hidden, spec.bias)
        by_channel = op.Transpose(blocks, perm=[0, 2, 1])
        b, c, u = op.Split(by_channel, axis=1, num_outputs=3, _outputs=3)
        with graph.scope("conv"):
            weight = graph.parameter("weight", graph.stored("weight", (hidden, 1, spec.kernel)))
            bias = graph.parameter("bias", graph.stored("bias", (hidden,))) if spec.bias else None
            y, present = target.convolution(graph, op.Mul(op.Mul(b, u), real), weight, bias, past)
        y = op.Transpose(op.Mul(c, y), perm=[0, 2, 1])
        return linear(graph, target, "out_proj", y, hidden, hidden, spec.bias), present


def real_tokens(graph: Graph, spec: Decoder, ids: ir.Value, mask: ir.Value) -> ir.Value | None:
    """1 for each token of the call that is no padding, [batch, 1, sequence]; None if no layer asks."""
    if not any(isinstance(layer.mixer, ShortConvolution) for layer in spec.layers):
        return None
    op = graph.op
    with graph.scope("step"):
        total, length = op.Shape(mask, start=1, end=2), op.Shape(ids, start=1, end=2)
        own = op.Slice(mask, op.Sub(total, length), total, graph.constant(np.array([1]), "axis.1"))
        return op.Cast(op.Unsqueeze(own, graph.constant(np.array([1]), "axis.1")), to=ir.DataType.FLOAT)
