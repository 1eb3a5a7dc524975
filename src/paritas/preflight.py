"""What minute twenty would tell, told in second two."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil

from paritas.errors import ParitasError
from paritas.package.staging import existing_parent
from paritas.weights import BLOCK_BYTES, Weight

_SLACK = 64 << 20  # graph, tokenizer, evidence, alignment


def check_resources(out: Path, data_bytes: int, weights: Mapping[str, Weight]) -> None:
    """Refuse an export that the disk or the memory cannot hold.

    Raises:
        ParitasError: ``disk-full``, ``memory-short``; with what is needed and what there is.
    """
    disk = existing_parent(out)
    free = shutil.disk_usage(disk).free
    needed = data_bytes + _SLACK
    if free < needed:
        raise ParitasError(
            "disk-full",
            f"the package needs {needed:,} bytes and {free:,} are free",
            place=str(disk),
            hint="Free some space, or choose an output on another disk.",
        )
    largest = max((weight.bytes for weight in weights.values() if weight.whole), default=0)
    memory = 2 * largest + 4 * BLOCK_BYTES
    available = psutil.virtual_memory().available
    if available < memory:
        raise ParitasError(
            "memory-short",
            f"the largest matrix needs {memory:,} bytes of memory and {available:,} are available",
            hint="Close other programs.",
        )
