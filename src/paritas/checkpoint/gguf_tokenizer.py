"""The tokenizer inside a GGUF file, written back as the files that transformers and the runtimes load."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

from paritas.checkpoint.gguf_bpe import build_tokenizer, check_supported
from paritas.checkpoint.gguf_metadata import Metadata
from paritas.errors import ParitasError, Unsupported

# What ends a turn in the chat templates of the supported families; the token counts only if the template says it.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
_SAMPLING = {"top_k": int, "top_p": float, "min_p": float, "temp": float}


class Kind(IntEnum):
    """The types of tokens that GGUF tells apart."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer's values as the file states them.

    Attributes:
        model: ``gpt2`` (byte-level BPE with merges) or ``llama`` (SentencePiece BPE with scores).
        pre: name of the rule that splits text before BPE; means nothing for ``llama``.
        tokens: text of each id.
        kinds: type of each id.
        scores: of each id, for ``llama``.
        merges: in order of rank, for ``gpt2``.
        bos, eos, unk, pad: ids, or None.
        add_bos, add_eos: whether encoding adds them.
        space_prefix: whether encoding puts a space before the text, for ``llama``.
    """

    model: str
    pre: str
    tokens: list[str] = field(repr=False)
    kinds: list[int] = field(repr=False)
    scores: list[float] = field(repr=False)
    merges: list[str] = field(repr=False)
    bos: int | None
    eos: int | None
    unk: int | None
    pad: int | None
    add_bos: bool
    add_eos: bool
    space_prefix: bool

    @property
    def named(self) -> dict[str, int]:
        """The ids that have a role, by the name of the role in tokenizer_config.json."""
        roles = {"bos_token": self.bos, "eos_token": self.eos, "unk_token": self.unk, "pad_token": self.pad}
        return {role: token for role, token in roles.items() if token is not None}

    def special(self, token: int) -> bool:
        """Whether decoding may leave the token out. Gemma's ``<unusedN>`` stand for themselves."""
        if token in self.named.values():
            return True
        return self.kinds[token] == Kind.CONTROL and not re.fullmatch(r"<unused\d+>", self.tokens[token])


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
    """The tokenizer's files. tokenizer.json takes seconds for a large vocabulary, so it is built when asked for."""

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
    vocabulary = _vocabulary(meta, config["vocab_size"])
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


def _vocabulary(meta: Metadata, rows: int) -> Vocabulary:
    model = meta.need("tokenizer.ggml.model", str)
    pre = meta.find("tokenizer.ggml.pre", str) or ""
    tokens = _need_list(meta, "tokens", meta.list_of("tokenizer.ggml.tokens", str))
    kinds = _need_list(meta, "token_type", meta.list_of("tokenizer.ggml.token_type", int))
    scores = meta.list_of("tokenizer.ggml.scores", float) or []
    merges = meta.list_of("tokenizer.ggml.merges", str) or []
    if len(tokens) > rows or len(kinds) != len(tokens) or (model == "llama" and len(scores) != len(tokens)):
        raise ParitasError(
            "gguf-vocabulary",
            f"{len(tokens)} tokens, {len(kinds)} token types and {len(scores)} scores for {rows} embedding rows",
            place=str(meta.path),
        )
    bos_by_default = model == "llama" or pre in ("llama-bpe", "llama3", "llama-v3")  # as llama.cpp
    add_bos = meta.find("tokenizer.ggml.add_bos_token", bool)
    space = meta.find("tokenizer.ggml.add_space_prefix", bool)
    _refuse_normalizer(meta)
    return Vocabulary(
        model=model,
        pre=pre,
        tokens=tokens,
        kinds=kinds,
        scores=scores,
        merges=merges,
        bos=_id(meta, "bos_token_id", len(tokens)),
        eos=_id(meta, "eos_token_id", len(tokens)),
        unk=_id(meta, "unknown_token_id", len(tokens)),
        pad=_id(meta, "padding_token_id", len(tokens)),
        add_bos=bos_by_default if add_bos is None else add_bos,
        add_eos=meta.find("tokenizer.ggml.add_eos_token", bool) or False,
        space_prefix=model == "llama" if space is None else space,
    )


def _need_list[T](meta: Metadata, name: str, found: list[T] | None) -> list[T]:
    if not found:
        raise ParitasError(
            "gguf-key-missing", f"metadata key 'tokenizer.ggml.{name}' is missing", place=str(meta.path)
        )
    return found


def _id(meta: Metadata, name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}"
    token = meta.find(key, int)
    if token is not None and not 0 <= token < count:
        raise meta.wrong_value(key, f"an id below {count}")
    return token


def _refuse_normalizer(meta: Metadata) -> None:
    """SentencePiece rules that change text before it is split, and which no supported model has."""
    if meta.has("tokenizer.ggml.precompiled_charsmap") or meta.find(
        "tokenizer.ggml.remove_extra_whitespaces", bool
    ):
        raise Unsupported(
            "gguf-tokenizer",
            "the tokenizer normalises characters or removes whitespace, which is not supported",
            place=str(meta.path),
            hint="Export from the original Hugging Face checkpoint.",
        )


def _generation(meta: Metadata, vocabulary: Vocabulary, template: str, model_type: str) -> dict[str, Any]:
    """The token ids that start, end and pad a text, and the sampling defaults that the file carries."""
    ends = [vocabulary.eos]
    ends += [_id(meta, name, len(vocabulary.tokens)) for name in ("eot_token_id", "eom_token_id")]
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
