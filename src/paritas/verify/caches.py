"""What the reference keeps after a prefill: keys and values, layer by layer, each with its own floor.

A tensor ``[kv_heads, tokens, head_dim]`` is compared as rows ``[tokens, kv_heads * head_dim]``: a position's greatest
difference, in floors of that tensor. The variants are those of the logits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.verify.floor import Noise, floors

Tensors = Mapping[str, NDArray[np.floating[Any]]]


@dataclass(frozen=True)
class Kept:
    """One half of one layer's cache.

    Attributes:
        name: ``layer 3 keys``.
        values: ``[kv_heads, tokens, head_dim]``; of a convolution ``[1, tokens, channels]``.
        floors: ``[tokens]``.
    """

    name: str
    values: NDArray[np.float32]
    floors: NDArray[np.float64]


@dataclass
class KeptNoise:
    """Gathers what the variants show of every tensor.

    Attributes:
        tensors: the reference's own, by name.
    """

    tensors: Tensors
    _noise: dict[str, Noise] = field(init=False)

    def __post_init__(self) -> None:
        self._noise = {name: Noise.of(rows(tensor)) for name, tensor in self.tensors.items()}

    def add(self, variant: str, tensors: Tensors) -> None:
        """What ``variant`` keeps.

        Raises:
            Invalid: ``variant-not-finite``.
        """
        for name, noise in self._noise.items():
            noise.add(variant, rows(self.tensors[name]), rows(tensors[name]))

    def cut(self, variant: str, first: int, length: int) -> None:
        """What ``variant`` keeps of tokens before ``first``, of ``length``, does not count."""
        for noise in self._noise.values():
            noise.cut(variant, max(0, first - length + len(noise.spacing)))

    def drop(self, variant: str) -> None:
        """Forget a variant that was refused half way."""
        for noise in self._noise.values():
            noise.variants.pop(variant, None)

    def finish(self) -> tuple[Kept, ...]:
        """Every tensor with its floor."""
        return tuple(
            Kept(name, np.asarray(self.tensors[name], np.float32), floors({name: noise})[name])
            for name, noise in self._noise.items()
        )


def rows(tensor: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """``[kv_heads, tokens, head_dim]`` -> ``[tokens, kv_heads * head_dim]``."""
    return np.ascontiguousarray(tensor.swapaxes(0, 1)).reshape(tensor.shape[1], -1)
