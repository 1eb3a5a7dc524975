"""What a script prints, kept as benchmarks/results/NAME.md with the command and the machine that it was printed by.

parser = argparse.ArgumentParser(...)
results.option(parser)
given = parser.parse_args()
with results.kept(given.keep):
    ...  # whatever is printed here
"""

import argparse
import contextlib
import importlib.metadata
import io
import os
import platform
import shlex
import sys
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

RESULTS = Path(__file__).resolve().parent / "results"
_WITH = ("onnxruntime", "onnxruntime-genai", "transformers", "torch", "numpy")


class _Both(io.TextIOBase):
    """Writes to two streams."""

    def __init__(self, *streams: TextIO) -> None:
        self._streams = streams

    def write(self, text: str, /) -> int:
        for stream in self._streams:
            stream.write(text)
        return len(text)

    def flush(self) -> None:
        for stream in self._streams:
            stream.flush()


def option(parser: argparse.ArgumentParser) -> None:
    """``--keep``, the same in every script."""
    script = Path(sys.argv[0]).stem
    parser.add_argument("--keep", action="store_true", help=f"also write benchmarks/results/{script}*.md")


@contextlib.contextmanager
def kept(wanted: bool, *more: str) -> Generator[None]:
    """Everything that is printed inside goes to the screen and, if it is wanted and nothing fails, to the page.

    ``more`` are words of the page's name behind the script's, for a script that is run for several things.
    """
    printed, begun = io.StringIO(), _load()
    with contextlib.redirect_stdout(_Both(sys.stdout, printed)):
        yield
    if wanted:
        RESULTS.mkdir(exist_ok=True)
        name = "-".join((Path(sys.argv[0]).stem, *more))
        (RESULTS / f"{name}.md").write_text(_page(printed.getvalue(), begun), encoding="utf-8")


def _page(printed: str, begun: str) -> str:
    words = [Path(word).name if os.path.lexists(word) else word for word in sys.argv[1:] if word != "--keep"]
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])
    versions = ", ".join(f"{name} {found}" for name in _WITH if (found := _version(name)) is not None)
    return (
        f"# {Path(sys.argv[0]).stem}\n\n```console\n$ {command}\n{printed.rstrip()}\n```\n\n"
        f"{datetime.now(UTC):%Y-%m-%d}, {_processor()}, {os.cpu_count()} cores, load average {begun} before and "
        f"{_load()} after; Python {platform.python_version()}, {versions}.\n"
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def _processor() -> str:
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
