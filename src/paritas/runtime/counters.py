"""Small inputs that tell a graph where it is in the sequence.

What one of them means is found at the operator that takes it, whatever it is called; only where no such operator
takes it does a name decide, and then one that the exporters of PyTorch and transformers.js use.
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.runtime.tensors import INTEGERS, Port, refused
from paritas.runtime.wiring import Wiring


class Meaning(Enum):
    """What the number says."""

    PAST = "tokens in the cache"
    TOTAL = "tokens in the cache after this call"
    LAST = "the same less one"
    PLACES = "the place of each new token"
    ALL_LOGITS = "logits wanted: 0 for all"
    HAS_PAST = "whether there is anything in the cache"


BY_OPERATOR = {
    ("TensorScatter", 2): Meaning.PAST,
    ("Attention", 6): Meaning.TOTAL,
    ("com.microsoft.GroupQueryAttention", 5): Meaning.LAST,
    ("com.microsoft.GroupQueryAttention", 6): Meaning.TOTAL,
    ("com.microsoft.MultiHeadAttention", 8): Meaning.PAST,
    ("com.microsoft.DecoderMaskedMultiHeadAttention", 7): Meaning.PAST,
    ("com.microsoft.RotaryEmbedding", 1): Meaning.PAST,  # of one number: the place of the first new token
}
BY_NAME = {"cache_position": Meaning.PLACES, "logits_to_keep": Meaning.ALL_LOGITS}
BRANCH = "use_cache_branch"


@dataclass(frozen=True)
class Counter:
    """One such input.

    Attributes:
        name: of the input.
        meaning: what to feed.
        dims: as declared: nothing for a scalar, one for each row, or a single number.
        dtype: int64, int32 or bool.
    """

    name: str
    meaning: Meaning
    dims: tuple[int | None, ...]
    dtype: np.dtype[Any]

    def value(self, batch: int, past: int, new: int) -> NDArray[Any]:
        """What to feed when ``new`` tokens follow ``past`` in each of ``batch`` rows."""
        if self.meaning is Meaning.PLACES:
            return np.arange(past, past + new).astype(self.dtype)
        number = {
            Meaning.PAST: past,
            Meaning.TOTAL: past + new,
            Meaning.LAST: past + new - 1,
            Meaning.ALL_LOGITS: 0,
            Meaning.HAS_PAST: past > 0,
        }[self.meaning]
        return np.full([batch if dim is None else dim for dim in self.dims], number, self.dtype)


def is_counter(port: Port) -> bool:
    """Whether it has the form of one: integers of rank 0 or 1, or the flag of a merged decoder."""
    return (port.element in INTEGERS and len(port.dims) < 2) or _is_branch(port)


def read_counter(wiring: Wiring, port: Port, model: Path) -> Counter:
    """What an input means for which :func:`is_counter` holds.

    Raises:
        Invalid: ``graph-input-unknown`` if nothing tells, or two operators disagree.
    """
    found = {BY_OPERATOR.get((reader.operator, reader.index)) for reader in wiring.readers(port.name)} - {None}
    found |= {meaning for name, meaning in BY_NAME.items() if name in port.name}
    if _is_branch(port):
        found = {Meaning.HAS_PAST}
    if len(found) != 1:
        told = " and ".join(sorted(m.value for m in found if m)) or "nothing in the graph tells what it counts"
        raise refused("graph-input-unknown", f"input {port.name!r} ({port}): {told}", model)
    (meaning,) = (m for m in found if m)
    return Counter(port.name, meaning, port.dims, port.dtype)


def _is_branch(port: Port) -> bool:
    return port.element == onnx.TensorProto.BOOL and len(port.dims) < 2 and BRANCH in port.name
