"""genai_config.json: what ORT GenAI needs, from the graph's own inputs and the checkpoint's own defaults."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import onnx_ir as ir

from paritas.errors import ParitasError
from paritas.spec import Attention, Decoder, LongRope, ShortConvolution

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
    "early_stopping": False,
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
_TYPES = frozenset(
    {
        "gemma",
        "gemma2",
        "gemma3_text",
        "gemma4_text",
        "granite",
        "lfm2",
        "llama",
        "mistral",
        "nemotron",
        "phi3",
        "qwen2",
        "qwen3",
        "smollm3",
    }
)


def genai_config(
    graph: ir.Graph,
    spec: Decoder,
    model_type: str,
    token_ids: Mapping[str, Any],
    generation: Mapping[str, Any],
    *,
    shared_buffer: bool,
    context: int,
    session_options: Mapping[str, Any],
    windowed: Sequence[int] = (),
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
        session_options: ``provider_options``, the execution providers beside the CPU as ORT GenAI names them, and
            entries of ONNX Runtime's session configuration.
        windowed: layers whose caches keep to their window, which is one for all of them.

    Raises:
        ParitasError: ``generation-value-wrong``.
    """
    attention = next(layer.mixer for layer in spec.layers if isinstance(layer.mixer, Attention))
    convolutions = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, ShortConvolution)]
    inputs = [value.name or "" for value in graph.inputs]
    outputs = [value.name or "" for value in graph.outputs]
    config: dict[str, Any] = {
        "model": {
            **token_ids,
            "context_length": context,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", **session_options},
                "filename": "model.onnx",
                "head_size": attention.head_dim,
                "hidden_size": spec.hidden,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": _pattern(inputs, "past_key_values", "key"),
                    "past_value_names": _pattern(inputs, "past_key_values", "value"),
                    **({"past_conv_names": _pattern(inputs, "past", "conv")} if convolutions else {}),
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": _pattern(outputs, "present", "key"),
                    "present_value_names": _pattern(outputs, "present", "value"),
                    **({"present_conv_names": _pattern(outputs, "present", "conv")} if convolutions else {}),
                },
                "num_attention_heads": attention.heads,
                "num_hidden_layers": sum(name.endswith((".key", ".conv")) for name in inputs),
                "num_key_value_heads": attention.kv_heads,
                **_layers_apart(spec, convolutions),
                **_sliding(spec, windowed),
            },
            "type": _type(model_type, spec),
            "vocab_size": spec.vocab,
        },
        "search": {key: _search_value(generation, key) for key in _SEARCH}
        | {"max_length": context, "past_present_share_buffer": shared_buffer},
    }
    lost = {k: v for k, v in generation.items() if v is not None and k not in _NOT_SEARCH and k not in _SEARCH}
    return config, lost


def _layers_apart(spec: Decoder, convolutions: Sequence[ShortConvolution]) -> dict[str, Any]:
    """Which layers have which state, where not all have keys and values."""
    if not convolutions:
        return {}
    return {"layer_types": [layer.kind for layer in spec.layers], "conv_cache_size": convolutions[0].kernel - 1}


def _sliding(spec: Decoder, windowed: Sequence[int]) -> dict[str, Any]:
    """Caches that keep to their window have room for that and what the device's kernel wants beyond (on the CPU, 16).

    More room is slower there (benchmarks/window_cache.py): attention goes over all that a cache holds.
    """
    if not windowed:
        return {}
    mixer = spec.layers[windowed[0]].mixer
    assert isinstance(mixer, Attention)
    told = {"window_size": mixer.window, "layers": [*windowed], "cache_slack": 0}
    return {"sliding_window": told | {"slide_key_value_cache": False, "slide_inputs": False}}


def _type(model_type: str, spec: Decoder) -> str:
    """ORT GenAI's own class, or ``decoder``.

    With RoPE that changes with the length it is ``decoder`` too: the class of phi3 computes the cache anew at 4,097
    tokens, which transformers' ``generate`` does and its ``forward`` does not, and the graph is held against that.
    """
    ropes = [layer.mixer.rope for layer in spec.layers if isinstance(layer.mixer, Attention)]
    changing = any(rope is not None and isinstance(rope.scaling, LongRope) for rope in ropes)
    return "decoder" if changing or model_type not in _TYPES else model_type


def token_ids(
    generation: Mapping[str, Any], config: Mapping[str, Any], defaults: Mapping[str, int | list[int]]
) -> dict[str, Any]:
    """bos, eos and pad ids as transformers resolves them.

    generation_config.json goes before config.json, and that before the class's defaults. A list of eos ids is kept
    whole. pad is one number for ORT GenAI: a list's first, and the first eos where there is none (or -1, which stands
    for none in old files).

    Raises:
        ParitasError: ``token-id-wrong``.
    """
    ids: dict[str, Any] = {}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        place, value = "generation_config.json", generation.get(key)
        if value is None:  # an explicit null of config.json is an answer
            place, value = "config.json", config[key] if key in config else defaults.get(key)
        if value is not None and value != []:
            ids[key] = _token_id(key, value, place)
    pad = first(ids.pop("pad_token_id", None))
    pad = first(ids.get("eos_token_id")) if pad is None or pad < 0 else pad
    return ids if pad is None else {**ids, "pad_token_id": pad}


def first(ids: int | Sequence[int] | None) -> int | None:
    """A number, or the first of a list of numbers."""
    return ids[0] if isinstance(ids, Sequence) else ids


def _token_id(key: str, value: Any, place: str) -> Any:
    least = -1 if key == "pad_token_id" else 0
    each = [value] if key == "bos_token_id" else _each(value)
    if not all(type(id_) is int and id_ >= least for id_ in each):
        raise ParitasError(
            "token-id-wrong",
            f"{key} is {value!r}; it has to be a token id" + (", or a list of them" if key != "bos_token_id" else ""),
            place=f"{place}, key {key}",
            hint="Repair the file.",
        )
    return value


def _each(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else [value]


def _search_value(generation: Mapping[str, Any], key: str) -> Any:
    value, default = generation.get(key), _SEARCH[key]
    if value is None:
        return default
    words = {bool: "true or false", int: "an integer", float: "a number"}
    known = (int, float) if type(default) is float else (type(default),)
    if type(value) not in known or not math.isfinite(value):
        raise ParitasError(
            "generation-value-wrong",
            f"{key} is {value!r}; it has to be {words[type(default)]}",
            place=f"generation_config.json, key {key}",
            hint="Repair the file.",
        )
    return value


def _pattern(names: Sequence[str], prefix: str, part: str) -> str:
    if not any(re.fullmatch(rf"{prefix}\.\d+\.{part}", name) for name in names):
        raise RuntimeError(f"the graph has no {prefix}.N.{part}")
    return f"{prefix}.%d.{part}"
