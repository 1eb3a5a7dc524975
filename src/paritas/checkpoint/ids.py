"""A tensor of token ids, read as weights are: integers are no weights, and count as such only where ids are meant."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.base import Tensor
from paritas.checkpoint.safetensors import SafetensorsTensor
from paritas.errors import ParitasError

_EXACT = 1 << 24  # integers up to this are exact in fp32


@dataclass
class TokenIds(Tensor):
    """The same ids in fp32, in which they are exact."""

    stored: SafetensorsTensor
    name: str = field(init=False)
    shape: tuple[int, ...] = field(init=False)
    dtype: str = field(init=False)
    place: str = field(init=False)

    def __post_init__(self) -> None:
        self.name, self.shape = self.stored.name, self.stored.shape
        self.dtype, self.place = self.stored.dtype, self.stored.place

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows ``[start, stop)``.

        Raises:
            Unsupported, ParitasError: ``tensor-dtype-unsupported``: they are no integers, or none that a token has.
        """
        ids = self.stored.codes(start, stop)
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) <= _EXACT:
            raise ParitasError(
                "tensor-dtype-unsupported",
                f"{self.name} holds integers that are no token ids",
                place=self.place,
                hint="The file is broken: fetch it again.",
            )
        return ids.astype(np.float32)
