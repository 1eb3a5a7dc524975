"""Who is measured: a name, and the process that measures it once."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritas.bench.task import Figures, Task
from paritas.errors import Exit, Invalid, ParitasError

Measure = Callable[[Task], Figures]


@dataclass(frozen=True)
class Entrant:
    """One way of running a model.

    Attributes:
        name: as the table shows it.
        note: what it is, in a line; empty for a package.
        measure: one fresh process; its figures.
    """

    name: str
    note: str
    measure: Measure


def package(name: str, folder: Path, note: str = "") -> Entrant:
    """A package in ONNX Runtime or ORT GenAI."""
    return Entrant(name, note, lambda task: _ask("package", folder, name, task))


def transformers(checkpoint: Path) -> Entrant:
    """transformers on a checkpoint."""
    note = "transformers on the checkpoint: fp32, SDPA, logits of the last position"
    return Entrant("transformers", note, lambda task: _ask("transformers", checkpoint, "transformers", task))


def _ask(kind: str, path: Path, name: str, task: Task) -> Figures:
    words = [sys.executable, "-m", "paritas.bench.worker", kind, str(path), json.dumps(task.words)]
    told: dict[str, Any] = json.loads(output(words, name, task.threads))
    if (error := told.get("error")) is not None:
        kind_of = Invalid if error["exit"] == Exit.NOT_TESTED else ParitasError
        raise kind_of(error["code"], error["fact"], place=error["place"], hint=error["hint"])
    return told


def output(words: Sequence[str], name: str, threads: int) -> str:
    """What a process that measures prints.

    Raises:
        Invalid: ``bench-process-failed``.
    """
    surroundings = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=surroundings)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended by signal or code {done.returncode}, without a word"]
        raise Invalid(
            "bench-process-failed",
            f"the process that measures {name} ended with {done.returncode}: {lines[-1][:300]}",
            hint="Memory may be short; `paritas verify` and `paritas inspect` say whether the package runs at all.",
        )
    return done.stdout
