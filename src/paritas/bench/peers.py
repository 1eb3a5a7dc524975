"""Other ways of running the same checkpoint: packages that another exporter makes of it here, or another runtime."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritas.bench import entrant
from paritas.bench.entrant import Entrant
from paritas.bench.task import DISK, Figures, Task
from paritas.errors import Invalid, ParitasError, Unsupported
from paritas.runtime.package import Package
from paritas.runtime.ports import read_ports
from paritas.runtime.proto import nodes

PEERS = ("builder", "mobius", "transformers", "llama.cpp")
_MODULES = {"builder": "onnxruntime_genai.models.builder", "mobius": "mobius"}
_INSTALL = {"builder": "onnxruntime-genai", "mobius": "mobius-onnx"}


@dataclass(frozen=True)
class Settings:
    """What a package is, in the words that exporters share.

    Attributes:
        dtype: ``fp32``, ``int8`` or ``int4``.
        block: elements that share a scale; None for fp32.
        symmetric: no zero points are stored.
        accuracy: MatMulNBits' accuracy level.
        last: a call gets logits of its last position, unless it asks for more.
    """

    dtype: str
    block: int | None = None
    symmetric: bool = True
    accuracy: int = 0
    last: bool = False


def settings(package: Package) -> Settings:
    """Of most of the package's matrices."""
    last = read_ports(package.model, package.head_size).kept is not None
    found: Counter[Settings] = Counter()
    for node in nodes(package.proto):
        if node.op_type == "MatMulNBits":
            numbers = {a.name: a.i for a in node.attribute}
            symmetric = len(node.input) < 4 or not node.input[3]
            dtype, level = f"int{numbers.get('bits', 4)}", numbers.get("accuracy_level", 0)
            found[Settings(dtype, numbers["block_size"], symmetric, level, last)] += 1
    return found.most_common(1)[0][0] if found else Settings("fp32", last=last)


def entrants(word: str, model: str | None, package: Package, folder: Path) -> Iterator[Entrant]:
    """Who is measured for ``--against WORD``: some peers twice, at their defaults and at the package's settings.

    Args:
        word: a name of :data:`PEERS`, or ``NAME=PROGRAM``: the Python that an exporter is installed in, or llama-bench.
        model: the checkpoint that the peer is given.
        package: ours, whose settings are taken.
        folder: where packages may be made.

    Raises:
        ParitasError: ``bench-peer-needs-model``, ``bench-peer-missing``; what the checkpoint is refused for.
        Unsupported: ``bench-peer-cannot``.
        Invalid: ``bench-peer-failed``.
    """
    from paritas.checkpoint.opening import locate

    name, _, program = word.partition("=")
    if model is None:
        raise ParitasError(
            "bench-peer-needs-model",
            f"{name} is measured on a checkpoint, and none is given",
            hint="--model CHECKPOINT: the one that the package was made of (for llama.cpp, a .gguf file).",
        )
    checkpoint = locate(model)
    match name:
        case "transformers":
            yield entrant.transformers(checkpoint)
        case "llama.cpp":
            yield _llama(_gguf(checkpoint), _found(program or "llama-bench", name))
        case _:
            if checkpoint.suffix == ".gguf":
                raise Unsupported(
                    "bench-peer-cannot",
                    f"{name} is given folders here, not GGUF files",
                    place=str(checkpoint),
                    hint="Give the folder of the same model, or measure a package that it made: paritas bench A B.",
                )
            python = _found(program or sys.executable, name)
            _check_module(python, name)
            yield from _packages(name, python, checkpoint, settings(package), folder)


def _packages(name: str, python: str, checkpoint: Path, ours: Settings, folder: Path) -> Iterator[Entrant]:
    make = _builder if name == "builder" else _mobius
    for kind, words, note in make(ours):
        out = folder / f"{name}-{kind}"
        command = [python, "-m", _MODULES[name]]
        command += [each.format(checkpoint=checkpoint, package=out) for each in words]
        _make(name, command, out)
        yield entrant.package(f"{name} {kind}", _model(out), note)


