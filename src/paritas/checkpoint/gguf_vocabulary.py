"""The vocabulary inside a GGUF file, as the file states it."""

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

from paritas.checkpoint.gguf_metadata import Metadata
from paritas.errors import ParitasError, Unsupported

T = TypeVar("T")


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


def read_vocabulary(meta: Metadata, rows: int) -> Vocabulary:
    """Read the vocabulary of a file whose embedding has so many rows."""
    model = meta.need("tokenizer.ggml.model", str)
    pre = meta.find("tokenizer.ggml.pre", str) or ""
    tokens = _need_list(meta, "tokens", meta.list_of("tokenizer.ggml.tokens", str))
    kinds = _need_list(meta, "token_type", meta.list_of("tokenizer.ggml.token_type", int))
    scores = meta.list_of("tokenizer.ggml.scores", float) or []
    merges = meta.list_of("tokenizer.ggml.merges", str) or []
    if len(tokens) > rows or len(kinds) != len(tokens) or (model == "llama" and len(scores) != len(tokens)):
        raise ParitasError(
            "gguf-vocabulary",
            f"{len(tokens)} tokens, {len(kinds)} token types, {len(scores)} scores, {rows} embedding rows",
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
        bos=token_id(meta, "bos_token_id", len(tokens)),
        eos=token_id(meta, "eos_token_id", len(tokens)),
        unk=token_id(meta, "unknown_token_id", len(tokens)),
        pad=token_id(meta, "padding_token_id", len(tokens)),
        add_bos=bos_by_default if add_bos is None else add_bos,
        add_eos=meta.find("tokenizer.ggml.add_eos_token", bool) or False,
        space_prefix=model == "llama" if space is None else space,
    )


def _need_list(meta: Metadata, name: str, found: list[T] | None) -> list[T]:
    if not found:
        raise ParitasError("gguf-key-missing", f"metadata key 'tokenizer.ggml.{name}' is missing", place=str(meta.path))
    return found


def token_id(meta: Metadata, name: str, count: int) -> int | None:
    """A token id of the metadata, or None."""
    key = f"tokenizer.ggml.{name}"
    token = meta.find(key, int)
    if token is not None and not 0 <= token < count:
        raise meta.wrong_value(key, f"an id below {count}")
    return token


def _refuse_normalizer(meta: Metadata) -> None:
    """SentencePiece rules that change text before it is split, and which no supported model has."""
    if meta.has("tokenizer.ggml.precompiled_charsmap") or meta.find("tokenizer.ggml.remove_extra_whitespaces", bool):
        raise Unsupported(
            "gguf-tokenizer",
            "the tokenizer normalises characters or removes whitespace, which is not supported",
            place=str(meta.path),
            hint="Export from the original Hugging Face checkpoint.",
        )
