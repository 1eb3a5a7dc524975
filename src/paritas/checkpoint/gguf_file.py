"""The GGUF container: header, metadata, tensor table, and the bytes of one tensor.

Written from the published GGUF specification (versions 2 and 3, little-endian). The ``gguf`` library's own
reader makes several arrays per string and needs 12 s to open a file with a vocabulary of 262,144 tokens; this
one needs a fraction of a second. Block arithmetic and sizes of the quantised types are the library's.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.gguf_quants import stored_type
from paritas.errors import ParitasError, Unsupported

Value: TypeAlias = bool | int | float | str | list[bool] | list[int] | list[float] | list[str]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY, _FLOAT32 = 8, 9, 6
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_HINT = "Fetch the file again, or convert the model again."


@dataclass(frozen=True)
class Entry:
    """One line of the tensor table: where a tensor lies in the file and how it is stored."""

    name: str
    shape: tuple[int, ...]
    type: str
    start: int
    size: int


@dataclass(frozen=True)
class GgufFile:
    """An opened GGUF file. The tensor data is memory-mapped; nothing of it has been read."""

    path: Path
    metadata: dict[str, Value]
    entries: dict[str, Entry]
    data: NDArray[np.uint8]

    def bytes_of(self, entry: Entry) -> NDArray[np.uint8]:
        """The stored bytes of a tensor: a row for each index of its first axis, or one row for a vector."""
        rows = entry.shape[0] if len(entry.shape) > 1 else 1
        return self.data[entry.start : entry.start + entry.size].reshape(rows, -1)


def read_gguf(path: Path) -> GgufFile:
    """Open a GGUF file and check that every tensor its header describes lies within it.

    Raises:
        ParitasError: ``gguf-unreadable``, with the place and the bytes expected and found.
    """
    data = _map(path)
    cursor = _Cursor(data, path)
    tensor_count, metadata_count = _header(cursor)
    metadata = _metadata(cursor, metadata_count)
    _one_file(metadata, path)
    found = [_entry(cursor) for _ in range(cursor.checked(tensor_count, 24, "the tensor table"))]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _unreadable(path, f"general.alignment is {alignment!r}, which is no power of two")
    base = -(-cursor.at // alignment) * alignment
    entries = {e.name: Entry(e.name, e.shape, e.type, base + e.start, e.size) for e in found}
    if len(entries) != len(found):
        raise _unreadable(path, f"{len(found) - len(entries)} tensor names occur twice")
    _complete(entries, data.size, path)
    return GgufFile(path, metadata, entries, data)


def _unreadable(path: Path, fact: str) -> ParitasError:
    return ParitasError("gguf-unreadable", fact, place=str(path), hint=_HINT)


def _map(path: Path) -> NDArray[np.uint8]:
    try:
        size = path.stat().st_size
        if size < 24:
            raise _unreadable(path, f"a GGUF header has at least 24 bytes, the file has {size}")
        return np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error


def _header(cursor: "_Cursor") -> tuple[int, int]:
    magic = cursor.take(4, "the magic bytes")
    if magic != _MAGIC:
        raise _unreadable(cursor.path, f"a GGUF file starts with {_MAGIC!r}, this one with {magic!r}")
    version = int(cursor.scalar("I"))
    if version & 0xFFFF == 0:
        raise _unreadable(cursor.path, "the file is big-endian; only little-endian GGUF files are read")
    if version not in _VERSIONS:
        raise _unreadable(cursor.path, f"GGUF version {version}; versions 2 and 3 are read")
    return int(cursor.scalar("Q")), int(cursor.scalar("Q"))


def _metadata(cursor: "_Cursor", count: int) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for _ in range(cursor.checked(count, 13, "the metadata")):
        key = cursor.string()
        if key in found:
            raise _unreadable(cursor.path, f"metadata key {key!r} occurs twice")
        found[key] = cursor.value(int(cursor.scalar("I")), key)
    return found


def _one_file(metadata: dict[str, Value], path: Path) -> None:
    parts = metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise Unsupported(
            "gguf-split",
            f"the model is split over {parts} GGUF files",
            place=str(path),
            hint="Join them first: llama-gguf-split --merge FIRST_PART OUT.gguf",
        )


def _entry(cursor: "_Cursor") -> Entry:
    """One tensor's line; ``start`` is still relative to the data section."""
    name = cursor.string()
    rank = int(cursor.scalar("I"))
    if not 1 <= rank <= 4:
        raise _unreadable(cursor.path, f"tensor {name!r} has {rank} dimensions; GGUF allows 1 to 4")
    shape = tuple(int(cursor.scalar("Q")) for _ in range(rank))[::-1]
    kind = stored_type(int(cursor.scalar("I")), name, cursor.path)
    offset = int(cursor.scalar("Q"))
    if min(shape) < 1 or shape[-1] % kind.block_elements:
        raise _unreadable(
            cursor.path,
            f"tensor {name!r} has shape {list(shape)}, no multiple of {kind.name} blocks of {kind.block_elements}",
        )
    size = int(np.prod([int(n) for n in shape], dtype=object)) // kind.block_elements * kind.block_bytes
    return Entry(name, shape, kind.name, offset, size)


