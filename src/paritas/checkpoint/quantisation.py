"""What every format of quantised weights shares: its configuration, read key by key, and its groups of tensors."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.base import Tensor
from paritas.checkpoint.safetensors import SafetensorsTensor
from paritas.errors import ParitasError, Unsupported


class Quantisation:
    """A ``quantization_config``, with a memory of what was asked for, and the checkpoint's tensors.

    Args:
        values: as stored.
        place: for messages.
        tensors: of the checkpoint, by name.
    """

    def __init__(self, values: Mapping[str, Any], place: str, tensors: Mapping[str, Tensor]) -> None:
        self.values, self.place, self.tensors = values, place, tensors
        self._known = {"quant_method"}

    def optional(self, *keys: str) -> Any:
        """The value of the first key that is there and not null."""
        self._known |= set(keys)
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)

    def integer(self, key: str, default: int, allowed: Sequence[int] | None = None) -> int:
        """An integer that has to be positive, or one of ``allowed``."""
        value = self.optional(key)
        value = default if value is None else value
        if type(value) is not int or not (value > 0 if allowed is None else value in allowed):
            raise self.unsupported(f"{key} is {value!r}", allowed)
        return value

    def must_be(self, keys: Sequence[str], *allowed: Any) -> Any:
        """One of ``allowed`` under any of ``keys``; words in any case."""
        value = self.optional(*keys)
        value = value.lower() if isinstance(value, str) else value
        if value not in allowed:
            raise self.unsupported(f"{keys[0]} is {value!r}", [each for each in allowed if each is not None])
        return value

    def ignore(self, *keys: str) -> None:
        """Keys without effect on what the stored numbers stand for."""
        self._known |= set(keys)

    def account(self) -> None:
        """Nothing that is set is left unread.

        Raises:
            ParitasError: ``quantisation-key-unread``.
        """
        left = sorted(
            key for key, value in self.values.items() if key not in self._known and value not in (None, False)
        )
        if left:
            raise ParitasError(
                "quantisation-key-unread",
                f"nothing reads {', '.join(f'{key} ({self.values[key]!r})' for key in left)}",
                place=self.place,
                hint="What is not understood may change the weights. Export the checkpoint that it was made from.",
            )

    def unsupported(self, fact: str, allowed: Sequence[Any] | None = None) -> Unsupported:
        """The refusal of a variant that is not read."""
        read = f"; read: {', '.join(map(str, allowed))}" if allowed else ""
        return Unsupported(
            "quantisation-unsupported",
            f"{self.values.get('quant_method')}: {fact}{read}",
            place=self.place,
            hint="Export the checkpoint that it was made from, or dequantise with the library that wrote it.",
        )

    def groups(self, *endings: str) -> Iterator[tuple[str, dict[str, SafetensorsTensor]]]:
        """Module -> its tensors by ending, of every module that has a tensor of the first ending.

        Raises:
            ParitasError: ``quantisation-tensor``: none has, or a module lacks another one.
        """
        first = endings[0]
        modules = [name.removesuffix(first) for name in self.tensors if name.endswith(first)]
        if not modules:
            raise self.wrong(f"no tensor's name ends in {first}")
        for module in modules:
            found = {ending: self.tensors.get(module + ending) for ending in endings}
            if missing := [ending for ending, tensor in found.items() if tensor is None]:
                raise self.wrong(f"{module}{first} has no {module}{missing[0]} beside it")
            yield module, {ending: stored(tensor) for ending, tensor in found.items() if tensor is not None}

    def replaced(self, made: Mapping[str, Tensor], consumed: Sequence[str]) -> dict[str, Tensor]:
        """The checkpoint's tensors with ``made`` in the place of the ``consumed`` ones."""
        gone = set(consumed) - set(made)
        kept = {name: tensor for name, tensor in self.tensors.items() if name not in gone}
        return {**kept, **made}

    def wrong(self, fact: str) -> ParitasError:
        """The refusal of tensors that are not what the configuration says."""
        hint = "The configuration says something else than the tensors: fetch both again."
        return ParitasError("quantisation-tensor", fact, place=self.place, hint=hint)

    def check(self, tensor: Tensor, shape: tuple[int, ...]) -> None:
        """A tensor has the shape that the others of its module ask for."""
        if tensor.shape != shape:
            raise self.wrong(f"{tensor.name} is {list(tensor.shape)}, and should be {list(shape)}")


def stored(tensor: Tensor) -> SafetensorsTensor:
    """A tensor as it lies in a file."""
    if not isinstance(tensor, SafetensorsTensor):
        raise TypeError(f"{tensor.name} lies in no safetensors file")
    return tensor


class Whole(Tensor):
    """A tensor whose rows cannot be had one by one: all of it is dequantised, and the last one is kept in memory."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str, place: str) -> None:
        self.name, self.shape, self.dtype, self.place = name, shape, dtype, place

    @abstractmethod
    def dequantise(self) -> NDArray[np.float32]:
        """All of it."""

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows ``[start, stop)``."""
        return np.empty((0, *self.shape[1:]), np.float32) if start == stop else _last(self)[start:stop]


@lru_cache(maxsize=1)
def _last(tensor: Whole) -> NDArray[np.float32]:
    return tensor.dequantise()


def unpacked(codes: NDArray[np.int32], bits: int, axis: int) -> NDArray[np.uint8]:
    """Integers of ``bits`` bits, packed into int32 along ``axis``, lowest bits first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    shape = [1] * (codes.ndim + 1)
    shape[axis + 1] = len(shifts)
    parts = np.expand_dims(codes.view(np.uint32), axis + 1) >> shifts.reshape(shape)
    size = list(codes.shape)
    size[axis] *= len(shifts)
    return (parts & ((1 << bits) - 1)).astype(np.uint8).reshape(size)
