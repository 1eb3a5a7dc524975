"""Heads of a cache whose shape does not tell them: found at the attention operator that takes it.

ORT GenAI's builder declares its caches ``[batch, kv_heads, past, "kv_cache_dim"]``. The operator knows its number of
heads, and the projection behind it how many columns the heads have together. A cache that is kept flat,
``[batch, room, kv_heads * head_dim]``, is taken by an operator that says how many heads lie in it.
"""

from collections.abc import Iterator

from paritas.runtime.wiring import Wiring

GATE = "Mul"  # between attention and projection, of the same width


def head_dim(wiring: Wiring, past: str) -> int | None:
    """Width of a head of the attention that takes the cache ``past``; None if the graph does not tell."""
    for reader in wiring.readers(past):
        heads = reader.integer("num_heads") or reader.integer("q_num_heads")
        for columns in _columns(wiring, reader.node.output[0]) if heads else ():
            if heads and columns % heads == 0:
                return columns // heads
    return None


def kv_heads(wiring: Wiring, *names: str) -> int | None:
    """Heads of the keys in the first attention that takes one of the tensors; None if the graph does not tell."""
    told = (reader.integer("kv_num_heads") for name in names for reader in wiring.readers(name))
    return next((heads for heads in told if heads), None)


def _columns(wiring: Wiring, name: str) -> Iterator[int]:
    """Numbers of columns that projections of ``name`` take."""
    for reader in wiring.readers(name):
        operator = reader.node.op_type
        if operator == GATE:
            yield from _columns(wiring, reader.node.output[0])
        elif operator == "MatMul" and len(shape := wiring.shapes.get(reader.node.input[1], ())) == 2:
            yield shape[0]
        elif operator == "MatMulNBits" and (columns := reader.integer("K")):
            yield columns
