"""What tokenizer.json says of itself: algorithm, size, bytes or characters, the text of single tokens."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from paritas.package.vocabulary import taken_apart

FILE = "tokenizer.json"


@dataclass(frozen=True)
class Vocabulary:
    """Of a tokenizer.

    Attributes:
        algorithm: ``bpe``, ``unigram``, ``wordpiece``, ``wordlevel``.
        size: entries, added tokens included.
        byte_level: its units are bytes.
        contents: id -> text of the added tokens.
    """

    algorithm: str
    size: int
    byte_level: bool
    contents: Mapping[int, str]


def read_vocabulary(tokenizer: bytes) -> Vocabulary:
    """The vocabulary of the ``tokenizer.json`` that is given, which is known to load."""
    apart = taken_apart(tokenizer)  # a large one is not read as a whole
    values: dict[str, Any] = json.loads(tokenizer if apart is None else apart[1])
    model: dict[str, Any] = values["model"]
    known: Any = model.get("vocab") or {}  # word -> id, or a list of [piece, score]
    pieces = {str(piece if isinstance(piece, str) else piece[0]) for piece in known} if apart is None else apart[0]
    added: list[dict[str, Any]] = values.get("added_tokens") or []
    return Vocabulary(
        algorithm=str(model.get("type") or "BPE").lower(),
        size=len(pieces | {str(token["content"]) for token in added}),
        byte_level=any(_has(values.get(part), "ByteLevel") for part in ("pre_tokenizer", "decoder")),
        contents={int(token["id"]): str(token["content"]) for token in added},
    )


def _has(part: Any, kind: str) -> bool:
    """Whether a step of a pre-tokenizer or decoder, or of a sequence of them, is of that type."""
    if isinstance(part, list):
        return any(_has(each, kind) for each in cast(list[Any], part))
    if not isinstance(part, dict):
        return False
    values = cast(dict[str, Any], part)
    return values.get("type") == kind or any(_has(values.get(key), kind) for key in ("pretokenizers", "decoders"))
