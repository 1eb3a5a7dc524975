"""Steps 1 to 5 of an export: everything that is known before a weight is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paritas import account, layout, providers
from paritas.checkpoint import Checkpoint, Tensor
from paritas.checkpoint.opening import text_only
from paritas.config import Config
from paritas.drafters import MODEL_TYPES as DRAFTERS
from paritas.errors import ParitasError, Unsupported
from paritas.families import Family, family_of
from paritas.graph.builder import Graph
from paritas.graph.decoder import build
from paritas.graph.narrow import narrow
from paritas.hidden import LAST, layers
from paritas.layout import Layout
from paritas.measuring.choose import Budget
from paritas.metadata.dialect import Dialect
from paritas.package import link
from paritas.package.genai_config import genai_config, token_ids
from paritas.package.tokenizer import tokenizer_files
from paritas.quant.recipe import Recipe
from paritas.spec import Decoder
from paritas.targets import Target, sliding
from paritas.targets.sliding import SlidingCache
from paritas.weights import Stack, Weight


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
        recipe: what matrices are stored as.
        provider: the execution provider that the package is for.
        budget: what bits of matrices are chosen by; those of the recipe are the fewest.
        hidden_states: layers whose hidden states the graph gives too: numbers, or ``last``.
        drafter: a checkpoint that guesses ahead of this one, to be written beside it.
        metadata: which inference_metadata.yaml the package gets.
        last_logits: the graph gives the logits of the last position alone, unless a call asks for more; None leaves it
            to :func:`gives_last`.
        layout: how the matrices of fp32 lie, and where.
        sliding_cache: what layers with a window keep.
    """

    text_only: bool = False
    context: int | None = None
    tokenizer: bool = True
    drop: Sequence[str] = ()
    ignore_keys: Sequence[str] = ()
    force: bool = False
    allow_unproven: bool = False
    recipe: Recipe = field(default_factory=Recipe)
    provider: str = providers.HERE
    budget: Budget | None = None
    hidden_states: Sequence[str] = ()
    drafter: str | Path | None = None
    metadata: Dialect = Dialect.DEFAULT
    last_logits: bool | None = None
    layout: Layout = Layout.FAST
    sliding_cache: SlidingCache = SlidingCache.FULL


@dataclass(frozen=True)
class Plan:
    """Everything that is known before a weight is read."""

    checkpoint: Checkpoint
    spec: Decoder
    graph: Graph
    target: Target
    recipe: Recipe
    provider: str
    context: int
    dropped: Mapping[str, str]
    ignored_keys: Mapping[str, str]
    files: Mapping[str, bytes]
    runtime_config: Mapping[str, Any]
    lost_defaults: Mapping[str, Any]
    layout: Layout
    sliding_cache: SlidingCache

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
    def stored(self) -> dict[str, list[str]]:
        """How matrices are stored -> their names; matrices of experts, which no recipe asks about, among them."""
        found: dict[str, list[str]] = {}
        experts = {n: w for n, w in self.graph.weights.items() if isinstance(w, Stack) and len(w.shape) == 3}
        for name, weight in (*self.graph.matrices.items(), *experts.items()):
            found.setdefault(str(weight.storage), []).append(name)
        return found

    @property
    def bytes(self) -> int:
        """Of the data file, without padding."""
        return sum(weight.bytes for weight in self.written.values())

    @property
    def written(self) -> Mapping[str, Weight]:
        """What has to be written; the rest lies in the checkpoint's own files."""
        linked = self.layout is Layout.LINK
        return {name: each for name, each in self.graph.weights.items() if not (linked and link.usable(each))}

    @property
    def parameters(self) -> int:
        """Numbers that come from the checkpoint."""
        return sum(weight.parameters for weight in self.graph.weights.values())


