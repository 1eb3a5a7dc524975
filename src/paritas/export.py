"""checkpoint -> spec -> graph -> weights -> package -> evidence. Needs neither torch nor transformers."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import paritas
from paritas import account
from paritas.checkpoint import Checkpoint, open_checkpoint
from paritas.checkpoint.opening import text_only
from paritas.config import Config
from paritas.errors import ParitasError, Unsupported
from paritas.families import Family, family_of
from paritas.graph.builder import Graph
from paritas.graph.decoder import build
from paritas.package.card import card
from paritas.package.data import write_data
from paritas.package.genai_config import genai_config, token_ids
from paritas.package.model import DATA, write_model
from paritas.package.staging import check_output, publish, staging
from paritas.package.tokenizer import tokenizer_files
from paritas.preflight import check_resources
from paritas.progress import Progress, silent
from paritas.spec import Decoder
from paritas.targets import Target

NOT_TESTED = "not tested"
PROVEN = "proven"


@dataclass(frozen=True)
class Options:
    """What a person decides about an export.

    Attributes:
        text_only: take the text half of a multimodal checkpoint.
        context: positions that the package covers; the checkpoint's own number if None.
        tokenizer: carry the tokenizer over (without one, text cannot go in).
        drop: patterns of tensors that are declared without effect.
        ignore_keys: configuration keys that are declared without effect.
        force: replace an existing package.
        allow_unproven: keep a package whose verdict is not ``proven``.
    """

    text_only: bool = False
    context: int | None = None
    tokenizer: bool = True
    drop: Sequence[str] = ()
    ignore_keys: Sequence[str] = ()
    force: bool = False
    allow_unproven: bool = False


@dataclass(frozen=True)
class Plan:
    """Everything that is known before a weight is read."""

    checkpoint: Checkpoint
    spec: Decoder
    graph: Graph
    target: Target
    context: int
    dropped: Mapping[str, str]
    ignored_keys: Mapping[str, str]
    files: Mapping[str, bytes]
    token_ids: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        """Of the data file, without padding."""
        return sum(weight.bytes for weight in self.graph.weights.values())

    @property
    def parameters(self) -> int:
        """Numbers that come from the checkpoint."""
        return sum(weight.bytes // 4 for weight in self.graph.weights.values() if weight.sources)


@dataclass(frozen=True)
class Exported:
    """What an export did."""

    out: Path
    verdict: str
    seconds: float
    bytes: int
    parameters: int
    kept: bool
    lost_defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])


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
        options: see :class:`Options`.
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
        lost = write_package(plan, folder, progress)
        seconds = time.perf_counter() - started
        verdict = NOT_TESTED if prove is None else prove(folder)
        (folder / "README.md").write_text(card(_facts(plan, out.name, verdict)), encoding="utf-8")
        kept = prove is None or verdict == PROVEN or options.allow_unproven
        if kept:
            publish(folder, out)
    return Exported(out, verdict, seconds, plan.bytes, plan.parameters, kept, lost)


def prepare(checkpoint: Checkpoint, target: Target, options: Options) -> Plan:
    """Steps 1 to 5: spec, accounting, graph. Reads no weight."""
    if options.text_only:
        checkpoint = text_only(checkpoint)
    elif isinstance(checkpoint.config.get("text_config"), dict):
        raise Unsupported(
            "checkpoint-multimodal",
            "the checkpoint holds more than a text model",
            place=checkpoint.config_place,
            hint="--text-only exports its text half.",
        )
    config = Config(checkpoint.config, checkpoint.config_place)
    family = family_of(config)
    config.must_be("quantization_config", (None,), "quantised checkpoints have to be dequantised first")
    config.must_be("is_encoder_decoder", (None, False), "only decoders are exported")
    spec = read_spec(family, config)
    ignored = config.finish(options.ignore_keys)
    target.check(spec)
    context = _context(spec, options.context)
    tensors = account.renamed(checkpoint.tensors, family.RENAMES)
    graph = Graph(tensors, target.opsets)
    build(graph, spec, target, context)
    rules = [*family.DROPPED, *((pattern, "declared without effect (--drop)") for pattern in options.drop)]
    return Plan(
        checkpoint=checkpoint,
        spec=spec,
        graph=graph,
        target=target,
        context=context,
        dropped=account.dropped(tensors, graph.weights, spec, rules),
        ignored_keys=ignored,
        files=tokenizer_files(checkpoint.tokenizer_files, str(checkpoint.path)) if options.tokenizer else {},
        token_ids=token_ids(checkpoint.generation, checkpoint.config, family.TOKEN_IDS),
    )


def read_spec(family: Family, config: Config) -> Decoder:
    """The spec of a configuration (a function of its own so that the tests' mutants have a place to stand)."""
    return family.read(config)


def write_package(plan: Plan, folder: Path, progress: Progress) -> Mapping[str, Any]:
    """Steps 6 and 7: weights, graph, runtime configuration, tokenizer, record. Returns the lost generation defaults."""
    started = time.perf_counter()
    written = 0

    def advance(count: int) -> None:
        nonlocal written
        written += count
        progress("writing weights", written, plan.bytes)

    placed, digest = write_data(folder / DATA, plan.graph.weights, advance)
    model_type = str(plan.checkpoint.config["model_type"])
    source = {
        "paritas.source": plan.checkpoint.path.name,
        "paritas.model_type": model_type,
        "paritas.target": plan.target.name,
    }
    write_model(folder, plan.graph, placed, source)
    runtime, lost = genai_config(
        plan.graph.ir,
        plan.spec,
        model_type,
        plan.token_ids,
        plan.checkpoint.generation,
        shared_buffer=plan.target.shares_cache_buffers,
        context=plan.context,
    )
    _write_json(folder / "genai_config.json", runtime)
    for name, content in plan.files.items():
        (folder / name).write_bytes(content)
    (folder / "evidence").mkdir()
    record = _record(plan, digest, lost, time.perf_counter() - started)
    _write_json(folder / "evidence" / "export.json", record)
    return lost


def _context(spec: Decoder, wanted: int | None) -> int:
    if wanted is None:
        return spec.context
    if not 1 <= wanted <= spec.context:
        raise ParitasError(
            "context-too-long",
            f"--context {wanted:,} is not between 1 and the checkpoint's {spec.context:,} positions",
            hint="A longer context needs a checkpoint that was made for it.",
        )
    return wanted


def _record(plan: Plan, digest: str, lost: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "paritas": paritas.__version__,
        "source": plan.checkpoint.path.name,
        "model_type": plan.checkpoint.config["model_type"],
        "target": plan.target.name,
        "dtype": "fp32",
        "context": plan.context,
        "parameters": plan.parameters,
        "data_sha256": digest,
        "seconds": round(seconds, 2),
        "dropped_tensors": plan.dropped,
        "ignored_config_keys": plan.ignored_keys,
        "generation_defaults_without_a_place": lost,
        "initializers": {name: list(weight.sources) for name, weight in plan.graph.weights.items()},
    }


def _facts(plan: Plan, name: str, verdict: str) -> dict[str, Any]:
    return {
        "name": name,
        "version": paritas.__version__,
        "source": plan.checkpoint.path.name,
        "model_type": plan.checkpoint.config["model_type"],
        "verdict": verdict,
        "target": plan.target.name,
        "dtype": "fp32",
        "context": plan.context,
        "parameters": plan.parameters,
    }


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
