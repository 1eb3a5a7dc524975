"""How a graph lays out a value that the reference has as ``[tokens, features]``."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Layout:
    """The shape of a value.

    Attributes:
        shape: with -1 where the tokens lie, or the tokens and the heads together.
        heads: number of heads, if they lie before the tokens; None if everything of a token lies together.
    """

    shape: tuple[int, ...]
    heads: int | None = None

    def written(self, rows: Array) -> Array:
        """``[tokens, features]`` as the graph has it."""
        if self.heads is None:
            return np.ascontiguousarray(rows.reshape(self.shape))
        return np.ascontiguousarray(rows.reshape(len(rows), self.heads, -1).swapaxes(0, 1).reshape(self.shape))

    def read(self, value: Array, tokens: int) -> Array:
        """A value of the graph as ``[tokens, features]``."""
        if self.heads is None:
            return value.reshape(tokens, -1)
        return value.reshape(self.heads, tokens, -1).swapaxes(0, 1).reshape(tokens, -1)


def layouts(shape: tuple[int, ...], tokens: int, features: int) -> Iterator[Layout]:
    """Layouts in which ``[tokens, features]`` has this shape, the likelier first; none if it cannot.

    ``[1, tokens, features]``, ``[tokens, features]``, ``[1, tokens, heads, width]``, ``[1, tokens * heads, width]``,
    ``[1, heads, tokens, width]``.
    """
    if int(np.prod(shape)) != tokens * features:
        return
    axis = next((i for i, size in enumerate(shape) if size != 1), len(shape) - 1)
    if shape[axis] % tokens == 0:
        yield Layout((*shape[:axis], -1, *shape[axis + 1 :]))
    if len(shape) in (3, 4) and shape[-2] == tokens:
        yield Layout((*shape[:-2], -1, shape[-1]), shape[-3])
