"""When rows end: at an end token, or after as many tokens as were asked for."""

import numpy as np
import onnx_ir as ir

from paritas.policies.policy import Policy, axis, begin, finish, flags, give, integers

NAME = "termination"


def termination() -> Policy:
    """tokens, eos_ids [batch, ends], eos_lengths, iteration [1], max_iterations, active -> done, next_active, continue.

    A row ends if its token is one of the first ``eos_lengths`` of its ``eos_ids``, or if ``iteration`` (the first is 0)
    was its last. ``continue`` [1] holds while a row goes on.
    """
    graph = begin()
    op = graph.op
    tokens, ends = integers(graph, "tokens"), integers(graph, "eos_ids", "ends")
    lengths = integers(graph, "eos_lengths")
    iteration = graph.input("iteration", ir.DataType.INT64, [1])
    most, active = integers(graph, "max_iterations"), flags(graph, "active")

    places = op.Range(
        graph.constant(np.array(0), "zero"),
        op.Squeeze(op.Shape(ends, start=1, end=2)),
        graph.constant(np.array(1), "one"),
    )
    valid = op.Less(op.Unsqueeze(places, axis(graph, 0)), op.Unsqueeze(lengths, axis(graph, 1)))
    hit = op.And(op.Equal(op.Unsqueeze(tokens, axis(graph, 1)), ends), valid)
    ended = op.Greater(
        op.ReduceSum(op.Cast(hit, to=ir.DataType.INT64), axis(graph, 1), keepdims=0),
        graph.constant(np.array(0), "zero"),
    )
    last = op.GreaterOrEqual(op.Add(iteration, graph.constant(np.array(1), "one")), most)
    goes_on = op.And(active, op.Not(op.Or(ended, last)))
    rows = op.ReduceSum(op.Cast(goes_on, to=ir.DataType.INT64), axis(graph, 0), keepdims=1)
    give(graph, op.Not(goes_on), "done", ir.DataType.BOOL)
    give(graph, op.Identity(goes_on), "next_active", ir.DataType.BOOL)
    more = op.Greater(rows, graph.constant(np.array(0), "zero"))
    graph.output(more, "continue", ir.DataType.BOOL, [1])
    return finish(graph, NAME)
