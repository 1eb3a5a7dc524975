"""Laurel: a learned residual of low rank, beside the mixer."""

import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.graph.linear import linear
from paritas.graph.norm import norm
from paritas.spec import AnyNorm, Laurel
from paritas.targets.base import Target


def laurel(graph: Graph, target: Target, spec: Laurel, kind: AnyNorm, hidden: int, x: ir.Value) -> ir.Value:
    """``x + post_laurel_norm(linear_right(linear_left(x)))``, [batch, sequence, hidden] in and out.

    ``kind`` is that of the layer's norms.
    """
    with graph.scope("laurel"):
        low = linear(graph, target, "linear_left", x, hidden, spec.rank)
        learned = linear(graph, target, "linear_right", low, spec.rank, hidden)
        return graph.op.Add(x, norm(graph, target, kind, "post_laurel_norm", hidden, learned))
