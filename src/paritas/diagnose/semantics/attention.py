"""Attention: ``GroupQueryAttention`` and ``MultiHeadAttention`` of ONNX Runtime, ``Attention`` of ONNX."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.semantics.rotary import rotate
from paritas.diagnose.semantics.stating import NotStated, given, needed, places

Array = NDArray[Any]
Inputs = Sequence[Array | None]


def attend(
    query: Array, key: Array, value: Array, bias: Array, scale: float, softcap: float, sink: Array | None = None
) -> Array:
    """``softmax(softcap(scale * Q K^T) + bias) V`` of one row.

    Args:
        query: ``[heads, tokens, width]``.
        key, value: ``[kv_heads, seen, width]``; each serves ``heads / kv_heads`` heads in a row.
        bias: broadcast to ``[heads, tokens, seen]``; minus infinity where nothing is seen.
        scale: of the scores.
        softcap: of the scores after the scale; 0 for none.
        sink: ``[heads]``: one score more in each softmax, of nothing.
    """
    shared = len(query) // len(key)
    scores = query @ np.repeat(key, shared, axis=0).swapaxes(1, 2) * query.dtype.type(scale)
    if softcap:
        scores = softcap * np.tanh(scores / query.dtype.type(softcap))
    scores = scores + bias
    top = scores.max(axis=-1, keepdims=True)
    if sink is not None:
        top = np.maximum(top, sink[:, None, None])
    top = np.where(np.isfinite(top), top, 0)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink[:, None, None] - top)
    shares = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return shares @ np.repeat(value, shared, axis=0)


def group_query_attention(inputs: Inputs, values: Mapping[str, Any]) -> Array:
    """``[batch, tokens, heads * width]``: rotation, cache, window, softcap, sink.

    Position p sees ``(p - local_window_size, p]``. A cache that keeps to its window holds the newest positions in
    order, as the operator's documentation counts them.
    """
    heads, shared = int(values["num_heads"]), int(values["kv_num_heads"])
    if any(given(inputs, place) is not None for place in (12, 13, 14, 15, 16)) or not values.get("causal", 1):
        raise NotStated("quantised caches, norms inside, padded chunks, no causal mask")
    query, key, value = _projected(inputs, heads, shared)
    rows = [_row(query[b], key[b], value[b], b, inputs, values) for b in range(len(query))]
    return np.stack(rows).swapaxes(1, 2).reshape(len(query), query.shape[2], -1)


def _projected(inputs: Inputs, heads: int, shared: int) -> tuple[Array, Array, Array]:
    """Queries, keys and values ``[batch, heads, tokens, width]``, packed or not."""
    first, second, third = needed(inputs, 0), given(inputs, 1), given(inputs, 2)
    if second is None or third is None:
        width = first.shape[2] // (heads + 2 * shared)
        first, second, third = np.split(first, [heads * width, (heads + shared) * width], axis=2)
    return _by_head(first, heads), _by_head(second, shared), _by_head(third, shared)


def _by_head(value: Array, heads: int) -> Array:
    return value.reshape(*value.shape[:2], heads, -1).swapaxes(1, 2)


def _row(query: Array, key: Array, value: Array, b: int, inputs: Inputs, values: Mapping[str, Any]) -> Array:
    tokens = query.shape[1]
    total = int(np.ravel(needed(inputs, 5))[b]) + 1
    past = total - tokens
    if past < 0:
        raise NotStated("padded prompts")
    new = places(past, total)
    if values.get("do_rotary"):
        told = given(inputs, 9)
        at = new if told is None else told[b]
        cos, sin = needed(inputs, 7)[at], needed(inputs, 8)[at]
        turn = bool(values.get("rotary_interleaved", 0))
        query, key = rotate(query, cos, sin, turn), rotate(key, cos, sin, turn)
    held = _held(inputs, values, past)
    before = needed(inputs, 3)[b, :, :held], needed(inputs, 4)[b, :, :held]
    key, value = (np.concatenate([old, now], axis=1) for old, now in zip(before, (key, value), strict=True))
    kept = np.concatenate([places(past - held, past), new])
    window = int(values.get("local_window_size", -1))
    seen = (kept[None] <= new[:, None]) & ((kept[None] > new[:, None] - window) | (window <= 0))
    bias = np.where(seen, 0.0, -np.inf).astype(query.dtype)[None]
    if (more := given(inputs, 10)) is not None:
        bias = bias + more[b % len(more)][..., kept]
    scale = float(values.get("scale", 0.0)) or query.shape[2] ** -0.5
    sink = given(inputs, 11)
    if sink is None and int(values.get("smooth_softmax", 0)) > 0:
        sink = np.zeros(len(query), query.dtype)
    return attend(query, key, value, bias, scale, float(values.get("softcap", 0.0)), sink)


def _held(inputs: Inputs, values: Mapping[str, Any], past: int) -> int:
    """Rows of the past that the cache holds: all, or ``L(T)`` of a cache that keeps to its window."""
    if not values.get("sliding_window_cache"):
        return past
    room = needed(inputs, 3).shape[2]
    if past <= room:
        return past
    step = room - int(values["local_window_size"]) + 1
    return past - step * -(-(past - room) // step)


def attention(inputs: Inputs, values: Mapping[str, Any]) -> Array:
    """ONNX, opset 23 and 24: ``softmax(softcap(scale * Q K^T) + mask) V``.

    A causal mask begins behind what is in the cache: query i sees key j if ``j <= i + past``, or, with
    ``nonpad_kv_seqlen``, if ``j <= i + nonpad_kv_seqlen - tokens``.
    """
    first, second, third = needed(inputs, 0), needed(inputs, 1), needed(inputs, 2)
    flat = first.ndim == 3
    if flat:
        first = _by_head(first, int(values["q_num_heads"]))
        second, third = (_by_head(each, int(values["kv_num_heads"])) for each in (second, third))
    before = given(inputs, 4), given(inputs, 5)
    past = 0 if before[0] is None else before[0].shape[2]
    if before[0] is not None and before[1] is not None:
        second, third = np.concatenate([before[0], second], axis=2), np.concatenate([before[1], third], axis=2)
    scale = float(values.get("scale", 0.0)) or first.shape[3] ** -0.5
    told = given(inputs, 6)
    rows: list[Array] = []
    for b in range(len(first)):
        tokens, keys = first.shape[2], second.shape[2]
        real = keys if told is None else int(np.ravel(told)[b])
        offset = past if told is None else real - tokens
        bias = _bias(given(inputs, 3), b, keys, first.dtype)
        seen = places(0, keys)[None] < real
        if values.get("is_causal"):
            seen = seen & (places(0, keys)[None] <= places(0, tokens)[:, None] + offset)
        bias = bias + np.where(seen, 0.0, -np.inf).astype(first.dtype)
        rows.append(attend(first[b], second[b], third[b], bias, scale, float(values.get("softcap", 0.0))))
    out = np.stack(rows)
    return out.swapaxes(1, 2).reshape(len(out), out.shape[2], -1) if flat else out


def _bias(mask: Array | None, row: int, keys: int, kind: np.dtype[Any]) -> Array:
    """A mask as what is added to the scores ``[heads or 1, tokens, keys]``; keys that it leaves out are not seen."""
    if mask is None:
        return np.zeros((1, 1, keys), kind)
    whole = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    own = whole[row % len(whole)]
    added = np.where(own, 0.0, -np.inf) if own.dtype == np.bool_ else own
    return np.pad(added.astype(kind), ((0, 0), (0, 0), (0, keys - own.shape[-1])), constant_values=-np.inf)


def multi_head_attention(inputs: Inputs, values: Mapping[str, Any]) -> Array:
    """ONNX Runtime: inputs query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value."""
    heads = int(values["num_heads"])
    first, second, third = needed(inputs, 0), needed(inputs, 1), needed(inputs, 2)
    if given(inputs, 3) is not None or first.ndim != 3 or second.ndim != 3:
        raise NotStated("packed or biased projections")
    query, key, value = (_by_head(each, heads) for each in (first, second, third))
    before = given(inputs, 6), given(inputs, 7)
    past = 0
    if before[0] is not None and before[1] is not None:
        past = before[0].shape[2]
        key, value = np.concatenate([before[0], key], axis=2), np.concatenate([before[1], value], axis=2)
    tokens, keys = query.shape[2], key.shape[2]
    scale = float(values.get("scale", 0.0)) or query.shape[3] ** -0.5
    hidden = float(values.get("mask_filter_value", -10000.0))
    rows: list[Array] = []
    for b in range(len(query)):
        bias = _bias(given(inputs, 5), b, keys, query.dtype)
        if (padding := given(inputs, 4)) is not None:
            bias = bias + np.where(padding[b], 0.0, hidden).astype(query.dtype)[None, None]
        if values.get("unidirectional"):
            seen = places(0, keys)[None] <= places(0, tokens)[:, None] + past
            bias = bias + np.where(seen, 0.0, hidden).astype(query.dtype)
        rows.append(attend(query[b], key[b], value[b], bias, scale, 0.0))
    return np.stack(rows).swapaxes(1, 2).reshape(len(query), tokens, -1)
