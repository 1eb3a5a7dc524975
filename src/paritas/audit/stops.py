"""Where a generation starts and stops, and its defaults: genai_config.json against the checkpoint."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from paritas.audit.finding import Finding
from paritas.audit.texts import Words
from paritas.checkpoint import Checkpoint
from paritas.families import families

_FILE = "genai_config.json"
# Defaults of a generation that ORT GenAI has a place for, with the value that changes nothing.
_PLACED: Mapping[str, Any] = {
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "min_length": 0,
}
# Further ones that change what is generated, and have none.
_UNPLACED: Mapping[str, Any] = {
    "min_p": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "encoder_repetition_penalty": 1.0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_eos_token_id": None,
    "forced_bos_token_id": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
}
_SAMPLED = ("temperature", "top_k", "top_p")


def stop_findings(config: Mapping[str, Any], checkpoint: Checkpoint, words: Words) -> Iterator[Finding]:
    """Token ids and defaults of a generation."""
    model = cast(Mapping[str, Any], config.get("model", {}))
    stops = set(_ids(model.get("eos_token_id")))
    wanted = _ids(_resolved(checkpoint, "eos_token_id"))
    if lost := [f"{i} ({words.token(i)})" if words.token(i) else str(i) for i in wanted if i not in stops]:
        yield Finding(
            "eos-missing",
            "error",
            f"{_FILE}, model.eos_token_id",
            f"a generation does not stop at {', '.join(lost)}, the checkpoint's does",
            f"Write {json.dumps(wanted)}.",
        )
    end = words.turn_end()
    if end is not None and end not in stops and end not in wanted:
        yield Finding(
            "turn-end-not-eos",
            "warning",
            f"{_FILE}, model.eos_token_id",
            f"the chat template ends a turn with {words.token(end)} ({end}), which stops neither the package nor "
            "the checkpoint",
            f"Add {end} to eos_token_id: an answer would go on after its end.",
        )
    yield from _one("bos-wrong", "bos_token_id", model, checkpoint, words)
    yield from _one("pad-wrong", "pad_token_id", model, checkpoint, words)
    yield from _defaults(config, checkpoint.generation)


def _ids(value: Any) -> list[int]:
    values = cast(list[Any], value) if isinstance(value, list) else [value]
    return [each for each in values if type(each) is int and each >= 0]


def _resolved(checkpoint: Checkpoint, key: str) -> Any:
    """As transformers resolves a token id: generation_config.json, config.json, the class's default."""
    if checkpoint.generation.get(key) is not None:
        return checkpoint.generation[key]
    family = families().get(str(checkpoint.config.get("model_type")))
    return checkpoint.config.get(key, family.TOKEN_IDS.get(key) if family else None)


def _one(code: str, key: str, model: Mapping[str, Any], checkpoint: Checkpoint, words: Words) -> Iterator[Finding]:
    wanted, told = _ids(_resolved(checkpoint, key)), _ids(model.get(key))
    if wanted and told[:1] != wanted[:1]:
        name = words.token(wanted[0])
        yield Finding(
            code,
            "warning",
            f"{_FILE}, model.{key}",
            f"it is {told[0] if told else 'not there'}, the checkpoint's is {wanted[0]}{f' ({name})' if name else ''}",
            f"Write {wanted[0]}.",
        )


def _defaults(config: Mapping[str, Any], generation: Mapping[str, Any]) -> Iterator[Finding]:
    given: Any = config.get("search")
    search = cast(dict[str, Any], given) if isinstance(given, dict) else dict[str, Any]()
    sampled = bool(generation.get("do_sample"))
    for key, neutral in _PLACED.items():
        wanted = generation.get(key)
        if wanted is None or (key in _SAMPLED and not sampled):
            continue
        told = search.get(key, neutral)
        if told != wanted:
            yield Finding(
                "generation-default-lost",
                "warning",
                f"{_FILE}, search.{key}",
                f"it is {told}, generation_config.json says {wanted}: other tokens are generated",
                f"Write {wanted}.",
            )
    lost = [key for key, neutral in _UNPLACED.items() if generation.get(key) not in (None, neutral)]
    if lost:
        yield Finding(
            "generation-default-unplaced",
            "note",
            f"{_FILE}, search",
            f"ORT GenAI has no place for {', '.join(lost)} of generation_config.json",
            "Set them in the program that generates.",
        )
