"""Which positions of a call get logits: all, or as many of the last ones as an input says that need not be given."""

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph

KEEP = "num_logits_to_keep"
"""transformers.js' name of the input: a number, of which 0 stands for all positions."""


def last_rows(graph: Graph, x: ir.Value, mask: ir.Value) -> ir.Value:
    """The last positions of x [batch, sequence, hidden], [batch, kept, hidden].

    :data:`KEEP` says how many; who does not give it gets one. In a batch that is padded they are the last real ones of
    each row, so that one row of logits is the one that a text goes on from. All positions come in their order.

    Args:
        graph: to write into.
        x: of the positions of this call.
        mask: [batch, total], 1 for a token.
    """
    op = graph.op
    with graph.root():
        zero, one = graph.constant(np.array(0), "zero"), graph.constant(np.array(1), "one")
        kept = graph.optional(KEEP, np.array(1))
        new = op.Squeeze(op.Shape(x, start=1, end=2))
        total = op.Squeeze(op.Shape(mask, start=1, end=2))
        wanted = op.Where(op.Equal(kept, zero), new, op.Min(kept, new))
        real = op.ReduceMax(
            op.Mul(mask, op.Range(zero, total, one)), graph.constant(np.array([1]), "axis.1"), keepdims=1
        )
        last = op.Max(op.Sub(real, op.Sub(total, new)), op.Sub(wanted, one))  # [batch, 1], in this call
        last = op.Where(op.Equal(wanted, new), op.Sub(new, one), last)
        rows = op.Add(last, op.Range(op.Sub(one, wanted), one, one))  # [batch, wanted]
        return op.GatherND(x, op.Unsqueeze(rows, graph.constant(np.array([2]), "axis.2")), batch_dims=1)
