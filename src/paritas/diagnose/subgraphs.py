"""Right subgraphs that repairs put into a graph: a mask, positions, a norm, a rotation's tables."""

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate
from paritas.audit.masks import feeds
from paritas.diagnose.case import Case
from paritas.diagnose.edit import Edit, RefusedError

Rows = NDArray[np.float32]


def integer(edit: Edit, value: int | list[int]) -> str:
    """A constant of int64; shared by all who ask for the same."""
    return edit.once(f"integer {value}", lambda: edit.add_initializer("number", np.array(value, np.int64)))


def op(edit: Edit, operator: str, *inputs: str, **attributes: object) -> str:
    """A node of the standard's operators."""
    return edit.insert_node(operator, list(inputs), attributes=attributes)


def cast(edit: Edit, value: str, kind: int) -> str:
    """A value in another type."""
    return op(edit, "Cast", value, to=kind)


def _sizes(edit: Edit, case: Case) -> tuple[str, str, str]:
    """The mask of the input in int64, its length and the number of new tokens, both scalars."""
    if case.ports.attention_mask is None:
        raise RefusedError("the graph has no attention mask to count tokens in")
    mask = edit.once("mask", lambda: cast(edit, case.ports.attention_mask or "", onnx.TensorProto.INT64))
    axis = integer(edit, 1)
    total = edit.once("total", lambda: op(edit, "Gather", op(edit, "Shape", mask), axis))
    new = edit.once("new", lambda: op(edit, "Gather", op(edit, "Shape", case.ports.input_ids), axis))
    return mask, total, new


def mask(edit: Edit, case: Case, like: str, window: int | None) -> str:
    """A causal mask ``[batch, 1, new, total]`` that hides padding, and what lies before the window.

    Args:
        edit: of the graph.
        case: of the package.
        like: the mask in whose place it is put: bool, or numbers that are added.
        window: keys that a query sees.
    """
    return edit.once(f"mask {like} {window}", lambda: _mask(edit, case, like, window))


def _mask(edit: Edit, case: Case, like: str, window: int | None) -> str:
    given, total, new = _sizes(edit, case)
    zero, one = integer(edit, 0), integer(edit, 1)
    keys = op(edit, "Range", zero, total, one)
    queries = op(edit, "Unsqueeze", op(edit, "Range", op(edit, "Sub", total, new), total, one), integer(edit, [1]))
    real = cast(edit, op(edit, "Unsqueeze", given, integer(edit, [1, 2])), onnx.TensorProto.BOOL)
    shown = op(edit, "And", op(edit, "LessOrEqual", keys, queries), real)
    shown = op(edit, "Or", shown, op(edit, "Equal", keys, queries))
    if window is not None:
        shown = op(edit, "And", shown, op(edit, "Greater", keys, op(edit, "Sub", queries, integer(edit, window))))
    kind = _kind(case, like)
    if kind == np.dtype(bool):
        return shown
    least = edit.add_initializer("hidden", np.array(np.finfo(np.float32).min, kind))
    return op(edit, "Where", shown, edit.add_initializer("shown", np.array(0, kind)), least)


def static_mask(edit: Edit, case: Case, keys: str, window: int) -> str:
    """A causal mask ``[batch, 1, new, capacity]`` with a window, of a graph that is told its positions.

    Args:
        edit: of the graph.
        case: of the package.
        keys: of the attention, all of the cache.
        window: keys that a query sees.

    Raises:
        RefusedError: the graph takes no positions.
    """
    places = case.ports.position_ids
    if places is None:
        raise RefusedError("the graph takes no positions")

    def make() -> str:
        room = op(edit, "Gather", op(edit, "Shape", keys), integer(edit, 1 if _rank(case, keys) == 3 else 2))
        every = op(edit, "Range", integer(edit, 0), room, integer(edit, 1))
        queries = op(edit, "Unsqueeze", cast(edit, places, onnx.TensorProto.INT64), integer(edit, [1, 3]))
        near = op(edit, "Greater", every, op(edit, "Sub", queries, integer(edit, window)))
        return op(edit, "And", op(edit, "LessOrEqual", every, queries), near)

    return edit.once(f"static mask {window}", make)


