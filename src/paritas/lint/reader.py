"""What onnx-genai itself says of a package, where it is installed: its command looks at files and runs no model."""

import importlib.metadata
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from paritas.lint.fault import Findings, fault

DISTRIBUTION = "onnx-genai-server"
_SHOW = "import sys; from onnx_genai_server import main; sys.exit(main())"
_SECONDS = 120


@dataclass(frozen=True)
class Reader:
    """Its version, and why it refuses the package; None if it takes it."""

    version: str
    refusal: str | None


def ask(folder: Path) -> Reader | None:
    """What the installed reader says of the package; None if none is installed."""
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
    command = [sys.executable, "-c", _SHOW, "show", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS, errors="replace")
    words = re.sub(r"\x1b\[[0-9;]*m", "", done.stderr)
    refusal = None if done.returncode == 0 else " ".join(words.split()) or f"it ends with {done.returncode}"
    return Reader(version, refusal)


def reader_findings(reader: Reader, place: str) -> Findings:
    """A refusal."""
    if reader.refusal is not None:
        yield fault(
            "metadata-refused",
            place,
            f"onnx-genai {reader.version}: {reader.refusal.removeprefix('error: ')}",
            "Correct what it names.",
        )
