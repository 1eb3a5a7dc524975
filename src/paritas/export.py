"""checkpoint -> spec -> graph -> weights -> package -> evidence. Needs neither torch nor transformers."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import paritas
from paritas import providers
from paritas.checkpoint import Checkpoint, open_checkpoint
from paritas.layout import Layout
from paritas.metadata.dialect import Dialect
from paritas.metadata.write import Facts, write_metadata
from paritas.package.card import card
from paritas.package.data import write_data
from paritas.package.link import Linked, link_weights, record
from paritas.package.model import DATA, MODEL, write_model
from paritas.package.staging import check_output, publish, staging
from paritas.package.tokenizer import reading
from paritas.package.vocabulary import Vocabulary
from paritas.pair import plan_drafter, write_drafter
from paritas.peak import memory, peak_memory
from paritas.plan import Options, Plan, prepare
from paritas.preflight import check_resources, memory_forecast
from paritas.progress import Progress, silent
from paritas.quant.recipe import Recipe
from paritas.targets import Target
from paritas.weights import Float

NOT_TESTED = "not tested"
PROVEN = "proven"


@dataclass(frozen=True)
class Exported:
    """What an export did.

    Attributes:
        out: the package's folder.
        verdict: of its verification.
        seconds: all but the verification.
        bytes: that were to be written as weights.
        parameters: numbers of the checkpoint.
        kept: whether the package is there.
        lost_defaults: of generation_config.json, what ORT GenAI has no place for.
        budget: how bits were chosen, if they were.
        memory, memory_forecast: bytes that it took at most beside the program, and that it was expected to take.
    """

    out: Path
    verdict: str
    seconds: float
    bytes: int
    parameters: int
    kept: bool
    lost_defaults: Mapping[str, Any]
    budget: Mapping[str, Any] | None = None
    memory: int = 0
    memory_forecast: int = 0


def export(
    model: str | Path | Checkpoint,
    out: Path,
    target: Target,
    options: Options | None = None,
    prove: Callable[[Path], str] | None = None,
    progress: Progress = silent,
) -> Exported:
    """Export ``model`` as a package.

    Args:
        model: folder, GGUF file or Hub id, or the checkpoint itself.
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
    started, before = time.perf_counter(), memory()
    check_output(out, force=options.force)
    plan = prepare(open_checkpoint(model), target, options)
    drafter = None if options.drafter is None else plan_drafter(open_checkpoint(options.drafter), plan)
    measured = 4 * plan.parameters if _is_measured(plan, options, prove) else 0
    check_resources(out, plan.bytes + measured + (drafter.bytes if drafter else 0), plan.graph.weights)
    expected = memory_forecast(plan.graph.weights, plan.files) + _mapped(plan.checkpoint)
    with staging(out) as folder, reading(plan.files, str(plan.checkpoint.path)) as tokenizer:
        progress = failing_with(tokenizer, progress)
        plan, budget = _within_budget(plan, options, folder, progress)
        write_package(plan, folder, progress)
        if budget is not None:
            _write_json(folder / "evidence" / "budget.json", budget)
        if prove is not None and plan.recipe.dtype == Float.FP16:
            _write_ranges(plan, options, folder)
        if drafter is not None:
            write_drafter(drafter, folder, lambda count: progress("writing the drafter", count, drafter.bytes))
        _write_json(
            folder / "evidence" / "inference_metadata.json",
            describe(plan, folder, options.metadata, tokenizer.result()),
        )
        seconds, taken = time.perf_counter() - started, peak_memory() - before
        verdict = NOT_TESTED if prove is None else prove(folder)
        (folder / "README.md").write_text(card(_facts(plan, out.name, verdict)), encoding="utf-8")
        kept = prove is None or verdict == PROVEN or options.allow_unproven
        if kept:
            publish(folder, out)
    return Exported(
        out, verdict, seconds, plan.bytes, plan.parameters, kept, plan.lost_defaults, budget, taken, expected
    )


