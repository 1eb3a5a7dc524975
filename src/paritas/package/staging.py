"""A package appears whole or not at all: it is written to a sibling folder and renamed."""

import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from paritas.errors import ParitasError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def staging(out: Path) -> Generator[Path]:
    """A temporary sibling of ``out`` to write into; it is removed on the way out, however that happens."""
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_output(out: Path, *, force: bool) -> None:
    """Refuse an output that could not take its final name later.

    Raises:
        ParitasError: ``output-exists``, ``output-not-a-package``, ``output-unwritable``.
    """
    if out.exists() and not force:
        raise ParitasError(
            "output-exists",
            "there is something already",
            place=str(out),
            hint="--force replaces it, once the new package is whole.",
        )
    if out.exists() and not _replaceable(out):
        raise ParitasError(
            "output-not-a-package",
            "--force replaces packages and empty folders only; this is something else",
            place=str(out),
            hint="Choose another output, or remove it yourself.",
        )
    parent = out.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise ParitasError(
            "output-unwritable",
            f"cannot write there: {error.strerror}",
            place=str(parent),
            hint="Choose another output.",
        ) from None


def publish(folder: Path, out: Path) -> None:
    """Give the finished ``folder`` its final name, flushed to the disk; the old package goes only after that."""
    for path in sorted(folder.rglob("*")):
        _sync(path)
    _sync(folder)
    folder.chmod(0o755)  # mkdtemp makes it private
    if out.exists():
        _exchange(folder, out)  # the caller's staging now holds the old package, and removes it
    else:
        folder.rename(out)
    _sync(out.absolute().parent)


def _replaceable(out: Path) -> bool:
    return out.is_dir() and not out.is_symlink() and (not any(out.iterdir()) or any(out.glob("*.onnx")))


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders in one step where the system can (Linux), else by two renames with a way back."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE) == 0:
            return
    aside = old.with_name(f".{old.name}.old-{os.getpid()}")
    old.rename(aside)
    try:
        new.rename(old)
    except OSError:
        aside.rename(old)
        raise
    aside.rename(new)


def _sync(path: Path) -> None:
    if path.is_dir() and sys.platform == "win32":
        return  # Windows cannot open a folder
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
