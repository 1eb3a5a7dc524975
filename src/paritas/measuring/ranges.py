"""How large values become: the largest of every value of the graph on real text, and which ones fp16 could not hold.

The maxima are taken in the graph itself, so that no value leaves it. What attention computes inside its operator is
not among them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx

from paritas.errors import ParitasError
from paritas.measuring.whole import Asked, written
from paritas.plan import Plan

LARGEST = float(np.finfo(np.float16).max)
"""65,504: what is larger becomes Inf."""
_NO_FLOATS = frozenset(
    {"Shape", "Size", "Cast", "NonZero", "Unique", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"}
)
_SUM = 3
"""The place of the sum among the outputs of SkipSimplifiedLayerNormalization."""


def fp16_ranges(plan: Plan, folder: Path) -> dict[str, float]:
    """The largest absolute value of every value of a plan of fp32, by the name of its node.

    Raises:
        ParitasError: ``fp16-overflow``, naming the first node whose values fp16 cannot hold.
    """
    found: dict[str, str] = {}
    with written(plan, folder) as home:
        asked = Asked(home, plan, lambda model: found.update(_observe(model.graph)))
        each = [asked.run(ids, list(found.values())) for ids in asked.texts]
    largest = {node: float(np.max(values)) for node, *values in zip(found, *each, strict=True)}
    check(largest)
    return largest


def check(largest: Mapping[str, float]) -> None:
    """Refuse what fp16 cannot hold.

    Raises:
        ParitasError: ``fp16-overflow``.
    """
    beyond = {node: value for node, value in largest.items() if value > LARGEST}
    if beyond:
        node, value = next(iter(beyond.items()))
        raise ParitasError(
            "fp16-overflow",
            f"on plain text values reach {value:,.0f} at {node} ({len(beyond)} places in all); fp16 ends at 65,504",
            place=node,
            hint="Export it as bf16, which has the range of fp32, or with int8 or int4 for the CPU.",
        )


def _observe(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Adds the largest absolute value of each value to the outputs: name of the node, name of the output."""
    floats = {tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    floats |= {v.name for v in graph.input if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    for node in list(graph.node):
        if node.op_type in _NO_FLOATS or not floats & set(node.input):
            continue
        kept = [name for place, name in enumerate(node.output) if name and place in (0, _SUM)]
        floats |= set(node.output)
        for place, name in enumerate(kept):
            label = node.name if place == 0 else f"{node.name}.sum"
            absolute, largest = f"{name}.absolute", f"{name}.largest"
            graph.node.append(onnx.helper.make_node("Abs", [name], [absolute]))
            graph.node.append(onnx.helper.make_node("ReduceMax", [absolute], [largest], keepdims=0))
            graph.output.append(onnx.helper.make_tensor_value_info(largest, onnx.TensorProto.FLOAT, ()))
            yield label, largest
