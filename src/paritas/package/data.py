"""Streams the weights into the external data file."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paritas.errors import ParitasError
from paritas.weights import Weight

ALIGNMENT = 4096  # a page: runtimes map each tensor by itself


@dataclass(frozen=True)
class Placed:
    """Where a weight lies in the data file, in bytes."""

    offset: int
    length: int


def write_data(
    path: Path, weights: Mapping[str, Weight], advance: Callable[[int], None]
) -> tuple[dict[str, Placed], str]:
    """Write every weight as little-endian fp32, one block in memory at a time.

    Args:
        path: the file to write.
        weights: by initializer name, in the order to write.
        advance: told the number of bytes after each block.

    Returns:
        Where each weight lies, and the SHA-256 of the file.

    Raises:
        ParitasError: ``weight-not-finite``, with the checkpoint tensor.
    """
    placed: dict[str, Placed] = {}
    digest = hashlib.sha256()
    position = 0
    with path.open("wb") as file:
        for name, weight in weights.items():
            padding = bytes(-position % ALIGNMENT)
            file.write(padding)
            digest.update(padding)
            position += len(padding)
            start = position
            for block in weight.blocks():
                _check_finite(block, name, weight)
                data = np.ascontiguousarray(block, dtype="<f4").data
                file.write(data)
                digest.update(data)
                position += data.nbytes
                advance(data.nbytes)
            placed[name] = Placed(start, position - start)
    return placed, digest.hexdigest()


def _check_finite(block: np.ndarray[tuple[int, ...], np.dtype[np.float32]], name: str, weight: Weight) -> None:
    finite = np.isfinite(block)
    if not finite.all():
        bad = block.size - int(np.count_nonzero(finite))
        raise ParitasError(
            "weight-not-finite",
            f"{bad:,} NaN or Inf value{'s' if bad > 1 else ''} in {', '.join(weight.sources) or name}",
            place=name,
            hint="The checkpoint itself is broken (a failed merge or training run): no export of it can be right.",
        )
