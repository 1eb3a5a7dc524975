"""Tensors of a checkpoint with what an adapter adds to them, read by rows: fp32, as PEFT merges them."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.base import Tensor

_ROWS = 1024  # of two tensors that are compared at a time


class Merged(Tensor):
    """A tensor of the base, changed by an adapter; named, shaped and placed as the base's.

    Attributes:
        fits: whether the adapter's shapes are those of the base's tensor.
    """

    def __init__(self, base: Tensor, *, fits: bool) -> None:
        self.name, self.shape, self.dtype, self.place = base.name, base.shape, base.dtype, base.place
        self.base, self.fits = base, fits

    @abstractmethod
    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows of the merged tensor."""

    def has_effect(self) -> bool:
        """Whether a number of the checkpoint changes."""
        starts = range(0, self.shape[0], _ROWS)
        blocks = ((start, min(start + _ROWS, self.shape[0])) for start in starts)
        differs = any(not np.array_equal(self.rows(*block), self.base.rows(*block)) for block in blocks)
        return differs or (isinstance(self.base, Merged) and self.base.has_effect())


class Saved(Merged):
    """A tensor that was trained whole (``modules_to_save``, a bias), in the place of the base's."""

    def __init__(self, base: Tensor, saved: Tensor) -> None:
        super().__init__(base, fits=saved.shape == base.shape)
        self._saved = saved

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows of the trained tensor."""
        return self._saved.rows(start, stop)


class Lora(Merged):
    """W + scale * B A: W is [outputs, inputs], A [rank, inputs], B [outputs, rank]."""

    def __init__(self, base: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
        rank = a.shape[0]
        super().__init__(base, fits=len(base.shape) == 2 and (b.shape, a.shape) == _pair(base.shape, rank))
        self._a, self._b, self._scale = a, b, np.float32(scale)

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows of the sum: the product first, then its scale, then the sum, in fp32."""
        product: NDArray[np.float32] = self._b.rows(start, stop) @ self._a.read()
        product *= self._scale
        return self.base.rows(start, stop) + product


class LoraEmbedding(Merged):
    """W + scale * (B A)^T of an embedding: W is [tokens, hidden], A [rank, tokens], B [hidden, rank]."""

    def __init__(self, base: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
        rank = a.shape[0]
        super().__init__(base, fits=len(base.shape) == 2 and (b.shape, a.shape) == _pair(base.shape[::-1], rank))
        self._a, self._b, self._scale = a, b, np.float32(scale)

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows of the sum."""
        product: NDArray[np.float32] = self._a.read()[:, start:stop].T @ self._b.read().T
        product *= self._scale
        return self.base.rows(start, stop) + product


class Dora(Merged):
    """Rows of W + scale * B A, each of the length that ``magnitude`` [outputs] gives it."""

    def __init__(self, lora: Lora, magnitude: Tensor) -> None:
        super().__init__(lora.base, fits=lora.fits and magnitude.shape == lora.shape[:1])
        self._lora, self._magnitude = lora, magnitude

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows of the sum, each divided by its own length and multiplied by the trained one."""
        rows = self._lora.rows(start, stop)
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1).astype(np.float32)
        return (self._magnitude.rows(start, stop) / lengths)[:, np.newaxis] * rows


def _pair(shape: tuple[int, ...], rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The shapes of B and A whose product is [outputs, inputs]."""
    outputs, inputs = shape
    return (outputs, rank), (rank, inputs)
