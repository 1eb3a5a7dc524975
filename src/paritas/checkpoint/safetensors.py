"""Reads safetensors files: headers when a file is opened, rows of a tensor when they are asked for.

The reader is our own because it has to say which file is wrong and by how many bytes, has to read bf16 without torch,
and reads with ``pread``: mapped pages of a large checkpoint would count as our memory.
"""

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.base import Extent, Tensor
from paritas.errors import ParitasError, Unsupported

_WIDTHS = {"BF16": 2, "F16": 2, "F32": 4}
_FLOATS: Mapping[str, Any] = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}
_CODES = {"I64": "<i8", "I32": "<i4", "I8": "<i1", "U8": "<u1", "F8_E4M3": "<u1"}  # integers, as numpy calls them
_BYTES = {**_WIDTHS, **{dtype: int(code[-1]) for dtype, code in _CODES.items()}}
_LENGTH = 8  # bytes of the header's length, before the header
_HEADER_LIMIT = 100_000_000  # the format's own limit
_FETCH = "Fetch the file again: it is not what its writer wrote."


@dataclass
class SafetensorsTensor(Tensor):
    """One tensor of a safetensors file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    place: str
    path: Path
    offset: int

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows ``[start, stop)``, widened: bf16, fp16 and fp32 values are exact in fp32."""
        if self.dtype not in _WIDTHS:
            raise Unsupported(
                "tensor-dtype-unsupported",
                f"{self.name} is stored as {self.dtype}; supported: {', '.join(_WIDTHS)}",
                place=self.place,
                hint="Quantised weights are read where config.json has a quantization_config that explains them.",
            )
        row = _WIDTHS[self.dtype] * int(np.prod(self.shape[1:], dtype=np.int64))
        data = _pread(self.path, self.offset + start * row, (stop - start) * row)
        return _widen(data, self.dtype).reshape(stop - start, *self.shape[1:])

    def codes(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Rows ``[start, stop)`` of a quantised tensor as they are stored: integers, or the bits of fp8.

        Raises:
            Unsupported: ``tensor-dtype-unsupported``: it is stored as something else.
        """
        if self.dtype not in _CODES:
            raise Unsupported(
                "tensor-dtype-unsupported",
                f"{self.name} is stored as {self.dtype}; quantised weights are read as {', '.join(_CODES)}",
                place=self.place,
                hint="The checkpoint's quantization_config says something else than its tensors: fetch it again.",
            )
        shape = self.shape or (1,)
        stop = shape[0] if stop is None else stop
        row = _BYTES[self.dtype] * int(np.prod(shape[1:], dtype=np.int64))
        data = _pread(self.path, self.offset + start * row, (stop - start) * row)
        return np.frombuffer(data, _CODES[self.dtype]).reshape(stop - start, *shape[1:])

    def extent(self, start: int, stop: int) -> Extent | None:
        """In the file itself."""
        row = _WIDTHS.get(self.dtype, 0) * int(np.prod(self.shape[1:], dtype=np.int64))
        return Extent(self.path, self.offset + start * row, (stop - start) * row, self.dtype) if row else None


def read_safetensors(path: Path) -> dict[str, SafetensorsTensor]:
    """Every tensor of one file, by name; only the header is read.

    Raises:
        ParitasError: ``shard-missing``, ``shard-truncated``, ``shard-corrupt``; with the file and the bytes.
    """
    if not path.is_file():
        raise ParitasError(
            "shard-missing",
            "the file is not there",
            place=str(path),
            hint="Fetch it, or the index is of another checkpoint.",
        )
    size = path.stat().st_size
    header, data = _header(path, size)
    header.pop("__metadata__", None)
    tensors = {name: _tensor(path, data, name, entry) for name, entry in header.items()}
    end = data
    for name, (start, stop) in sorted(((n, e["data_offsets"]) for n, e in header.items()), key=lambda item: item[1]):
        if data + start != end:
            raise ParitasError(
                "shard-corrupt",
                f"{name} begins at byte {start:,} of the data; the tensor before it ends at {end - data:,}",
                place=str(path),
                hint=_FETCH,
            )
        end = data + stop
    if size != end:
        raise ParitasError(
            "shard-truncated" if size < end else "shard-corrupt",
            f"the file has {size:,} bytes; its header says {end:,}",
            place=str(path),
            hint=_FETCH,
        )
    return tensors


def _header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    if size < _LENGTH:
        raise ParitasError(
            "shard-truncated", f"the file has {size} bytes, less than a header", place=str(path), hint=_FETCH
        )
    (length,) = struct.unpack("<Q", _pread(path, 0, _LENGTH))
    if length > _HEADER_LIMIT:
        raise ParitasError(
            "shard-corrupt", "the file does not begin like a safetensors file", place=str(path), hint=_FETCH
        )
    if _LENGTH + length > size:
        raise ParitasError(
            "shard-truncated",
            f"the file has {size:,} bytes; its header alone says {_LENGTH + length:,}",
            place=str(path),
            hint=_FETCH,
        )
    try:
        header = json.loads(_pread(path, _LENGTH, length), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ParitasError("shard-corrupt", f"its header is not JSON: {error}", place=str(path), hint=_FETCH) from None
    if not isinstance(header, dict):
        raise ParitasError("shard-corrupt", "its header is not a JSON object", place=str(path), hint=_FETCH)
    return header, _LENGTH + length  # pyright: ignore[reportUnknownVariableType]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is in it twice")
    return values


def _tensor(path: Path, data: int, name: str, entry: Any) -> SafetensorsTensor:
    try:
        shape = tuple(_natural(n) for n in entry["shape"])
        start, stop = (_natural(n) for n in entry["data_offsets"])
        dtype = str(entry["dtype"])
    except (KeyError, TypeError, ValueError):
        raise ParitasError(
            "shard-corrupt", f"its header describes {name} wrongly", place=str(path), hint=_FETCH
        ) from None
    wanted = math.prod(shape) * _BYTES.get(dtype, 0)
    if stop < start or (dtype in _BYTES and stop - start != wanted):
        raise ParitasError(
            "shard-corrupt",
            f"{name} of shape {list(shape)} and type {dtype} has {stop - start:,} bytes instead of {wanted:,}",
            place=str(path),
            hint=_FETCH,
        )
    return SafetensorsTensor(name, shape, dtype, str(path), path, data + start)


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _pread(path: Path, offset: int, count: int) -> bytearray:
    buffer = bytearray(count)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while view:
            got = os.preadv(file.fileno(), [view], offset) if hasattr(os, "preadv") else _seek_read(file, view, offset)
            if got == 0:
                raise ParitasError(
                    "shard-truncated",
                    f"the file ends before byte {offset + len(view):,}",
                    place=str(path),
                    hint=_FETCH,
                )
            view, offset = view[got:], offset + got
    return buffer


def _seek_read(file: Any, view: memoryview, offset: int) -> int:
    file.seek(offset)
    return int(file.readinto(view))


def _widen(data: bytearray, dtype: str) -> NDArray[np.float32]:
    return np.frombuffer(data, _FLOATS[dtype]).astype(np.float32, copy=False)
