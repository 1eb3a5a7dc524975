"""Inputs of a node that may be left out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class NotStated(Exception):  # noqa: N818 - it reads as what it says: "raise NotStated(...)"
    """The documentation of this use of an operator is not said here."""


def given(inputs: Sequence[NDArray[Any] | None], place: int) -> NDArray[Any] | None:
    """The input at ``place``, or None."""
    return inputs[place] if place < len(inputs) else None


def needed(inputs: Sequence[NDArray[Any] | None], place: int) -> NDArray[Any]:
    """The input at ``place``.

    Raises:
        NotStated: it is left out.
    """
    found = given(inputs, place)
    if found is None:
        raise NotStated(f"input {place} is left out")
    return found


def places(first: int, stop: int) -> NDArray[np.int64]:
    """Positions ``[first, stop)``."""
    return np.arange(first, stop, dtype=np.int64)
