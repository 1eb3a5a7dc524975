"""What a generation begins with: the prompt's mask, empty states, end tokens, and counts at zero."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.policies.policy import Policy, axis, begin, finish, give, integers

NAME = "cache_initializer"
MASK, SLOT = "attention_mask", "token_slot"
Empty = tuple[ir.DataType, tuple[int | str, ...]]
"""A state before the first token: its dtype, and its sizes behind the batch; a symbol is a size that grows from 0."""


def initializer(states: Mapping[str, Empty], ends: Sequence[int]) -> Policy:
    """prompt_tokens [batch, sequence], most_tokens -> attention_mask, token_slot, eos_ids, ..., and each state.

    Args:
        states: output -> what it is.
        ends: ids of the end tokens; the same for all rows. There may be none.
    """
    graph = begin()
    op = graph.op
    prompt = integers(graph, "prompt_tokens", "sequence")
    most = graph.input("most_tokens", ir.DataType.INT64, [1])
    batch = op.Shape(prompt, start=0, end=1)
    one = graph.constant(np.array([1]), "one")

    give(graph, op.Expand(one, op.Shape(prompt)), MASK, ir.DataType.INT64, "sequence")
    first = op.Slice(prompt, axis(graph, 0), axis(graph, 1), axis(graph, 1))
    give(graph, first, SLOT, ir.DataType.INT64, 1)
    ids = graph.constant(np.array([list(ends) or [-1]], np.int64), "eos")
    width = max(len(ends), 1)
    spread = op.Expand(ids, op.Concat(batch, axis(graph, width), axis=0))
    give(graph, spread, "eos_ids", ir.DataType.INT64, width)
    give(graph, op.Expand(axis(graph, len(ends)), batch), "eos_lengths", ir.DataType.INT64)
    give(graph, op.Expand(most, batch), "max_iterations", ir.DataType.INT64)
    for name, (dtype, sizes) in states.items():
        give(graph, empty(graph, batch, dtype, sizes), name, dtype, *sizes)
    return finish(graph, NAME)


def empty(graph: Graph, batch: ir.Value, dtype: ir.DataType, sizes: Sequence[int | str]) -> ir.Value:
    """Zeros [batch, *sizes], of no token yet."""
    op = graph.op
    known = [0 if isinstance(size, str) else size for size in sizes]
    zeros = op.ConstantOfShape(op.Concat(batch, axis(graph, *known), axis=0), value=ir.tensor(np.zeros(1, np.float32)))
    return zeros if dtype is ir.DataType.FLOAT else op.Cast(zeros, to=dtype)
