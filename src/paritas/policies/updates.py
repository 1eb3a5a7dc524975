"""What changes between two calls of a decoder beside its states: the token, the mask, what was accepted."""

import numpy as np
import onnx_ir as ir

from paritas.policies.policy import BATCH, Policy, axis, begin, finish, flags, give, integers

LAST_LOGITS, TOKEN, CACHE = "last_token_logits", "token_update", "cache_update"


def last_logits(vocab: int, logits: ir.DataType) -> Policy:
    """logits [batch, sequence, vocab] in the decoder's dtype -> last_logits [batch, vocab] in fp32."""
    graph = begin()
    op = graph.op
    given = graph.input("logits", logits, [BATCH, "sequence", vocab])
    last = op.Gather(given, graph.constant(np.array(-1), "last"), axis=1)
    give(graph, op.Cast(last, to=ir.DataType.FLOAT), "last_logits", ir.DataType.FLOAT, vocab)
    return finish(graph, LAST_LOGITS)


def token_update() -> Policy:
    """current [batch, 1], token, active, done -> next [batch, 1], accepted.

    A row that is active and not done goes on with its token, and accepts one; another one stays as it is.
    """
    graph = begin()
    op = graph.op
    current, token = integers(graph, "current", 1), integers(graph, "token")
    runs = op.And(flags(graph, "active"), op.Not(flags(graph, "done")))
    slot = op.Where(op.Unsqueeze(runs, axis(graph, 1)), op.Unsqueeze(token, axis(graph, 1)), current)
    give(graph, slot, "next", ir.DataType.INT64, 1)
    give(graph, op.Cast(runs, to=ir.DataType.INT64), "accepted", ir.DataType.INT64)
    return finish(graph, TOKEN)


def cache_update() -> Policy:
    """attention_mask [batch, length], accepted -> next_attention_mask [batch, length + 1].

    The new place counts in rows that accepted a token. Keys and values themselves are appended by the decoder.
    """
    graph = begin()
    op = graph.op
    mask, accepted = integers(graph, "attention_mask", "length"), integers(graph, "accepted")
    longer = op.Concat(mask, op.Unsqueeze(accepted, axis(graph, 1)), axis=1)
    give(graph, longer, "next_attention_mask", ir.DataType.INT64, "next_length")
    return finish(graph, CACHE)
