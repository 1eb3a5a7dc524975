"""Norms: ``SimplifiedLayerNormalization``, ``RMSNormalization``, ``LayerNormalization``, and those that add before."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.semantics.stating import given, needed

Array = NDArray[Any]
Inputs = Sequence[Array | None]
_CONTRIB_EPSILON = 1e-12
_EPSILON = 1e-5


def rms_normalization(inputs: Inputs, values: Mapping[str, Any]) -> Array:
    """``X / sqrt(mean(X^2) + epsilon) * scale`` over the axes from ``axis`` on."""
    return _rms(needed(inputs, 0), needed(inputs, 1), values.get("epsilon", _EPSILON), values.get("axis", -1))


def layer_normalization(inputs: Inputs, values: Mapping[str, Any]) -> Array:
    """``(X - mean(X)) / sqrt(var(X) + epsilon) * scale + bias`` over the axes from ``axis`` on."""
    epsilon, axis = values.get("epsilon", _EPSILON), values.get("axis", -1)
    return _layer(needed(inputs, 0), needed(inputs, 1), given(inputs, 2), epsilon, axis)


def skip_rms_normalization(inputs: Inputs, values: Mapping[str, Any]) -> Array:
    """The same of ``input + skip + bias``."""
    total = needed(inputs, 0) + needed(inputs, 1) + _or_zero(given(inputs, 3))
    return _rms(total, needed(inputs, 2), values.get("epsilon", _CONTRIB_EPSILON), -1)


def skip_layer_normalization(inputs: Inputs, values: Mapping[str, Any]) -> Array:
    """``LayerNormalization`` of ``input + skip + bias``."""
    total = needed(inputs, 0) + needed(inputs, 1) + _or_zero(given(inputs, 4))
    epsilon = values.get("epsilon", _CONTRIB_EPSILON)
    return _layer(total, needed(inputs, 2), given(inputs, 3), epsilon, -1)


def _rms(x: Array, scale: Array, epsilon: float, axis: int) -> Array:
    axes = _axes(x, axis)
    return x / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + x.dtype.type(epsilon)) * scale


def _layer(x: Array, scale: Array, bias: Array | None, epsilon: float, axis: int) -> Array:
    axes = _axes(x, axis)
    centred = x - np.mean(x, axis=axes, keepdims=True)
    spread = np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + x.dtype.type(epsilon))
    return centred / spread * scale + _or_zero(bias)


def _axes(x: Array, axis: int) -> tuple[int, ...]:
    return tuple(range(axis % x.ndim, x.ndim))


def _or_zero(bias: Array | None) -> Array | float:
    return 0.0 if bias is None else bias
