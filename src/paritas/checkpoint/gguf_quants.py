"""How GGUF stores numbers: the type of a tensor by its number, and blocks widened to fp32.

This is the only file that touches the ``gguf`` library, which is untyped in part. What it computes is the
library's ``dequantize``, by the authors of the formats; only the shape in which it gets blocks is chosen here.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from paritas.errors import Unsupported

_RUN = 8192  # elements per row given to the library: it loops in Python over groups of 16 rows


@dataclass(frozen=True)
class StoredType:
    """A GGUF tensor type: its name, and the size of one block."""

    name: str
    block_elements: int
    block_bytes: int


def stored_type(number: int, tensor: str, place: Path) -> StoredType:
    """The type with this number.

    Raises:
        Unsupported: ``gguf-type``, naming the tensor, if the type is unknown or cannot be widened to fp32.
    """
    names = {int(kind.value): kind.name for kind in GGMLQuantizationType}
    name = names.get(number, f"number {number}")
    found = _readable(name) if number in names else None
    if found is None:
        raise Unsupported(
            "gguf-type",
            f"tensor {tensor!r} is stored as type {name}, which cannot be dequantised",
            place=str(place),
            hint="Use a file with F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K or Q6_K tensors.",
        )
    return found


@cache
def _readable(name: str) -> StoredType | None:
    kind = GGMLQuantizationType[name]
    elements, size = GGML_QUANT_SIZES[kind]
    try:
        dequantize(np.zeros((1, size), dtype=np.uint8), kind)
    except NotImplementedError:
        return None
    return StoredType(name, int(elements), int(size))


def widen(raw: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
    """Every number in these blocks, in order, in fp32, as the library computes it.

    The blocks of all rows are one run of bytes, so they are regrouped into long rows; this is five times as
    fast as the library on rows as stored.
    """
    kind = GGMLQuantizationType[name]
    elements, size = GGML_QUANT_SIZES[kind]
    flat = np.ascontiguousarray(raw).reshape(-1)
    run = max(1, _RUN // elements)
    whole = flat.size // (run * size) * (run * size)
    out = np.empty(flat.size // size * elements, dtype=np.float32)
    middle = whole // size * elements
    with np.errstate(invalid="ignore", over="ignore"):  # who streams the weights looks for NaN and Inf
        if whole:
            out[:middle] = dequantize(flat[:whole].reshape(-1, run * size), kind).reshape(-1)
        if whole < flat.size:
            out[middle:] = dequantize(flat[whole:].reshape(1, -1), kind).reshape(-1)
    return out
