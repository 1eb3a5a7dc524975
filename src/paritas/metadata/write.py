"""Writes inference_metadata.yaml, and the policies that it names, into a package whose graph is saved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from paritas.metadata import canonical, released, text
from paritas.metadata.decoder import Decoder, read_decoder
from paritas.metadata.dialect import Dialect
from paritas.metadata.fused import fused
from paritas.metadata.looped import FOLDER, looped, policies
from paritas.metadata.paired import paired, read_drafter
from paritas.metadata.workflow import Document, Speculation, Tokens, Workflow
from paritas.package.vocabulary import Vocabulary
from paritas.policies.policy import Policy
from paritas.runtime.ports import read_ports
from paritas.spec import Decoder as Spec

# generation_config.json -> what the standard has a place for.
DEFAULTS = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "length_penalty",
    "diversity_penalty",
    "no_repeat_ngram_size",
    "num_beams",
    "num_return_sequences",
    "min_length",
    "early_stopping",
)
_NEUTRAL = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""What the sampler's inputs are where the checkpoint asks for no sampling: the best token each time."""
NOT_APPLIED = f"onnx-genai {released.WHEEL} reads them; its Python API applies none of them"
NO_READER = "no released version of onnx-genai reads this dialect"
NO_PLACE = "the standard has no place for it"
PENALTIES = "the policies' sampler has no place for it"


@dataclass(frozen=True)
class Facts:
    """What the metadata says beside the graph.

    Attributes:
        spec: which layers have a window.
        context: positions that the graph covers.
        token_ids: ``bos_token_id``, ``eos_token_id`` (a number or a list), ``pad_token_id``; any may be absent.
        generation: generation_config.json.
        vocabulary: of the package's tokenizer, if it has one.
        homeless: keys of it that change what is generated, beyond those of :data:`DEFAULTS`.
    """

    spec: Spec
    context: int
    token_ids: Mapping[str, Any]
    generation: Mapping[str, Any]
    vocabulary: Vocabulary | None = None
    homeless: Sequence[str] = ()


@dataclass(frozen=True)
class Written:
    """The record of it, for the evidence.

    Attributes:
        dialect: the option's word.
        reader: the release that the dialect is held against; None if no release reads it.
        schema_version: as the document has it; None if none was written.
        policies: files beside it.
        left_out: what the dialect cannot say -> why.
        limits: what was said and is known to be without effect in the runtime -> why.
    """

    dialect: str
    reader: str | None = None
    schema_version: str | None = None
    policies: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: Mapping[str, str] = field(default_factory=dict[str, str])


def write_metadata(folder: Path, model: str, facts: Facts, dialect: Dialect) -> Written:
    """Describe the saved graph ``model`` of the package ``folder``; a drafter is there if it has one."""
    if dialect is Dialect.NONE:
        return Written(dialect.value)
    why_not = _why_not(folder / model)
    if why_not is not None:
        return Written(dialect.value, left_out={text.FILE: why_not})
    decoder = read_decoder(folder / model, facts.spec)
    drafter = read_drafter(folder)
    step_by_step = dialect is Dialect.CANONICAL or drafter is not None
    if step_by_step and "position_ids" in decoder.roles.values():
        return Written(dialect.value, left_out={text.FILE: "no policy makes positions"})
    graphs = policies(decoder, _ends(facts.token_ids)) if step_by_step else []
    workflow, speculation = _workflow(decoder, facts, graphs), None
    if drafter is not None:
        workflow, speculation = paired(workflow, decoder, drafter)
    document = _document(workflow, decoder, facts, speculation)
    values = canonical.document(document) if dialect is Dialect.CANONICAL else released.document(document)
    _save(folder, graphs)
    (folder / text.FILE).write_text(text.dump(values), encoding="utf-8")
    return Written(
        dialect.value,
        None if dialect is Dialect.CANONICAL else f"onnx-genai {released.WHEEL}",
        values["schema_version"],
        tuple(f"{FOLDER}/{graph.name}.onnx" for graph in graphs),
        _left_out(facts, dialect, document, graphs),
        _limits(dialect, document, graphs),
    )


def _workflow(decoder: Decoder, facts: Facts, graphs: Sequence[Policy]) -> Workflow:
    """Step by step where there are policies for it, else as the runtime drives a decoder by itself."""
    if not graphs:
        return fused(decoder, facts.context)
    return looped(decoder, facts.context, graphs, _sampling(facts.generation))


def _save(folder: Path, graphs: Sequence[Policy]) -> None:
    for graph in graphs:
        (folder / FOLDER).mkdir(exist_ok=True)
        (folder / FOLDER / f"{graph.name}.onnx").write_bytes(graph.bytes)


def _document(workflow: Workflow, decoder: Decoder, facts: Facts, speculation: Speculation | None) -> Document:
    ids = facts.token_ids
    return Document(
        workflow=workflow,
        vocab=decoder.vocab,
        context=facts.context,
        tokens=Tokens(ids.get("bos_token_id"), _ends(ids), ids.get("pad_token_id")),
        tokenizer=facts.vocabulary,
        defaults={key: facts.generation[key] for key in DEFAULTS if facts.generation.get(key) is not None},
        speculation=speculation,
    )


def _why_not(model: Path) -> str | None:
    """Why neither dialect can describe the graph; None if both can."""
    ports = read_ports(model)
    if ports.counters:
        return f"it takes {', '.join(counter.name for counter in ports.counters)}, for which there is no role"
    if any(cache.window is not None or cache.fresh[cache.axis - 1] for cache in ports.caches):
        return "its caches are of a fixed length"
    return None


def _left_out(facts: Facts, dialect: Dialect, document: Document, graphs: Sequence[Policy]) -> dict[str, str]:
    """What the dialect has no place for."""
    known = ("min_p",) if graphs else ()
    found = {f"generation.defaults.{key}": NO_PLACE for key in facts.homeless if key not in known}
    if dialect is Dialect.CANONICAL and document.speculation is not None and document.speculation.scale != 1.0:
        found["speculative.proposal_execution.token_embedding.scale"] = NO_PLACE
    return found


def _limits(dialect: Dialect, document: Document, graphs: Sequence[Policy]) -> dict[str, str]:
    """What is said, and has no effect as far as is known."""
    names = _PENALTIES if graphs else dict.fromkeys(document.defaults)
    why = PENALTIES if graphs else NOT_APPLIED
    found = {
        f"generation.defaults.{key}": why
        for key, neutral in names.items()
        if document.defaults.get(key, neutral) != neutral
    }
    return found | ({text.FILE: NO_READER} if dialect is Dialect.CANONICAL else {})


_PENALTIES = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0}
"""Defaults that the policies' sampler has no place for, and the value of each that changes nothing."""


def _ends(ids: Mapping[str, Any]) -> tuple[int, ...]:
    ends = ids.get("eos_token_id")
    if ends is None:
        return ()
    return tuple(cast(list[int], ends)) if isinstance(ends, list) else (ends,)


def _sampling(generation: Mapping[str, Any]) -> dict[str, float]:
    """Inputs of the sampler, where nobody asks for others: the checkpoint's own, or the best token each time."""
    if not generation.get("do_sample"):
        return dict(_NEUTRAL)
    neutral = _NEUTRAL | {"temperature": 1.0}
    return {key: value if (given := generation.get(key)) is None else given for key, value in neutral.items()}
