"""What minute twenty would tell, told in second two."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil

from paritas.errors import ParitasError
from paritas.package.staging import existing_parent
from paritas.package.stream import WAITING_BYTES
from paritas.quant.packing import SCRATCH_BYTES
from paritas.weights import BLOCK_BYTES, Weight

_BESIDE = 36 << 20  # of memory: the graph, a small tokenizer that is loaded whole
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
    memory = memory_forecast(weights)
    available = psutil.virtual_memory().available
    if available < memory:
        raise ParitasError(
            "memory-short",
            f"the largest matrix needs {memory:,} bytes of memory and {available:,} are available",
            hint="Close other programs.",
        )


def memory_forecast(weights: Mapping[str, Weight], files: Mapping[str, bytes] | None = None) -> int:
    """Bytes that an export takes beside the program itself.

    The largest matrix that is needed whole, while the one before it is still being written; the scales and zero points
    of the largest matrix of integers, which are written after them; blocks; the tokenizer's files, whose tokens are
    looked through; the graph.
    """
    largest = max((4 * weight.size for weight in weights.values() if weight.whole), default=0)
    tokenizer = sum(map(len, (files or {}).values()))
    return 2 * largest + _quantising(weights) + WAITING_BYTES + 4 * BLOCK_BYTES + 3 * tokenizer + _BESIDE


def _quantising(weights: Mapping[str, Weight]) -> int:
    held: dict[tuple[str, ...], int] = {}
    for weight in weights.values():
        held[weight.sources] = held.get(weight.sources, 0) + weight.held
    most = max(held.values(), default=0)
    return most + SCRATCH_BYTES if most else 0
