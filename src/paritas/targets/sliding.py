"""Caches of layers with a window that keep to it: GroupQueryAttention drops what no later query sees.

Positions stay absolute: the operator is told the lengths of the whole sequence, and knows by itself what its cache
still holds. How much room there is beyond the window is the runtime's choice, not the graph's.
"""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import onnx_ir as ir

from paritas.errors import Unsupported
from paritas.graph.builder import Graph
from paritas.spec import Attention, Decoder
from paritas.targets.base import Target

_LENGTH = "window_length"
_QUERY_LENGTHS = 16  # place among the inputs of GroupQueryAttention
_PROVIDERS = ("cpu", "cuda")


class SlidingCache(StrEnum):
    """What a layer with a window keeps: all tokens, or those that it may still see."""

    FULL = "full"
    WINDOWED = "windowed"


def windows(target: Target, spec: Decoder, context: int, provider: str) -> tuple[Sequence[int], int]:
    """The layers whose caches can keep to their window, and that window.

    Raises:
        Unsupported: ``sliding-cache-unsupported``.
    """
    mixers = [layer.mixer for layer in spec.layers]
    found = {
        index: mixer.window
        for index, mixer in enumerate(mixers)
        if isinstance(mixer, Attention) and mixer.window is not None and mixer.window < context
    }
    if reason := _obstacle(target, spec, context, provider, set(found.values())):
        raise Unsupported(
            "sliding-cache-unsupported",
            f"the caches cannot keep to a window: {reason}",
            hint="Leave --sliding-cache out.",
        )
    return list(found), next(iter(found.values()))


def keep_to_windows(graph: Graph, window: int) -> None:
    """Change a finished graph in place: the caches of its layers with this window keep to it."""
    new = _new_tokens(graph)
    for node in list(graph.ir):
        own = node.attributes.get("local_window_size")
        if node.op_type != "GroupQueryAttention" or own is None or own.as_int() != window:
            continue
        node.attributes.add(ir.AttrInt64("sliding_window_cache", 1))
        node.resize_inputs(_QUERY_LENGTHS + 1)
        node.replace_input_with(_QUERY_LENGTHS, new)
        for value in (*node.inputs[3:5], *node.outputs[1:3]):
            assert value is not None
            assert value.shape is not None
            value.shape = ir.Shape([_LENGTH if axis == 2 else size for axis, size in enumerate(value.shape)])
    graph.ir.sort()


def _new_tokens(graph: Graph) -> ir.Value:
    """How many tokens of the call are real, of each row, int32 [batch]: rows may be padded on the right."""
    op = graph.op
    ids, mask = graph.ir.inputs[:2]
    with graph.scope("step"):
        one = graph.constant(np.array([1]), "axis.1")
        total = op.Shape(mask, start=1, end=2)
        first = op.Sub(total, op.Shape(ids, start=1, end=2))
        return op.Cast(op.ReduceSum(op.Slice(mask, first, total, one), one, keepdims=0), to=ir.DataType.INT32)


def _obstacle(target: Target, spec: Decoder, context: int, provider: str, found: set[int]) -> str | None:
    if not found:
        return f"no layer has one that is shorter than the context of {context:,}"
    if len(found) > 1:
        return f"layers have different ones ({', '.join(map(str, sorted(found)))}), and ORT GenAI knows one"
    if not target.shares_cache_buffers(spec):
        return f"target {target.name} does not write every layer of this model as GroupQueryAttention"
    if provider not in _PROVIDERS:
        return f"GroupQueryAttention does not do so on {provider}"
    return None
