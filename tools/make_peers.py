"""Build the packages that other exporters make of tiny checkpoints, for `paritas verify` to be held against.

    python tools/make_peers.py [FOLDER] [--only EXPORTER/CASE ...]     # default: .peers, everything

FOLDER then holds:

    environments/NAME/          a virtual environment with the released exporter, never updated in place
    checkpoints/CASE/           written by this project's transformers (tests/zoo.py)
    transformers-4/CASE/        the same with config.json as transformers 4 wrote it, for exporters that need that
    packages/EXPORTER/CASE/     what the exporter made, untouched; beside it CASE.log, what it said

What is there already is left alone, failures too: remove a folder or a log to try again. Ends with a table. A failure
to build is a result like any other, and no error of this command.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("peer_worker.py")
TORCH = os.environ.get("TORCH", "torch==2.13.0")
"""Of every environment; with pip's options if need be, as in the Makefile."""

ENVIRONMENTS = {
    "builder": ("onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "onnx-ir==1.1.0", "transformers==5.24.0"),
    "mobius": (
        "mobius-onnx==0.1.0",
        "onnxruntime==1.32.0",
        "onnx-ir==1.1.0",
        "onnxscript==0.7.2",
        "transformers==5.24.0",
    ),
    "optimum": ("optimum-onnx==0.1.0", "onnxruntime==1.32.0", "transformers==4.57.6"),
}


@dataclass(frozen=True)
class Exporter:
    """A released exporter with the options that make one kind of package.

    Attributes:
        environment: name in :data:`ENVIRONMENTS`.
        module: run as ``python -m`` would.
        arguments: with ``{checkpoint}`` and ``{package}`` to be filled in.
        cases: which checkpoints; None for all of them.
        checkpoints: the folder they lie in.
    """

    environment: str
    module: str
    arguments: tuple[str, ...]
    cases: tuple[str, ...] | None = None
    checkpoints: str = "checkpoints"


def _builder(*options: str, cases: tuple[str, ...] | None = None) -> Exporter:
    arguments = ("-i", "{checkpoint}", "-o", "{package}", "-e", "cpu", "-c", "{package}/cache", *options)
    return Exporter("builder", "onnxruntime_genai.models.builder", arguments, cases)


def _mobius(*options: str, cases: tuple[str, ...] | None = None) -> Exporter:
    return Exporter("mobius", "mobius", ("build", "--model", "{checkpoint}", "{package}", *options), cases)


def _optimum(task: str, cases: tuple[str, ...] | None = None) -> Exporter:
    arguments = ("export", "onnx", "--model", "{checkpoint}", "--task", task, "{package}")
    return Exporter("optimum", "optimum.commands.optimum_cli", arguments, cases, "transformers-4")


ROUNDED = ("llama", "llama-biased", "gemma2", "granite", "qwen3")
"""Checkpoints that are exported in less than fp32 too; see tests/test_precision.py."""

EXPORTERS = {
    "builder": _builder("-p", "fp32"),
    "builder-growing": _builder("-p", "fp32", "--extra_options", "windowed_kv_cache=false"),
    "builder-fp16": _builder("-p", "fp16", cases=(*ROUNDED, "kept-llama", "qwen2")),
    "builder-int4": _builder("-p", "int4", cases=(*ROUNDED, "kept-llama", "mistral")),
    "mobius": _mobius("--dtype", "f32", "--ep", "default"),
    "mobius-cpu": _mobius("--dtype", "f32", "--ep", "cpu"),
    "mobius-f16": _mobius(
        "--dtype",
        "f16",
        "--ep",
        "default",
        cases=("llama", "gemma2-144", "gemma3", "kept-llama", "granite", "nemotron", "olmo2"),
    ),
    "mobius-bf16": _mobius("--dtype", "bf16", "--ep", "default", cases=("llama", "qwen3")),
    "mobius-static": _mobius("--dtype", "f32", "--ep", "default", "--static-cache", "--max-seq-len", "192"),
    "optimum": _optimum("text-generation-with-past"),
    "optimum-no-cache": _optimum("text-generation", cases=("llama", "gemma2")),
}


KEPT = (
    "builder/kept-llama",
    "builder/kept-gemma2",
    "builder/kept-yarn",
    "builder/kept-mistral",
    "builder/kept-phi",
    "builder-int4/kept-llama",
    "mobius/kept-llama",
    "mobius/kept-gemma2",
    "mobius/kept-gemma3",
    "mobius/kept-mistral",
    "mobius-f16/kept-llama",
    "mobius-cpu/kept-gemma3",
    "mobius-static/kept-llama",
    "optimum/kept-llama",
    "optimum/kept-gemma2",
)
"""Packages that lie in tests/data/peers, for the tests that everybody runs."""


def main() -> None:
    """Environments, checkpoints, packages, table."""
    parser = argparse.ArgumentParser(description="Build packages with other exporters.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / ".peers")
    parser.add_argument("--only", nargs="+", metavar="EXPORTER/CASE", default=[])
    parser.add_argument("--keep", action="store_true", help="copy the small ones into tests/data/peers")
    given = parser.parse_args()
    folder: Path = given.folder.absolute()
    cases = make_checkpoints(folder / "checkpoints", folder / "transformers-4")
    wanted = [
        (exporter, case)
        for exporter in EXPORTERS
        for case in cases
        if (EXPORTERS[exporter].cases is None or case in EXPORTERS[exporter].cases)
        and (not given.only or f"{exporter}/{case}" in given.only or exporter in given.only)
    ]
    for exporter in dict.fromkeys(exporter for exporter, _ in wanted):
        make_environment(folder / "environments", EXPORTERS[exporter].environment)
        build(folder, exporter, [case for each, case in wanted if each == exporter])
    for exporter, case in wanted:
        print(f"{exporter:16s} {case:20s} {outcome(folder / 'packages' / exporter / case)}")
    if given.keep:
        keep(folder, ROOT / "tests" / "data" / "peers")


def make_environment(folder: Path, name: str) -> None:
    """A virtual environment with what :data:`ENVIRONMENTS` lists; torch first, so that a CPU build is kept."""
    made = folder / name / "made"
    listed = "\n".join(ENVIRONMENTS[name])
    if made.is_file() and made.read_text() == listed:
        return
    print(f"making the environment {name}", flush=True)
    shutil.rmtree(folder / name, ignore_errors=True)
    venv.create(folder / name, with_pip=True)
    pip = [str(folder / name / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *TORCH.split()], check=True)
    subprocess.run([*pip, *ENVIRONMENTS[name]], check=True)
    made.write_text(listed)


def make_checkpoints(folder: Path, older: Path) -> list[str]:
    """Those of tests/zoo.py, by this project's own transformers, as version 5 writes them and as 4 did.

    Returns:
        Their names.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    import zoo

    for name, write in zoo.CHECKPOINTS.items():
        make_folder(folder / name, write)
        make_folder(older / name, partial(write_as_transformers_4, folder / name))
    return list(zoo.CHECKPOINTS)


def make_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` make the folder, which is then either whole or absent."""
    if folder.exists():
        return
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    write(part)
    part.rename(folder)


def write_as_transformers_4(checkpoint: Path, folder: Path) -> None:
    """The checkpoint with RoPE in the flat keys that transformers 4 reads; it passes over ``rope_parameters``."""
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    config |= {key: rope.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    (folder / "config.json").write_text(json.dumps(config))


def build(folder: Path, name: str, cases: list[str]) -> None:
    """Let one exporter make every package that it has not made, or failed to make, yet."""
    exporter, out = EXPORTERS[name], folder / "packages" / name
    out.mkdir(parents=True, exist_ok=True)
    jobs = [
        {
            "log": str(out / f"{case}.log"),
            "part": str(out / f"{case}.part"),
            "package": str(out / case),
            "arguments": [
                word.format(checkpoint=folder / exporter.checkpoints / case, package=out / f"{case}.part")
                for word in exporter.arguments
            ],
        }
        for case in cases
        if not (out / f"{case}.log").exists()
    ]
    if jobs:
        print(f"{name}: {len(jobs)} packages", flush=True)
        python = folder / "environments" / exporter.environment / "bin" / "python"
        offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [str(python), str(WORKER), exporter.module]
        subprocess.run(command, input=json.dumps(jobs), text=True, check=True, env={**os.environ, **offline})


def outcome(package: Path) -> str:
    """One line: built and how large, or the line of the log that says why not."""
    if package.is_dir():
        size = sum(file.stat().st_size for file in package.rglob("*") if file.is_file())
        return f"built, {size / 1e3:,.0f} kB"
    lines = package.with_name(f"{package.name}.log").read_text(errors="replace").splitlines()
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return f"FAILED: {(named or lines or ['no output'])[-1][:140]}"


def keep(folder: Path, data: Path) -> None:
    """Copy the packages of :data:`KEPT` and their checkpoints, anew."""
    shutil.rmtree(data, ignore_errors=True)
    for case in sorted({kept.split("/")[1] for kept in KEPT}):
        shutil.copytree(folder / "checkpoints" / case, data / "checkpoints" / case)
    for kept in KEPT:
        shutil.copytree(folder / "packages" / kept, data / kept, ignore=shutil.ignore_patterns("cache"))
    for path in data.rglob("*.onnx"):  # mobius names the graph after the folder it was built in
        model = onnx.load(str(path), load_external_data=False)
        model.graph.name = "model"
        path.write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
