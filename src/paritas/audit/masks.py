"""Which keys a query sees, and at which positions it stands: the graph's own small subgraphs, evaluated."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate_part
from paritas.audit.view import View

LONGEST = 1024  # tokens at once, where there is no cache; a longer window is not seen
_SEEN = -1e3  # an additive mask hides with far less, and shows with zero
Visible = NDArray[np.bool_]


def feeds(view: View, new: int, past: int, padded: int = 0) -> dict[str, NDArray[Any]]:
    """Inputs of a step of ``new`` tokens after ``past``, one row, the first ``padded`` of all of them padding."""
    found: dict[str, NDArray[Any]] = {}
    total = past + new
    for value in view.proto.graph.input:
        name, kind = value.name, onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if len(dims) == 4:
            shape = [1, dims[1] or 1, past, dims[3] or 1]
            found[name] = np.zeros(shape, kind)
        elif "mask" in name:
            found[name] = (np.arange(total) >= padded).astype(kind)[None]
        elif "position" in name:
            found[name] = np.maximum(np.arange(past, total) - padded, 0).astype(kind)[None]
        elif len(dims) == 2:
            found[name] = np.ones((1, new), kind)
    return found


def visible(view: View, name: str, new: int, past: int, padded: int = 0) -> Visible | None:
    """``[new, total]``, true where a query sees a key; None if the mask hangs on something else."""
    values = _evaluated(view, name, new, past, padded)
    if values is None or values[0].ndim < 2:
        return None
    mask = values[0].reshape(-1, *values[0].shape[-2:])[0]
    if mask.shape != (new, past + new):
        return None
    return mask if mask.dtype == bool else mask > _SEEN


def integers(view: View, name: str, new: int, past: int, padded: int = 0) -> NDArray[Any] | None:
    """The value of positions or lengths in such a step."""
    values = _evaluated(view, name, new, past, padded)
    return values[0].reshape(-1) if values is not None else None


def _evaluated(view: View, name: str, new: int, past: int, padded: int) -> list[NDArray[Any]] | None:
    key = (name, new, past, padded)
    if key not in view.memory:
        view.memory[key] = evaluate_part(view, [name], feeds(view, new, past, padded), new)
    return view.memory[key]


def window_of(view: View, name: str, most: int) -> int | None:
    """Keys that the mask ``name`` lets the last query see, its own included; 0 if it sees all; None if unknown.

    Args:
        view: the graph.
        name: of the mask.
        most: a window up to this many keys is found.
    """
    new, past = (1, most + 8) if cached(view) else (min(most + 8, LONGEST), 0)
    seen = visible(view, name, new, past)
    if seen is None:
        return None
    count = int(seen[-1].sum())
    return 0 if count == past + new else count


def cached(view: View) -> bool:
    """Whether the graph takes keys and values of earlier steps."""
    return any(len(value.type.tensor_type.shape.dim) == 4 for value in view.proto.graph.input)


def causal(view: View, name: str) -> bool | None:
    """Whether no query sees a later key."""
    seen = visible(view, name, 6, 0)
    return None if seen is None else not np.triu(seen, 1).any()


def hides_padding(view: View, name: str) -> bool | None:
    """Whether a real query sees no key of the padding before it."""
    if not any("mask" in value.name for value in view.proto.graph.input):
        return None
    seen = visible(view, name, 6, 0, padded=2)
    return None if seen is None else not seen[2:, :2].any()
