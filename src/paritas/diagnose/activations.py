"""Activations by name, as torch functions: to tell which one a line of numbers is, and to put one in."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Line = NDArray[np.float32]
_CLOSE = 1e-4


def library() -> Mapping[str, Callable[[Any], Any]]:
    """Word -> torch function; ``gelu`` is the one by the error function."""
    torch = importlib.import_module("torch")
    nn = torch.nn.functional
    return {
        "gelu": nn.gelu,
        "gelu_tanh": lambda x: nn.gelu(x, approximate="tanh"),
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "silu": nn.silu,
        "relu": nn.relu,
        "relu2": lambda x: nn.relu(x) ** 2,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "elu": nn.elu,
        "mish": nn.mish,
        "none": lambda x: x,
    }


def applied(function: Callable[[Any], Any], line: Line) -> Line:
    """A torch function of numbers."""
    torch = importlib.import_module("torch")
    with torch.inference_mode():
        return function(torch.from_numpy(line.copy())).numpy()


def word_of(line: Line, values: Line) -> str | None:
    """The activation that makes ``values`` of ``line``; None if none that is known does."""
    apart = {word: float(np.abs(applied(function, line) - values).max()) for word, function in library().items()}
    word = min(apart, key=lambda each: apart[each])
    return word if apart[word] <= _CLOSE else None
