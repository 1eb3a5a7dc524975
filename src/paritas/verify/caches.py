"""What the reference keeps after a prefill: keys and values, layer by layer, each with its own floor.

A tensor ``[kv_heads, tokens, head_dim]`` is compared as rows ``[tokens, kv_heads * head_dim]``: a position's greatest
difference, in floors of that tensor. The variants are those of the logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.verify.floor import Noise, floors

Tensors = Sequence[NDArray[np.floating[Any]]]


@dataclass(frozen=True)
class Kept:
    """One half of one layer's cache.

    Attributes:
        name: ``layer 3 keys``.
        values: ``[kv_heads, tokens, head_dim]``.
        floors: ``[tokens]``.
    """

    name: str
    values: NDArray[np.float32]
    floors: NDArray[np.float64]


@dataclass
class KeptNoise:
    """Gathers what the variants show of every tensor.

    Attributes:
        tensors: the reference's own, keys and values in turn.
    """

    tensors: Tensors
    _noise: list[Noise] = field(init=False)

    def __post_init__(self) -> None:
        self._noise = [Noise.of(rows(tensor)) for tensor in self.tensors]

    def add(self, variant: str, tensors: Tensors) -> None:
        """What ``variant`` keeps.

        Raises:
            Invalid: ``variant-not-finite``.
        """
        for noise, want, got in zip(self._noise, self.tensors, tensors, strict=True):
            noise.add(variant, rows(want), rows(got))

    def drop(self, variant: str) -> None:
        """Forget a variant that was refused half way."""
        for noise in self._noise:
            noise.variants.pop(variant, None)

    def finish(self) -> tuple[Kept, ...]:
        """Every tensor with its floor."""
        names = [f"layer {index // 2} {('keys', 'values')[index % 2]}" for index in range(len(self.tensors))]
        return tuple(
            Kept(name, np.asarray(tensor, np.float32), floors({name: noise})[name])
            for name, tensor, noise in zip(names, self.tensors, self._noise, strict=True)
        )


def rows(tensor: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """``[kv_heads, tokens, head_dim]`` -> ``[tokens, kv_heads * head_dim]``."""
    return np.ascontiguousarray(tensor.swapaxes(0, 1)).reshape(tensor.shape[1], -1)