def _within_budget(
    plan: Plan, options: Options, folder: Path, progress: Progress
) -> tuple[Plan, Mapping[str, Any] | None]:
    """The plan with bits chosen for each matrix, and the record of the choice, if there is a budget."""
    if options.budget is None:
        return plan, None
    from paritas.measuring.budget import within_budget  # measuring runs a package, as few exports have to

    chosen, record = within_budget(_in_fp32(plan, options), plan.recipe, options.budget, folder, progress)
    return prepare(plan.checkpoint, plan.target, replace(options, recipe=chosen)), record


def _write_ranges(plan: Plan, options: Options, folder: Path) -> None:
    from paritas.measuring.ranges import fp16_ranges

    _write_json(folder / "evidence" / "ranges.json", fp16_ranges(_in_fp32(plan, options), folder))


def _is_measured(plan: Plan, options: Options, prove: object) -> bool:
    """Whether a package of fp32 is written for a while."""
    return options.budget is not None or (prove is not None and plan.recipe.dtype == Float.FP16)


def _in_fp32(plan: Plan, options: Options) -> Plan:
    return prepare(plan.checkpoint, plan.target, replace(options, recipe=Recipe(), budget=None))


def _mapped(checkpoint: Checkpoint) -> int:
    """Bytes of a GGUF file, which is mapped: its pages count as ours once they have been read."""
    return checkpoint.path.stat().st_size if checkpoint.path.suffix == ".gguf" else 0


def write_package(plan: Plan, folder: Path, progress: Progress) -> None:
    """Steps 6 and 7: weights, graph, runtime configuration, tokenizer, record."""
    started = time.perf_counter()
    written, total = 0, plan.bytes

    def advance(count: int) -> None:
        nonlocal written
        written += count
        progress("writing weights", written, total)

    linked = link_weights(plan.graph, folder) if plan.layout is Layout.LINK else ()
    placed, digest = write_data(folder / DATA, plan.written, advance)
    facts = {"source": plan.checkpoint.name, "model_type": plan.model_type, "target": plan.target.name}
    write_model(folder, plan.graph, placed, {f"paritas.{key}": value for key, value in facts.items()})
    _write_json(folder / "genai_config.json", plan.runtime_config)
    for name, content in plan.files.items():
        (folder / name).write_bytes(content)
    (folder / "evidence").mkdir()
    _write_json(folder / "evidence" / "export.json", _record(plan, digest, linked, time.perf_counter() - started))


def failing_with(check: Future[Any], progress: Progress) -> Progress:
    """The same, and what the check finds wrong stops the work at its next step."""

    def told(step: str, done: int, total: int) -> None:
        if check.done():
            check.result()
        progress(step, done, total)

    return told


def describe(plan: Plan, folder: Path, dialect: Dialect, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """inference_metadata.yaml of the graphs that were saved; gives the record of it."""
    ids = {key: plan.runtime_config["model"].get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    facts = Facts(plan.spec, plan.context, ids, plan.checkpoint.generation, vocabulary, tuple(plan.lost_defaults))
    return asdict(write_metadata(folder, MODEL, facts, dialect))


def _record(plan: Plan, digest: str, linked: Sequence[Linked], seconds: float) -> dict[str, Any]:
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "paritas": paritas.__version__,
        "source": plan.checkpoint.name,
        "quantised": plan.checkpoint.quantised,
        "adapter": None if plan.checkpoint.adapter is None else plan.checkpoint.adapter.resolve().name,
        "model_type": plan.model_type,
        "target": plan.target.name,
        "dtype": plan.recipe.dtype,
        "recipe": str(plan.recipe),
        "provider": plan.provider,
        "provider_verdict": providers.verdict(plan.provider),
        "matrices": plan.stored,
        "bytes": plan.bytes,
        "context": plan.context,
        "parameters": plan.parameters,
        "layout": plan.layout,
        "sliding_cache": plan.sliding_cache,
        "data_sha256": digest,
        "linked": record(linked),
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
        "dtype": plan.recipe.dtype,
        "stored": "; ".join(f"{how} ({len(names)})" for how, names in plan.stored.items()),
        "provider": plan.provider,
        "bytes": plan.bytes,
        "context": plan.context,
        "parameters": plan.parameters,
    }


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
