"""The document against the files beside it: tokenizer, genai_config.json, generation_config.json."""

from collections.abc import Mapping
from typing import Any

from paritas.lint.decoders import decoder_of
from paritas.lint.document import Document
from paritas.lint.fault import Findings, Values, doubt, fault, mapping
from paritas.lint.parts import Part, unreachable
from paritas.lint.versions import EOS_SINCE, version_of

TOKENIZER = "tokenizer.json"
_HASHES = ("sha256", "sha512", "sha1", "md5", "digest", "checksum", "fingerprint")
_IDS = {"bos": "bos_token_id", "pad": "pad_token_id"}


def surrounding_findings(document: Document, parts: Mapping[str, Part], genai: Mapping[str, Any] | None) -> Findings:
    """``genai`` is genai_config.json, if there is one."""
    tokenizer: Values = mapping(document.values, "package").get("tokenizer") or {}
    yield from _tokenizer(document, tokenizer)
    yield from _sizes(document, parts)
    yield from _hashes(document)
    if genai is not None:
        yield from _tokens(document, tokenizer, genai.get("model") or {})
        yield from _defaults(document, genai.get("search") or {})
        yield from _context(document, genai.get("model") or {})


def _tokenizer(document: Document, tokenizer: Values) -> Findings:
    for place, artifact in enumerate(tokenizer.get("artifacts") or ()):
        if (why := unreachable(document.folder, artifact["location"])) is not None:
            yield fault(
                "metadata-tokenizer",
                document.at("package", "tokenizer", "artifacts", place),
                f"{artifact['location']!r} {why}",
                "Name a file of the package.",
            )
    if not (document.folder / TOKENIZER).is_file():
        yield doubt(
            "metadata-tokenizer",
            TOKENIZER,
            "onnx-genai loads no package without it",
            "Copy the checkpoint's own beside the graph.",
        )
    ends = mapping(tokenizer, "special_tokens").get("eos_token_id")
    generation = [step for step in document.workflow["steps"] if step.get("termination") == "generation_eos"]
    if generation and not document.canonical and version_of(document) >= EOS_SINCE and not ends:
        yield fault(
            "metadata-tokens",
            document.at("package", "tokenizer", "special_tokens"),
            "the loop ends at end tokens, and there are none",
            "Write eos_token_id, a list.",
        )


def _sizes(document: Document, parts: Mapping[str, Part]) -> Findings:
    told = mapping(document.values, "model").get("vocab_size")
    part = decoder_of(parts)
    port = part.port_of("logits") if part else None
    if part is None or part.graph is None or port is None or port not in part.graph.outputs:
        return
    real = part.graph.outputs[port].shape[-1]
    if told is not None and isinstance(real, int) and told != real:
        yield fault(
            "metadata-vocabulary",
            document.at("model", "vocab_size"),
            f"{told:,} tokens are told, the graph gives {real:,}",
            f"Write {real}.",
        )


def _context(document: Document, model: Mapping[str, Any]) -> Findings:
    told, other = mapping(document.values, "model").get("max_sequence_length"), model.get("context_length")
    if isinstance(told, int) and isinstance(other, int) and told != other:
        yield fault(
            "metadata-context",
            document.at("model", "max_sequence_length"),
            f"{told:,} positions here, {other:,} in genai_config.json",
            "The graph covers one number: write it in both.",
        )


def _tokens(document: Document, tokenizer: Values, model: Mapping[str, Any]) -> Findings:
    """Where a generation starts and stops has to be the same whichever file is read."""
    special: Values = tokenizer.get("special_tokens") or {}
    told = _canonical_ids(special) if document.canonical else special
    if not special:
        return
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        here, there = _each(told.get(key)), _each(model.get(key))
        if here != there and key in model:
            yield fault(
                "metadata-tokens",
                document.at("package", "tokenizer", "special_tokens"),
                f"{key} is {_said(here)} here, {_said(there)} in genai_config.json",
                "Make them the checkpoint's own.",
            )


def _canonical_ids(special: Values) -> Values:
    ids = {role: token["id"] for role, token in special.items()}
    ends = [id_ for role, id_ in ids.items() if role == "eos" or role.startswith("eos_")]
    return {key: ids[role] for role, key in _IDS.items() if role in ids} | ({"eos_token_id": ends} if ends else {})


def _each(ids: Any) -> list[Any]:
    return [] if ids is None else list(ids) if isinstance(ids, list) else [ids]  # pyright: ignore[reportUnknownArgumentType]


def _said(ids: list[Any]) -> str:
    return ", ".join(map(str, ids)) or "not told"


def _defaults(document: Document, search: Mapping[str, Any]) -> Findings:
    told: Values = mapping(document.values, "generation").get("defaults") or {}
    for key, value in told.items():
        if key in search and search[key] != value:
            yield doubt(
                "metadata-defaults",
                document.at("generation", "defaults", key),
                f"{value} here, {search[key]} in genai_config.json",
                "Make them the checkpoint's own.",
            )


def _hashes(document: Document) -> Findings:
    """Integrity is the business of whoever distributes a package; a hash in it is stale after the first edit."""
    for path, key in _keys(document.values, ()):
        if any(word in key.lower() for word in _HASHES):
            yield doubt(
                "metadata-hash", document.at(*path, key), "the standard has no hashes", "Leave it out of the document."
            )


def _keys(values: Any, path: tuple[object, ...]) -> list[tuple[tuple[object, ...], str]]:
    pairs: list[tuple[object, Any]] = []
    if isinstance(values, dict):
        pairs = list(values.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    elif isinstance(values, list):
        pairs = list(enumerate(values))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    found = [(path, str(key)) for key, _ in pairs if isinstance(values, dict)]
    return found + [each for key, value in pairs for each in _keys(value, (*path, key))]
