"""A package appears whole or not at all: it is written to a sibling folder and renamed."""

import ctypes
import errno
import os
import secrets
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from paritas.errors import ParitasError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What a package may consist of, ours or another exporter's. --force removes nothing else.
_PACKAGE = (
    "*.onnx",
    "*.onnx.data",
    "*.onnx_data*",
    "*.json",
    "*.jinja",
    "*.md",
    "*.txt",
    "*.yaml",
    "*.model",
    "LICENSE*",
    ".gitattributes",
    "assistant",
    "evidence",
    "policies",
)


@contextmanager
def staging(out: Path) -> Generator[Path]:
    """A temporary sibling of ``out`` to write into. On the way out, however that happens, it is removed, and so are
    the parents of ``out`` that were made for it and are empty.

    Raises:
        ParitasError: ``disk-full``, if the disk fills up in the meantime.
    """
    parent = out.absolute().parent
    missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    folder = _partial(out)
    lock = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(out)
        folder.mkdir()
        lock = _lock(folder)
        yield folder
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise ParitasError(
            "disk-full",
            f"the disk filled up while the package was written: {error.strerror}",
            place=str(parent),
            hint="Free some space, or choose an output on another disk. Nothing was kept.",
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for empty in missing:
            with suppress(OSError):
                empty.rmdir()
        if lock is not None:
            os.close(lock)


def check_output(out: Path, *, force: bool) -> None:
    """Refuse an output that could not take its final name later. Leaves nothing behind.

    Raises:
        ParitasError: ``output-exists``, ``output-not-a-package``, ``output-unwritable``.
    """
    if os.path.lexists(out):
        if (why := _not_replaceable(out)) is not None:
            raise ParitasError(
                "output-not-a-package",
                f"there is something already, and it is not a package: {why}",
                place=str(out),
                hint="Choose another output, or remove it yourself: --force replaces packages and empty folders only.",
            )
        if not force:
            raise ParitasError(
                "output-exists",
                "there is something already",
                place=str(out),
                hint="--force replaces it, once the new package is whole.",
            )
    check_writable(out)


def check_writable(out: Path) -> None:
    """Refuse an output beside which no folder can be made. Leaves nothing behind.

    Raises:
        ParitasError: ``output-unwritable``.
    """
    probe = existing_parent(out) / _partial(out).name
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise ParitasError(
            "output-unwritable",
            f"cannot write there: {error.strerror}",
            place=str(probe.parent),
            hint="Choose another output.",
        ) from None


def check_file(file: Path) -> None:
    """Refuse a file that could not be written into a folder that is there. Leaves nothing behind.

    Raises:
        ParitasError: ``output-unwritable``.
    """
    folder = file.absolute().parent
    if file.is_dir() or not folder.is_dir():
        raise ParitasError(
            "output-unwritable",
            "there is a folder of this name" if file.is_dir() else "there is no folder to write it into",
            place=str(file if file.is_dir() else folder),
            hint="Choose another file, or make the folder first.",
        )
    check_writable(file)


def publish(folder: Path, out: Path) -> None:
    """Give the finished ``folder`` its final name, flushed to the disk; what was there before goes only after that."""
    for path in sorted(folder.rglob("*")):
        _sync(path)
    _sync(folder)
    if os.path.lexists(out):
        check_output(out, force=True)  # somebody may have put something there since
        _exchange(folder, out)  # the caller's staging now holds the old package, and removes it
    else:
        folder.rename(out)
    _sync(out.absolute().parent)


def existing_parent(out: Path) -> Path:
    """The innermost folder around ``out`` that there is."""
    return next(folder for folder in out.absolute().parents if folder.exists())


def _not_replaceable(out: Path) -> str | None:
    if out.is_symlink() or not out.is_dir():
        return "a symbolic link" if out.is_symlink() else "a file"
    inside = sorted(path.name for path in out.iterdir())
    foreign = [name for name in inside if not any(fnmatchcase(name, pattern) for pattern in _PACKAGE)]
    if foreign:
        return f"it holds {foreign[0]}"
    if inside and not any(out.glob("*.onnx")):
        return "it holds no .onnx file"
    return None


def _partial(out: Path) -> Path:
    return out.absolute().with_name(f"{_prefix(out)}{secrets.token_hex(4)}")


def _prefix(out: Path) -> str:
    return f".{out.name}.partial-"


def _sweep(out: Path) -> None:
    """Remove what a crash left behind: partial packages of this name whose process is gone."""
    for left in out.absolute().parent.iterdir():
        if left.name.startswith(_prefix(out)) and (lock := _lock(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock until it is closed or this process ends, however it ends.

    None if another process holds it, or if the system has no such locks.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders in one step where the system can (Linux), else by two renames with a way back."""
    if _exchanged_at_once(new, old):
        return
    aside = old.with_name(f".{old.name}.old-{os.getpid()}")
    old.rename(aside)
    try:
        new.rename(old)
    except BaseException:
        aside.rename(old)
        raise
    aside.rename(new)


def _exchanged_at_once(new: Path, old: Path) -> bool:
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    return rename(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE) == 0


def _sync(path: Path) -> None:
    if path.is_dir() and sys.platform == "win32":
        return  # Windows cannot open a folder
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