def _builder(ours: Settings) -> Iterator[tuple[str, list[str], str]]:
    base = ["-i", "{checkpoint}", "-o", "{package}", "-c", "{package}/cache", "-e", "cpu", "-p", ours.dtype]
    yield "default", base, f"-p {ours.dtype}"
    options = [f"prune_lm_head={str(ours.last).lower()}"]
    if ours.block is not None:
        options += [f"block_size={ours.block}", f"is_symmetric={str(ours.symmetric).lower()}"]
        options += [f"accuracy_level={ours.accuracy}"]
    yield "equal", [*base, "--extra_options", *options], f"-p {ours.dtype} --extra_options {' '.join(options)}"


def _mobius(ours: Settings) -> Iterator[tuple[str, list[str], str]]:
    if ours.dtype != "fp32":
        raise Unsupported(
            "bench-peer-cannot",
            f"mobius is measured in fp32, and the package is {ours.dtype}",
            hint="Measure an fp32 package, or a package that mobius made: paritas bench A B.",
        )
    options = ["--dtype", "f32", "--ep", "cpu"]
    yield "default", ["build", "--model", "{checkpoint}", "{package}", *options], " ".join(options)


def _make(name: str, command: Sequence[str], out: Path) -> None:
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=offline)
    if done.returncode or not list(out.rglob("*.onnx")):
        lines = (done.stderr or done.stdout).strip().splitlines() or ["without a word"]
        raise Invalid(
            "bench-peer-failed",
            f"{name} made no package of this checkpoint: {lines[-1][:300]}",
            hint="Measure without it, or beside a package that it made elsewhere: paritas bench A B.",
        )


def _model(out: Path) -> Path:
    """The folder itself, or its graph one folder down."""
    return out if any(out.glob("*.onnx")) else next(out.rglob("*.onnx"))


def _found(program: str, name: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise ParitasError(
            "bench-peer-missing",
            f"{name} is not installed: there is no program {program}",
            hint=f"Install it, or say where it is: --against {name}=PROGRAM"
            + (" (llama.cpp's llama-bench)." if name == "llama.cpp" else " (the Python it is installed in)."),
        )
    return found


def _check_module(python: str, name: str) -> None:
    look = f"import importlib.util as u, sys; sys.exit(u.find_spec({_MODULES[name].split('.')[0]!r}) is None)"
    if subprocess.run([python, "-c", look], capture_output=True, check=False).returncode:
        raise ParitasError(
            "bench-peer-missing",
            f"{name} is not installed in {python}",
            hint=f"pip install {_INSTALL[name]}, in an environment of its own if need be: --against {name}=PYTHON",
        )


def _gguf(checkpoint: Path) -> Path:
    if checkpoint.suffix != ".gguf":
        raise Unsupported(
            "bench-peer-cannot",
            "llama.cpp runs GGUF files",
            place=str(checkpoint),
            hint="--model FILE.gguf, of the same model and of a like precision.",
        )
    return checkpoint


def _llama(file: Path, program: str) -> Entrant:
    return Entrant("llama.cpp", f"llama-bench on {file.name}", _llama_measure(file, program))


def _llama_measure(file: Path, program: str) -> Callable[[Task], Figures]:
    def measure(task: Task) -> Figures:
        if task.clock == "cpu":
            raise Unsupported(
                "bench-peer-cannot", "llama-bench tells wall times alone", hint="Measure it with --clock wall."
            )
        base = [program, "-m", str(file), "-t", str(task.threads), "-r", str(task.repeats), "-ngl", "0", "-o", "json"]
        figures: dict[str, float] = {DISK: file.stat().st_size}
        for tokens in task.prefill:
            (told,) = _told([*base, "-p", str(tokens), "-n", "0"], task)
            figures[f"prefill@{tokens}"] = min(told["samples_ns"]) / 1e9
        for tokens in task.decode:
            (told,) = _told([*base, "-p", "0", "-n", str(task.steps), "-d", str(tokens)], task)
            figures[f"decode@{tokens}"] = min(told["samples_ns"]) / 1e9 / task.steps
        return figures

    return measure


def _told(words: Sequence[str], task: Task) -> list[dict[str, Any]]:
    return json.loads(entrant.output(words, "llama.cpp", task.threads))
