"""The head width of a cache whose shape leaves it free: found at the attention operator that takes the cache.

ORT GenAI's builder declares its caches ``[batch, kv_heads, past, "kv_cache_dim"]``. The operator knows its number of
heads, and the projection behind it how many columns the heads have together.
"""

from collections.abc import Iterator

import onnx

PASSES_WIDTH = frozenset({"Cast", "Identity", "Mul"})  # between attention and projection; Mul is an output gate


def head_dim(graph: onnx.GraphProto, past: str) -> int | None:
    """Width of a head of the attention that takes the cache ``past``; None if the graph does not tell."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        heads = _integer(node, "num_heads") or _integer(node, "q_num_heads")
        if past not in node.input or not heads:
            continue
        for columns in _columns(graph, node.output[0], shapes):
            if columns % heads == 0:
                return columns // heads
    return None


def _columns(graph: onnx.GraphProto, name: str, shapes: dict[str, tuple[int, ...]]) -> Iterator[int]:
    """Numbers of columns that projections of ``name`` take."""
    for node in graph.node:
        if name not in node.input:
            continue
        if node.op_type in PASSES_WIDTH:
            yield from _columns(graph, node.output[0], shapes)
        elif node.op_type == "MatMul" and len(shapes.get(node.input[1], ())) == 2:
            yield shapes[node.input[1]][0]
        elif node.op_type == "MatMulNBits" and (columns := _integer(node, "K")):
            yield columns


def _integer(node: onnx.NodeProto, name: str) -> int | None:
    return next((a.i for a in node.attribute if a.name == name), None)
