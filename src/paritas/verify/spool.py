"""Large arrays out of memory: they lie in a file without a name, and are mapped where they are looked at.

The logits of one long sequence of a large vocabulary are as large as the model. What is written here is read again in
blocks, and :func:`release` gives back the memory of what was read; the system reads it once more when it is asked for.
"""

import mmap
import tempfile
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Kind = TypeVar("Kind", bound=np.generic)
LEAST = 1 << 24
"""Bytes below which an array stays in memory."""


def spooled(array: NDArray[Kind]) -> NDArray[Kind]:
    """The same numbers, read-only and mapped from a temporary file, which goes with them; a small array in memory.

    Where the disk has no room, the array stays in memory too.
    """
    if array.nbytes < LEAST:
        return array.copy()  # it may be a view of something far larger
    try:
        with tempfile.TemporaryFile() as file:
            np.ascontiguousarray(array).tofile(file)
            file.flush()
            return np.memmap(file, array.dtype, "r", shape=array.shape)
    except OSError:
        return array


def release(array: NDArray[Any]) -> None:
    """Let go of the memory of what was read of a mapped array; of any other array nothing."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)
