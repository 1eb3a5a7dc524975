"""The next token of each row: greedy, or a draw from what temperature, top-k, top-p and min-p leave.

The order is that of transformers' logits processors. Rows differ in all of it, and in their streams of random numbers.
"""

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.policies.policy import Policy, axis, begin, finish, flags, floats, give, integers
from paritas.policies.threefry import uniform

NAME = "token_sampler"
INACTIVE = -1
"""The token of a row that generates no more."""
_LEAST = 2.0**-1000


def sampler() -> Policy:
    """logits [batch, vocab], temperature, top_k, top_p, min_p, seed, counter, active, done -> token, next_counter.

    - ``temperature``: logits are divided by it; the best token is taken where it is 0 or less, the first of equal ones.
    - ``top_k``: the k best, and those equal to the k-th; 0 or less: all.
    - ``top_p``: the smallest set of most probable ones that reaches it, never empty; 1 or more: all.
    - ``min_p``: those at least so probable, as a part of the most probable one; 0 or less: all.
    - ``seed``, ``counter``: the draw is a function of the two. The counter goes on by one with each token.

    A row that is not active, or done, gets -1 and keeps its counter.
    """
    graph = begin()
    op = graph.op
    logits = floats(graph, "logits", "vocab")
    temperature = floats(graph, "temperature")
    top_k = integers(graph, "top_k")
    top_p, min_p = floats(graph, "top_p"), floats(graph, "min_p")
    seed, counter = integers(graph, "seed"), integers(graph, "counter")
    active, done = flags(graph, "active"), flags(graph, "done")

    greedy = op.LessOrEqual(temperature, graph.scalar(0.0, "nought"))
    scores, order = ranked(graph, logits, op.Where(greedy, graph.scalar(1.0, "whole"), temperature))
    kept = left(graph, scores, top_k, top_p, min_p)
    rank = drawn(graph, kept, uniform(graph, seed, counter))
    sampled = op.Squeeze(op.GatherElements(order, rank, axis=1), axis(graph, 1))
    best = op.ArgMax(logits, axis=1, keepdims=0)

    runs = op.And(active, op.Not(done))
    token = op.Where(runs, op.Where(greedy, best, sampled), graph.constant(np.array(INACTIVE), "inactive"))
    give(graph, token, "token", ir.DataType.INT64)
    give(graph, op.Add(counter, op.Cast(runs, to=ir.DataType.INT64)), "next_counter", ir.DataType.INT64)
    return finish(graph, NAME)


def ranked(graph: Graph, logits: ir.Value, temperature: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Logits in fp64 over the temperature, best first, and the tokens that they are of; [batch, vocab] each."""
    op = graph.op
    vocab = op.Shape(logits, start=1, end=2)
    values, order = op.TopK(logits, vocab, axis=1, largest=1, sorted=1, _outputs=2)
    wide = op.Cast(values, to=ir.DataType.DOUBLE)
    return op.Div(wide, column(graph, temperature)), order


def left(graph: Graph, scores: ir.Value, top_k: ir.Value, top_p: ir.Value, min_p: ir.Value) -> ir.Value:
    """Probabilities [batch, vocab] of what the three leave, zero elsewhere; they do not sum to 1."""
    op = graph.op
    nothing = graph.constant(np.array(0.0), "nothing")
    vocab = op.Shape(scores, start=1, end=2)
    one = graph.constant(np.array([1]), "one")
    every = op.LessOrEqual(top_k, graph.constant(np.array(0), "zero"))
    last = op.Sub(op.Min(op.Where(every, vocab, top_k), vocab), one)
    kth = op.GatherElements(scores, op.Unsqueeze(last, axis(graph, 1)), axis=1)
    infinite = graph.constant(np.array(-np.inf), "infinite")
    probabilities = op.Softmax(op.Where(op.GreaterOrEqual(scores, kth), scores, infinite), axis=1)
    # What the tokens before each one sum to: nothing for the first, which therefore stays.
    before = op.CumSum(probabilities, graph.constant(np.array(1), "along"), exclusive=1)
    share = op.Max(column(graph, top_p), graph.constant(np.array(_LEAST), "least"))
    within = op.Or(op.Less(before, share), op.GreaterOrEqual(share, graph.constant(np.array(1.0), "whole.share")))
    probabilities = op.Where(within, probabilities, nothing)
    most = op.ReduceMax(probabilities, axis(graph, 1), keepdims=1)
    part = op.Min(column(graph, min_p), graph.constant(np.array(1.0), "whole.share"))
    return op.Where(op.GreaterOrEqual(probabilities, op.Mul(most, part)), probabilities, nothing)


def drawn(graph: Graph, probabilities: ir.Value, u: ir.Value) -> ir.Value:
    """The first rank [batch, 1] at which the sum of probabilities exceeds ``u`` [batch] of the whole sum."""
    op = graph.op
    sums = op.CumSum(probabilities, graph.constant(np.array(1), "along"))
    whole = op.ReduceMax(sums, axis(graph, 1), keepdims=1)
    beyond = op.Greater(sums, op.Mul(op.Unsqueeze(u, axis(graph, 1)), whole))
    return op.ArgMax(op.Cast(beyond, to=ir.DataType.INT32), axis=1, keepdims=1)


def column(graph: Graph, x: ir.Value) -> ir.Value:
    """[batch] as fp64 [batch, 1]."""
    return graph.op.Unsqueeze(graph.op.Cast(x, to=ir.DataType.DOUBLE), axis(graph, 1))
