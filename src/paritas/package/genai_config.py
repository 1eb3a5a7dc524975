"""genai_config.json: what ORT GenAI needs, from the graph's own inputs and the checkpoint's own defaults."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from paritas.spec import Decoder

# ORT GenAI's parser is strict: these are the generation defaults that it has a place for. The neutral value of each is
# written when the checkpoint says nothing, since the runtime's own default differs for some.
_SEARCH = {
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "diversity_penalty": 0.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "num_return_sequences": 1,
    "min_length": 0,
    "early_stopping": True,
}
# In a generation_config.json, but not a default of the search: ids, transformers' own bookkeeping, cache choices.
_NOT_SEARCH = {
    "_from_model_config",
    "bos_token_id",
    "cache_implementation",
    "eos_token_id",
    "pad_token_id",
    "transformers_version",
    "use_cache",
    "max_length",
    "max_new_tokens",
    "output_attentions",
    "output_hidden_states",
}
# ORT GenAI's class by model_type; anything else that is a plain decoder runs as "decoder".
_TYPES = {"llama": "llama", "gemma3_text": "gemma3_text"}


def genai_config(
    graph: ir.Graph,
    spec: Decoder,
    model_type: str,
    token_ids: Mapping[str, Any],
    generation: Mapping[str, Any],
    *,
    shared_buffer: bool,
    context: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration, and the generation defaults that ORT GenAI has no place for.

    Args:
        graph: inputs and outputs are named as the graph names them, and counted on it.
        spec: head sizes.
        model_type: transformers' word.
        token_ids: ``bos_token_id``, ``eos_token_id`` (a number or a list), ``pad_token_id``; absent ones are left out.
        generation: generation_config.json.
        shared_buffer: the graph's attention writes its cache in place.
        context: positions that the graph's tables cover.
    """
    attention = spec.layers[0].attention
    inputs = [value.name or "" for value in graph.inputs]
    outputs = [value.name or "" for value in graph.outputs]
    config: dict[str, Any] = {
        "model": {
            **token_ids,
            "context_length": context,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": attention.head_dim,
                "hidden_size": spec.hidden,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": _pattern(inputs, "past_key_values", "key"),
                    "past_value_names": _pattern(inputs, "past_key_values", "value"),
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": _pattern(outputs, "present", "key"),
                    "present_value_names": _pattern(outputs, "present", "value"),
                },
                "num_attention_heads": attention.heads,
                "num_hidden_layers": sum(name.endswith(".key") for name in inputs),
                "num_key_value_heads": attention.kv_heads,
            },
            "type": _TYPES.get(model_type, "decoder"),
            "vocab_size": spec.vocab,
        },
        "search": {key: default if generation.get(key) is None else generation[key] for key, default in _SEARCH.items()}
        | {"max_length": context, "past_present_share_buffer": shared_buffer},
    }
    lost = {k: v for k, v in generation.items() if v is not None and k not in _NOT_SEARCH and k not in _SEARCH}
    return config, lost


def token_ids(generation: Mapping[str, Any], config: Mapping[str, Any], defaults: Mapping[str, int]) -> dict[str, Any]:
    """bos, eos and pad ids as transformers resolves them.

    generation_config.json goes before config.json, and that before the class's defaults. A list of eos ids is kept
    whole. pad is one number for ORT GenAI: a list's first, and the first eos where there is none.
    """
    ids: dict[str, Any] = {}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = generation.get(key)
        if value is None:
            value = config[key] if key in config else defaults.get(key)  # an explicit null is an answer
        if value is not None:
            ids[key] = value
    pad = first(ids.get("pad_token_id", ids.get("eos_token_id")))
    if pad is not None:
        ids["pad_token_id"] = pad
    return ids


def first(ids: Any) -> int | None:
    """A number, or the first of a list of numbers."""
    if isinstance(ids, Sequence) and not isinstance(ids, str):
        return int(ids[0]) if ids else None  # pyright: ignore[reportUnknownArgumentType]
    return None if ids is None else int(ids)


def _pattern(names: Sequence[str], prefix: str, part: str) -> str:
    pattern = f"{prefix}.%d.{part}"
    if f"{prefix}.0.{part}" not in names:
        raise RuntimeError(f"the graph has no {prefix}.0.{part}")
    return pattern
