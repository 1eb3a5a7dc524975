"""checkpoint -> spec -> graph -> weights -> package -> evidence. Needs neither torch nor transformers."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import paritas
from paritas.checkpoint import open_checkpoint
from paritas.package.card import card
from paritas.package.data import write_data
from paritas.package.model import DATA, write_model
from paritas.package.staging import check_output, publish, staging
from paritas.plan import Options, Plan, prepare
from paritas.preflight import check_resources
from paritas.progress import Progress, silent
from paritas.targets import Target

NOT_TESTED = "not tested"
PROVEN = "proven"


@dataclass(frozen=True)
class Exported:
    """What an export did."""

    out: Path
    verdict: str
    seconds: float
    bytes: int
    parameters: int
    kept: bool
    lost_defaults: Mapping[str, Any]


def export(
    model: str | Path,
    out: Path,
    target: Target,
    options: Options | None = None,
    prove: Callable[[Path], str] | None = None,
    progress: Progress = silent,
) -> Exported:
    """Export ``model`` as a package.

    Args:
        model: folder, GGUF file or Hub id.
        out: the package's folder; it appears whole, and only if the verdict allows it.
        target: how operations are written.
        options: what a person decides.
        prove: verifies the finished package in its temporary folder, adds to its ``evidence/`` and returns the verdict;
            None leaves the package ``not tested``.
        progress: told of every step.

    Raises:
        ParitasError: whatever is wrong with the checkpoint, the machine or the output; nothing is written then.
    """
    options = options or Options()
    started = time.perf_counter()
    check_output(out, force=options.force)
    plan = prepare(open_checkpoint(model), target, options)
    check_resources(out, plan.bytes, plan.graph.weights)
    with staging(out) as folder:
        write_package(plan, folder, progress)
        seconds = time.perf_counter() - started
        verdict = NOT_TESTED if prove is None else prove(folder)
        (folder / "README.md").write_text(card(_facts(plan, out.name, verdict)), encoding="utf-8")
        kept = prove is None or verdict == PROVEN or options.allow_unproven
        if kept:
            publish(folder, out)
    return Exported(out, verdict, seconds, plan.bytes, plan.parameters, kept, plan.lost_defaults)


def write_package(plan: Plan, folder: Path, progress: Progress) -> None:
    """Steps 6 and 7: weights, graph, runtime configuration, tokenizer, record."""
    started = time.perf_counter()
    written = 0

    def advance(count: int) -> None:
        nonlocal written
        written += count
        progress("writing weights", written, plan.bytes)

    placed, digest = write_data(folder / DATA, plan.graph.weights, advance)
    facts = {"source": plan.checkpoint.name, "model_type": plan.model_type, "target": plan.target.name}
    write_model(folder, plan.graph, placed, {f"paritas.{key}": value for key, value in facts.items()})
    _write_json(folder / "genai_config.json", plan.runtime_config)
    for name, content in plan.files.items():
        (folder / name).write_bytes(content)
    (folder / "evidence").mkdir()
    _write_json(folder / "evidence" / "export.json", _record(plan, digest, time.perf_counter() - started))


def _record(plan: Plan, digest: str, seconds: float) -> dict[str, Any]:
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "paritas": paritas.__version__,
        "source": plan.checkpoint.name,
        "model_type": plan.model_type,
        "target": plan.target.name,
        "dtype": "fp32",
        "context": plan.context,
        "parameters": plan.parameters,
        "data_sha256": digest,
        "seconds": round(seconds, 2),
        "dropped_tensors": plan.dropped,
        "ignored_config_keys": plan.ignored_keys,
        "fallbacks": plan.fallbacks,
        "generation_defaults_without_a_place": plan.lost_defaults,
        "initializers": {name: list(weight.sources) for name, weight in plan.graph.weights.items()},
    }


def _facts(plan: Plan, name: str, verdict: str) -> dict[str, Any]:
    return {
        "name": name,
        "version": paritas.__version__,
        "source": plan.checkpoint.name,
        "model_type": plan.model_type,
        "verdict": verdict,
        "target": plan.target.name,
        "dtype": "fp32",
        "context": plan.context,
        "parameters": plan.parameters,
    }


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
