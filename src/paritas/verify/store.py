"""Files on disk under a key: written whole or not at all, summed, and never trusted without the sums.

An entry is a folder of a text and of arrays. One whose sums do not agree is removed, as if it had never been there.
When all entries together are larger than :data:`LIMIT`, those that were used longest ago go.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIMIT = 10 << 30
"""Bytes of all entries together."""

_TEXT, _SUMS = "record.json", "sums.json"
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Entry:
    """A text, and arrays by name (mapped from their files, not read into memory)."""

    text: str
    arrays: Mapping[str, NDArray[Any]]


def cache_folder() -> Path:
    """``PARITAS_CACHE``, or ``paritas`` in the user's folder for caches."""
    if chosen := os.environ.get("PARITAS_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "paritas"


def load(root: Path, key: str) -> Entry | None:
    """The entry, or None if there is none that is whole."""
    folder = root / key
    if not folder.is_dir():
        return None
    try:
        _check(folder)
        text = (folder / _TEXT).read_text(encoding="utf-8")
        arrays = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in folder.glob("*.npy")}
    except (OSError, ValueError, EOFError):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    with contextlib.suppress(OSError):
        os.utime(folder)
    return Entry(text, arrays)


def save(root: Path, key: str, entry: Entry) -> bool:
    """Keep an entry; False if the disk would not have it."""
    size = sum(array.nbytes for array in entry.arrays.values())
    if size > LIMIT:
        return False
    try:
        root.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=root, prefix="."))
    except OSError:
        return False
    try:
        _write(aside, entry)
        shutil.rmtree(root / key, ignore_errors=True)
        aside.rename(root / key)
    except OSError:
        return False
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    _make_room(root, key)
    return True


def file_sha256(file: Path) -> str:
    """Of a file's content."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check(folder: Path) -> None:
    sums = json.loads((folder / _SUMS).read_bytes())
    found = {file.name: file_sha256(file) for file in folder.iterdir() if file.name != _SUMS}
    if found != sums:
        raise ValueError("sums differ")


def _write(folder: Path, entry: Entry) -> None:
    (folder / _TEXT).write_text(entry.text, encoding="utf-8")
    for name, array in entry.arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    sums = {file.name: file_sha256(file) for file in folder.iterdir()}
    (folder / _SUMS).write_text(json.dumps(sums), encoding="utf-8")


def _make_room(root: Path, keep: str) -> None:
    """Remove what was used longest ago until the rest fits; never the entry ``keep``."""
    with contextlib.suppress(OSError):  # another process may be doing the same
        oldest = sorted((f for f in root.iterdir() if f.is_dir()), key=lambda f: f.stat().st_mtime)
        sizes = {folder: sum(file.stat().st_size for file in folder.iterdir()) for folder in oldest}
        for folder in oldest:
            if sum(sizes.values()) <= LIMIT:
                break
            if folder.name != keep:
                shutil.rmtree(folder, ignore_errors=True)
                del sizes[folder]
