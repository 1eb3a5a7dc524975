"""RotaryEmbedding of ONNX and of ONNX Runtime: the same rotation, inputs in another order."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.semantics.stating import NotStated, given, needed, places

Array = NDArray[Any]
Inputs = Sequence[Array | None]


def rotary_embedding(inputs: Inputs, values: Mapping[str, Any]) -> Array:
    """ONNX: ``X, cos_cache, sin_cache, position_ids``; without positions the caches are ``[batch, tokens, pairs]``."""
    return _rotated(needed(inputs, 0), needed(inputs, 1), needed(inputs, 2), given(inputs, 3), values)


def contrib_rotary_embedding(inputs: Inputs, values: Mapping[str, Any]) -> Array:
    """ONNX Runtime: ``input, position_ids, cos_cache, sin_cache``; a single position is the first token's."""
    if values.get("is_packed_batching") or values.get("scale", 1.0) != 1.0:
        raise NotStated("packed batches and scales")
    positions = needed(inputs, 1)
    x = needed(inputs, 0)
    if positions.size == 1:
        tokens = x.shape[2] if x.ndim == 4 else x.shape[1]
        first = int(positions.reshape(-1)[0])
        positions = np.tile(places(first, first + tokens), (len(x), 1))
    return _rotated(x, needed(inputs, 2), needed(inputs, 3), positions, values)


def rotate(heads: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """``[..., tokens, width]``: the first ``2 * pairs`` of the width turn; ``cos``, ``sin`` are ``[tokens, pairs]``."""
    pairs = cos.shape[-1]
    turned, rest = heads[..., : 2 * pairs], heads[..., 2 * pairs :]
    if interleaved:
        one, other = turned[..., 0::2], turned[..., 1::2]
    else:
        one, other = turned[..., :pairs], turned[..., pairs:]
    first, second = one * cos - other * sin, one * sin + other * cos
    if interleaved:
        both = np.stack([first, second], axis=-1).reshape(turned.shape)
    else:
        both = np.concatenate([first, second], axis=-1)
    return np.concatenate([both, rest], axis=-1)


def _rotated(x: Array, cos: Array, sin: Array, positions: Array | None, values: Mapping[str, Any]) -> Array:
    heads = x
    if x.ndim == 3:
        count = int(values.get("num_heads", 0)) or x.shape[2] // (2 * cos.shape[-1])
        heads = x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)
    if dims := int(values.get("rotary_embedding_dim", 0)):
        cos, sin = cos[..., : dims // 2], sin[..., : dims // 2]
    at = (cos, sin) if positions is None else (cos[positions], sin[positions])  # [batch, tokens, pairs]
    turned = rotate(heads, at[0][:, None], at[1][:, None], bool(values.get("interleaved", 0)))
    return turned if x.ndim == 4 else turned.swapaxes(1, 2).reshape(x.shape)
