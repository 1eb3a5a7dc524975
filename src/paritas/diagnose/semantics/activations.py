"""Activations that runtimes have as one operator."""

from collections.abc import Mapping, Sequence
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.semantics.stating import given, needed

Array = NDArray[Any]
Inputs = Sequence[Array | None]


def gelu(inputs: Inputs, values: Mapping[str, Any]) -> Array:
    """``approximate``: ``none`` by the error function, ``tanh`` by its approximation."""
    return _tanh(needed(inputs, 0)) if values.get("approximate") == "tanh" else _erf(needed(inputs, 0))


def fast_gelu(inputs: Inputs, _: Mapping[str, Any]) -> Array:
    """GELU by tanh of ``X + bias``."""
    bias = given(inputs, 1)
    return _tanh(needed(inputs, 0) if bias is None else needed(inputs, 0) + bias)


def bias_gelu(inputs: Inputs, _: Mapping[str, Any]) -> Array:
    """GELU by the error function of ``A + B``."""
    return _erf(needed(inputs, 0) + needed(inputs, 1))


def quick_gelu(inputs: Inputs, values: Mapping[str, Any]) -> Array:
    """``X * sigmoid(alpha * X)``."""
    x = needed(inputs, 0)
    return x / (1 + np.exp(-x.dtype.type(values.get("alpha", 1.702)) * x))


def _tanh(x: Array) -> Array:
    root = x.dtype.type(np.sqrt(2 / np.pi))
    return x.dtype.type(0.5) * x * (1 + np.tanh(root * (x + x.dtype.type(0.044715) * x**3)))


def _erf(x: Array) -> Array:
    one = x.dtype.type
    of = np.array([erf(value) for value in (x / one(np.sqrt(2))).ravel()], x.dtype).reshape(x.shape)
    return one(0.5) * x * (1 + of)