def prepare(checkpoint: Checkpoint, target: Target, options: Options) -> Plan:
    """Steps 1 to 5: spec, accounting, graph. Reads no weight."""
    providers.check(options.provider, options.recipe.dtype)
    checkpoint = _text_model(checkpoint, options)
    config = Config(checkpoint.config, checkpoint.config_place)
    family = family_of(config)
    config.must_be("is_encoder_decoder", (None, False), "only decoders are exported")
    spec = read_spec(family, config)
    ignored = config.finish(options.ignore_keys)
    target.check(spec)
    recipe = _recipe(options, spec, target)
    target = layout.target_for(options.layout, target, recipe)
    tensors, context = account.renamed(checkpoint.tensors, family.RENAMES), _context(spec, options.context)
    graph = _graph(tensors, spec, target, recipe, context, options)
    windowed = _windowed(graph, spec, target, context, options)
    runtime_config, lost = genai_config(
        graph.ir,
        spec,
        str(checkpoint.config["model_type"]),
        token_ids(checkpoint.generation, checkpoint.config, family.TOKEN_IDS),
        checkpoint.generation,
        shared_buffer=target.shares_cache_buffers(spec),
        context=context,
        session_options=_session_options(options),
        windowed=windowed,
    )
    return Plan(
        checkpoint=checkpoint,
        spec=spec,
        graph=graph,
        target=target,
        recipe=recipe,
        provider=options.provider,
        context=context,
        dropped=account.dropped(tensors, graph.weights, spec, [*family.DROPPED, *_dropping(options)]),
        ignored_keys=ignored,
        files=tokenizer_files(checkpoint.tokenizer_files, str(checkpoint.path)) if options.tokenizer else {},
        runtime_config=runtime_config,
        lost_defaults=lost,
        layout=options.layout,
        sliding_cache=options.sliding_cache,
    )


def _graph(
    tensors: Mapping[str, Tensor], spec: Decoder, target: Target, recipe: Recipe, context: int, options: Options
) -> Graph:
    graph = Graph(tensors, target.opsets(spec), recipe.storage)
    last = gives_last(options, target)
    build(graph, spec, target, context, layers(spec, wanted_states(options)), last_logits=last)
    narrow(graph, recipe.activations)
    recipe.check_names(graph.matrices)
    return graph


def gives_last(options: Options, target: Target) -> bool:
    """Whether the graph gives the logits of the last position alone.

    A text goes on from it, and a prompt then costs the head once. Not by default where others than
    :mod:`paritas.runtime` may need several rows: with a drafter, with the workflows of canonical metadata, and in
    standard operators.
    """
    if options.last_logits is not None:
        return options.last_logits
    return target.name != "onnx" and options.drafter is None and options.metadata is not Dialect.CANONICAL


def _dropping(options: Options) -> Sequence[tuple[str, str]]:
    """Rules of the command line."""
    return [(pattern, "declared without effect (--drop)") for pattern in options.drop]


def _windowed(graph: Graph, spec: Decoder, target: Target, context: int, options: Options) -> Sequence[int]:
    """The layers whose caches keep to their window; the graph is changed for it."""
    if options.sliding_cache is SlidingCache.FULL:
        return ()
    if options.drafter is not None:
        raise Unsupported(
            "sliding-cache-unsupported",
            "the caches cannot keep to a window: the drafter looks at keys that have left it",
            hint="Leave --sliding-cache out.",
        )
    layers, window = sliding.windows(target, spec, context, options.provider)
    sliding.keep_to_windows(graph, window)
    return layers


def _session_options(options: Options) -> dict[str, Any]:
    return {"provider_options": [*providers.options(options.provider)], **layout.session_entries(options.layout)}


def wanted_states(options: Options) -> Sequence[str]:
    """A drafter is seeded with the last hidden state."""
    return (*options.hidden_states, *([LAST] if options.drafter is not None else []))


def _text_model(checkpoint: Checkpoint, options: Options) -> Checkpoint:
    if checkpoint.config.get("model_type") in DRAFTERS:
        raise Unsupported(
            "drafter-alone",
            "the checkpoint is a drafter: it guesses ahead of another model, and answers nothing alone",
            place=checkpoint.config_place,
            hint="paritas export TARGET OUT --drafter CHECKPOINT writes it beside the model that it was trained for.",
        )
    if not options.text_only and isinstance(checkpoint.config.get("text_config"), dict):
        raise Unsupported(
            "checkpoint-multimodal",
            "the checkpoint holds more than a text model",
            place=checkpoint.config_place,
            hint="--text-only exports its text half.",
        )
    return text_only(checkpoint) if options.text_only else checkpoint


def _recipe(options: Options, spec: Decoder, target: Target) -> Recipe:
    wanted = options.recipe
    if options.budget is not None:
        wanted.check_integers()
    if (reason := target.cannot_store(wanted.matrices)) is not None:
        raise Unsupported(
            "precision-unsupported",
            f"target {target.name} writes no {wanted.dtype}: {reason}",
            hint=f"--target ort --dtype {wanted.dtype}, or --dtype fp32.",
        )
    wanted = wanted.with_tied_head() if spec.tied_head else wanted
    return wanted if options.provider == providers.HERE else wanted.with_narrow_activations()


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
