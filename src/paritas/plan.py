"""Steps 1 to 5 of an export: everything that is known before a weight is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paritas import account
from paritas.checkpoint import Checkpoint
from paritas.checkpoint.opening import text_only
from paritas.config import Config
from paritas.errors import ParitasError, Unsupported
from paritas.families import Family, family_of
from paritas.graph.builder import Graph
from paritas.graph.decoder import build
from paritas.package.genai_config import genai_config, token_ids
from paritas.package.tokenizer import tokenizer_files
from paritas.spec import Decoder
from paritas.targets import Target


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
    runtime_config: Mapping[str, Any]
    lost_defaults: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        """transformers' word."""
        return str(self.checkpoint.config["model_type"])

    @property
    def fallbacks(self) -> dict[str, list[int]]:
        """What the target could not write in its first choice of operators -> numbers of the layers."""
        found: dict[str, list[int]] = {}
        for index, layer in enumerate(self.spec.layers):
            if (reason := self.target.falls_back(layer)) is not None:
                found.setdefault(reason, []).append(index)
        return found

    @property
    def bytes(self) -> int:
        """Of the data file, without padding."""
        return sum(weight.bytes for weight in self.graph.weights.values())

    @property
    def parameters(self) -> int:
        """Numbers that come from the checkpoint."""
        return sum(weight.bytes // 4 for weight in self.graph.weights.values() if weight.sources)


def prepare(checkpoint: Checkpoint, target: Target, options: Options) -> Plan:
    """Steps 1 to 5: spec, accounting, graph. Reads no weight."""
    checkpoint = _text_model(checkpoint, options)
    config = Config(checkpoint.config, checkpoint.config_place)
    family = family_of(config)
    config.must_be("quantization_config", (None,), "quantised checkpoints have to be dequantised first")
    config.must_be("is_encoder_decoder", (None, False), "only decoders are exported")
    spec = read_spec(family, config)
    ignored = config.finish(options.ignore_keys)
    target.check(spec)
    context = _context(spec, options.context)
    tensors = account.renamed(checkpoint.tensors, family.RENAMES)
    graph = Graph(tensors, target.opsets(spec))
    build(graph, spec, target, context)
    rules = [*family.DROPPED, *((pattern, "declared without effect (--drop)") for pattern in options.drop)]
    runtime_config, lost = genai_config(
        graph.ir,
        spec,
        str(checkpoint.config["model_type"]),
        token_ids(checkpoint.generation, checkpoint.config, family.TOKEN_IDS),
        checkpoint.generation,
        shared_buffer=target.shares_cache_buffers(spec),
        context=context,
    )
    return Plan(
        checkpoint=checkpoint,
        spec=spec,
        graph=graph,
        target=target,
        context=context,
        dropped=account.dropped(tensors, graph.weights, spec, rules),
        ignored_keys=ignored,
        files=tokenizer_files(checkpoint.tokenizer_files, str(checkpoint.path)) if options.tokenizer else {},
        runtime_config=runtime_config,
        lost_defaults=lost,
    )


def _text_model(checkpoint: Checkpoint, options: Options) -> Checkpoint:
    if not options.text_only and isinstance(checkpoint.config.get("text_config"), dict):
        raise Unsupported(
            "checkpoint-multimodal",
            "the checkpoint holds more than a text model",
            place=checkpoint.config_place,
            hint="--text-only exports its text half.",
        )
    return text_only(checkpoint) if options.text_only else checkpoint


def read_spec(family: Family, config: Config) -> Decoder:
    """The spec of a configuration (a function of its own so that the tests' mutants have a place to stand)."""
    return family.read(config)


def _context(spec: Decoder, wanted: int | None) -> int:
    if wanted is None:
        return spec.reach
    if not 1 <= wanted <= spec.reach:
        raise ParitasError(
            "context-too-long",
            f"--context {wanted:,} is not between 1 and the checkpoint's {spec.reach:,} positions",
            hint="Leave --context out to cover all of them; a longer context needs a checkpoint that was made for it.",
        )
    return wanted