def _complete(entries: dict[str, Entry], actual: int, path: Path) -> None:
    last = max(entries.values(), key=lambda entry: entry.start + entry.size, default=None)
    if last is not None and last.start + last.size > actual:
        expected = last.start + last.size
        raise _unreadable(
            path,
            f"the file has {actual} bytes, its header describes {expected}: "
            f"{expected - actual} are missing, the last of them from tensor {last.name!r}",
        )


class _Cursor:
    """Reads the header front to back; every read knows what it is for, none goes past the end of the file."""

    def __init__(self, data: NDArray[np.uint8], path: Path) -> None:
        self.path = path
        self.at = 0
        self._data = data.data

    def take(self, count: int, what: str) -> bytes:
        """The next bytes."""
        if count > len(self._data) - self.at:
            raise _unreadable(
                self.path,
                f"{what} needs {self.at + count} bytes, the file has {len(self._data)}: it ends early",
            )
        piece = self._data[self.at : self.at + count]
        self.at += count
        return bytes(piece)

    def checked(self, count: int, least: int, what: str) -> int:
        """A count from the file, if that many items of at least so many bytes can follow."""
        if count * least > len(self._data) - self.at:
            raise _unreadable(
                self.path,
                f"{what} has {count} entries, at least {self.at + count * least} bytes; the file has {len(self._data)}",
            )
        return count

    def scalar(self, code: str) -> int | float | bool:
        """The next number, by its code of the ``struct`` module."""
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), "the header"))[0]

    def string(self) -> str:
        """The next string: its length in 64 bits, then UTF-8."""
        raw = self.take(int(self.scalar("Q")), "a string of the header")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _unreadable(self.path, f"the string before byte {self.at} is not UTF-8") from error

    def value(self, kind: int, key: str) -> Value:
        """The next metadata value.

        A single fp32 becomes the shortest decimal that rounds to it: converters write these from the decimal
        numbers of a config.json, so 9.999999974752427e-07 was 1e-06.
        """
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(key)
        code = self._code(kind, key)
        number = self.scalar(code)
        return float(str(np.float32(number))) if kind == _FLOAT32 else number

    def _code(self, kind: int, key: str) -> str:
        if kind not in _SCALARS:
            raise _unreadable(self.path, f"metadata key {key!r} has the undefined value type {kind}")
        return _SCALARS[kind]

    def _array(self, key: str) -> Value:
        kind, count = int(self.scalar("I")), int(self.scalar("Q"))
        if kind == _STRING:
            return self._strings(self.checked(count, 8, f"metadata key {key!r}"))
        code = self._code(kind, key)
        width = struct.calcsize("<" + code)
        raw = self.take(self.checked(count, width, f"metadata key {key!r}") * width, f"metadata key {key!r}")
        return np.frombuffer(raw, dtype=np.dtype("<" + code if width > 1 else code)).tolist()

    def _strings(self, count: int) -> list[str]:
        """As :meth:`string`, a vocabulary at a time: the hot loop of opening a file."""
        data, at, end = self._data, self.at, len(self._data)
        length_of = struct.Struct("<Q").unpack_from
        found: list[str] = []
        for _ in range(count):
            stop = at + 8 + length_of(data, at)[0] if at + 8 <= end else end + 1
            if stop > end:
                break
            try:
                found.append(str(data[at + 8 : stop], "utf-8"))
            except UnicodeDecodeError as error:
                raise _unreadable(self.path, f"the string at byte {at} is not UTF-8") from error
            at = stop
        self.at = at
        if len(found) < count:
            self.take(end - at + 1, f"string {len(found)} of {count}")
        return found
