"""The tokenizer inside a GGUF file, written back as the files that transformers and the runtimes load."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paritas.checkpoint.gguf_bpe import build_tokenizer, check_supported
from paritas.checkpoint.gguf_metadata import Metadata
from paritas.checkpoint.gguf_vocabulary import Vocabulary, read_vocabulary, token_id

# What ends a turn in chat templates; the token counts only if the template says it.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
_SAMPLING = {"top_k": int, "top_p": float, "min_p": float, "temp": float, "penalty_repeat": float}


@dataclass(frozen=True)
class GgufTokenizer:
    """What a checkpoint takes from the tokenizer.

    Attributes:
        ids: the token ids of config.json.
        generation: the values of generation_config.json.
        files: of the tokenizer.
    """

    ids: dict[str, Any]
    generation: dict[str, Any]
    files: Mapping[str, bytes]


class _Files(Mapping[str, bytes]):
    """The tokenizer's files. tokenizer.json takes seconds for a large vocabulary: built when asked for."""

    def __init__(self, vocabulary: Vocabulary, small: dict[str, bytes], place: str) -> None:
        self._vocabulary = vocabulary
        self._small = small
        self._place = place

    @cached_property
    def _large(self) -> bytes:
        return build_tokenizer(self._vocabulary, self._place)

    def __getitem__(self, name: str) -> bytes:
        return self._large if name == "tokenizer.json" else self._small[name]

    def __contains__(self, name: object) -> bool:
        return name == "tokenizer.json" or name in self._small

    def __iter__(self) -> Iterator[str]:
        return iter(("tokenizer.json", *self._small))

    def __len__(self) -> int:
        return 1 + len(self._small)


def open_tokenizer(meta: Metadata, config: Mapping[str, Any]) -> GgufTokenizer:
    """Read the tokenizer of a file; a file without one gives no files and no ids.

    Raises:
        Unsupported: ``gguf-tokenizer``, if its ids could not be guaranteed to equal the original's.
    """
    template = meta.find("tokenizer.chat_template", str)
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if meta.find("tokenizer.ggml.model", str) in (None, "none", "no_vocab"):
        return GgufTokenizer(ids, {}, {})
    vocabulary = read_vocabulary(meta, config["vocab_size"])
    check_supported(vocabulary, str(meta.path))
    ids = {
        "bos_token_id": vocabulary.bos,
        "eos_token_id": vocabulary.eos,
        "pad_token_id": vocabulary.pad,
    }
    small = {"tokenizer_config.json": _tokenizer_config(vocabulary, config)}
    if template is not None:
        small["chat_template.jinja"] = template.encode()
    generation = _generation(meta, vocabulary, template or "", config["model_type"])
    return GgufTokenizer(ids, generation, _Files(vocabulary, small, str(meta.path)))


def _generation(meta: Metadata, vocabulary: Vocabulary, template: str, model_type: str) -> dict[str, Any]:
    """The token ids that start, end and pad a text, and the sampling defaults that the file carries."""
    ends = [vocabulary.eos]
    ends += [token_id(meta, name, len(vocabulary.tokens)) for name in ("eot_token_id", "eom_token_id")]
    ids = {text: i for i, text in enumerate(vocabulary.tokens)}
    for text in _TURN_ENDS:
        if text in template or (text == "<end_of_turn>" and model_type == "gemma3_text"):
            ends.append(ids.get(text))
    eos = list(dict.fromkeys(token for token in ends if token is not None))
    found: dict[str, Any] = {
        "bos_token_id": vocabulary.bos,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "pad_token_id": vocabulary.pad,
    }
    sampling = {name: meta.find(f"general.sampling.{name}", kind) for name, kind in _SAMPLING.items()}
    sampling["temperature"] = sampling.pop("temp")
    sampling["repetition_penalty"] = sampling.pop("penalty_repeat")
    found |= {"do_sample": True if any(v is not None for v in sampling.values()) else None, **sampling}
    return {key: value for key, value in found.items() if value is not None}


def _tokenizer_config(vocabulary: Vocabulary, config: Mapping[str, Any]) -> bytes:
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "add_bos_token": vocabulary.add_bos,
        "add_eos_token": vocabulary.add_eos,
    }
    values |= {role: vocabulary.tokens[token] for role, token in vocabulary.named.items()}
    return json.dumps(values, indent=2, ensure_ascii=False).encode()
