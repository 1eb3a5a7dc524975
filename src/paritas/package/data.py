"""Streams the weights into the external data file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.errors import ParitasError
from paritas.package.stream import stream
from paritas.weights import View, Weight, check_finite

ALIGNMENT = 4096  # a page: runtimes map each tensor by itself
_KEPT = 16 << 20  # bytes: no block of rows is larger, and whole matrices that are give their memory back


@dataclass(frozen=True)
class Placed:
    """Where a weight lies in the data file, in bytes."""

    offset: int
    length: int


def write_data(
    path: Path, weights: Mapping[str, Weight], advance: Callable[[int], None]
) -> tuple[dict[str, Placed], str]:
    """Write every weight as it is stored, little-endian, one block in memory at a time.

    Args:
        path: the file to write.
        weights: by initializer name, in the order to write.
        advance: told the number of bytes after each block.

    Returns:
        Where each weight lies, and the SHA-256 of the file.

    Raises:
        ParitasError: ``weight-not-finite``, ``weight-beyond-dtype``, with the checkpoint tensor.
    """
    placed: dict[str, Placed] = {}
    _keep_memory()
    with stream(path) as file:
        for name, weight in weights.items():
            if isinstance(weight, View):
                placed[name] = placed[weight.of]
                continue
            file.write(memoryview(bytes(-file.position % ALIGNMENT)))
            start = file.position
            for block in weight.blocks():
                data = _stored(block, name, weight)
                file.write(data)
                advance(data.nbytes)
            placed[name] = Placed(start, file.position - start)
        return placed, file.finish()


def _keep_memory() -> None:
    """Let the C library keep the memory of blocks that are done with: from the system it comes anew and zeroed.

    glibc maps what is larger than the largest block that it has ever unmapped: one that nobody touches is enough.
    """
    np.empty(_KEPT, np.uint8)


def _stored(block: NDArray[Any], name: str, weight: Weight) -> memoryview:
    """The block's bytes in the file: rounded once, little-endian."""
    if block.dtype == np.float32:
        check_finite(block, name, weight.sources)
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(block, dtype=weight.dtype.newbyteorder("<"))
    if cast.dtype != block.dtype and not np.isfinite(cast.astype(np.float32)).all():
        largest = float(np.abs(block).max())
        raise ParitasError(
            "weight-beyond-dtype",
            f"{', '.join(weight.sources) or name} has a value of {largest:,.0f}, which {weight.storage} cannot hold",
            place=name,
            hint="Export it as bf16, which has the range of fp32, or as int8 or fp32.",
        )
    return cast.view(np.uint8).data