def _rank(case: Case, name: str) -> int:
    """Axes of a cache, or of what is made of it."""
    shapes = {value.name: len(value.type.tensor_type.shape.dim) for value in case.view.proto.graph.output}
    shapes |= {value.name: len(value.type.tensor_type.shape.dim) for value in case.view.proto.graph.input}
    while name not in shapes and name in case.view.maker:
        name = case.view.maker[name].input[0]
    return shapes.get(name, 4)


def _kind(case: Case, name: str) -> np.dtype[np.generic]:
    values = evaluate(case.view, [name], feeds(case.view, 2, 0))
    return np.dtype(np.float32) if values is None else values[0].dtype


def positions(edit: Edit, case: Case) -> str:
    """Positions ``[batch, new]`` of the new tokens, counted over what is no padding."""
    return edit.once("positions", lambda: _positions(edit, case))


def _positions(edit: Edit, case: Case) -> str:
    given, total, new = _sizes(edit, case)
    axis = integer(edit, [1])
    counted = op(
        edit, "Max", op(edit, "Sub", op(edit, "CumSum", given, integer(edit, 1)), integer(edit, 1)), integer(edit, 0)
    )
    first, last = (
        op(edit, "Unsqueeze", op(edit, "Sub", total, new), integer(edit, [0])),
        op(edit, "Unsqueeze", total, integer(edit, [0])),
    )
    return op(edit, "Slice", counted, first, last, axis)


def last_index(edit: Edit, case: Case) -> str:
    """Index of the last token of each row that is no padding, int32 ``[batch]``, as GroupQueryAttention takes it."""

    def make() -> str:
        given, _, _ = _sizes(edit, case)
        count = op(edit, "ReduceSum", given, integer(edit, [1]), keepdims=0)
        return cast(edit, op(edit, "Sub", count, integer(edit, 1)), onnx.TensorProto.INT32)

    return edit.once("last index", make)


def head_norm(edit: Edit, x: str, weight: Rows, epsilon: float) -> str:
    """RMSNorm of each head of ``x`` ``[batch, tokens, heads * head_dim]``, in the standard's own operators."""
    heads = op(edit, "Reshape", x, integer(edit, [0, 0, -1, len(weight)]))
    normed = rms_norm(edit, heads, weight, epsilon)
    return op(edit, "Reshape", normed, integer(edit, [0, 0, -1]))


def rms_norm(edit: Edit, x: str, weight: Rows, epsilon: float) -> str:
    """RMSNorm over the last axis, in the standard's own operators."""
    number = edit.add_initializer("epsilon", np.array(epsilon, np.float32))
    square = op(edit, "Mul", x, x)
    mean = mean_of_last(edit, square)
    normed = op(edit, "Div", x, op(edit, "Sqrt", op(edit, "Add", mean, number)))
    return op(edit, "Mul", normed, edit.add_initializer("norm weight", weight.astype(np.float32)))


def mean_of_last(edit: Edit, x: str) -> str:
    """Mean over the last axis, which stays as one number."""
    if _opset(edit) >= 18:
        return op(edit, "ReduceMean", x, integer(edit, [-1]), keepdims=1)
    return op(edit, "ReduceMean", x, axes=[-1], keepdims=1)


def layer_norm(edit: Edit, x: str, weight: Rows, bias: Rows | None, epsilon: float) -> str:
    """LayerNorm over the last axis."""
    taken = [edit.add_initializer("norm weight", weight.astype(np.float32))]
    if bias is not None:
        taken.append(edit.add_initializer("norm bias", bias.astype(np.float32)))
    return op(edit, "LayerNormalization", x, *taken, axis=-1, epsilon=epsilon)


def _opset(edit: Edit) -> int:
    return max((each.version for each in edit.proto.opset_import if each.domain in ("", "ai.onnx")), default=1)
