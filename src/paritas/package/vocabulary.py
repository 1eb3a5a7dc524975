"""Looks through a large tokenizer.json without building it: seconds and hundreds of megabytes for a big vocabulary.

What makes it large are the vocabulary and the merges. They are read in pieces here, and held against each other as
the tokenizers library does it; the library itself then loads the file without them.
"""

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import chain
from operator import add
from typing import Any, cast

FILE = "tokenizer.json"
_PIECE = 64 << 10  # of the file at a time: few objects at once, which the garbage collector would look through again
_VOCAB = (b'"vocab": {\n', b"}")
_MERGES = (b'"merges": [\n', b"]")


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer says of itself.

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


@dataclass(frozen=True)
class Apart:
    """A tokenizer in two.

    Attributes:
        tokens: of its model.
        rest: the file with neither them nor merges.
    """

    tokens: Set[str]
    rest: bytes


def taken_apart(content: bytes) -> Apart | None:
    """The tokens and the rest, once tokens and merges are found to be in order; None if it has to be loaded whole.

    That is so for what is no BPE written line by line, and for a file in which anything is not as it should be: the
    library has the last word, and the words for what is wrong.
    """
    vocab, merges = _span(content, *_VOCAB), _span(content, *_MERGES)
    if b'"type": "BPE"' not in content or b'"continuing_subword_prefix": null' not in content:
        return None
    if vocab is None or merges is None or vocab[1] > merges[0]:
        return None
    try:
        tokens = _tokens(content, vocab)
        if not _in_order(content, tokens, merges):
            return None
    except (ValueError, TypeError, RecursionError):
        return None
    return Apart(tokens, content[: vocab[0]] + content[vocab[1] : merges[0]] + content[merges[1] :])


def described(apart: Apart | bytes) -> Vocabulary:
    """The vocabulary of a ``tokenizer.json`` that is known to load: taken apart, or as it is."""
    values: dict[str, Any] = json.loads(apart.rest if isinstance(apart, Apart) else apart)
    model: dict[str, Any] = values["model"]
    known: Any = model.get("vocab") or {}  # word -> id, or a list of [piece, score]
    pieces = apart.tokens if isinstance(apart, Apart) else {p if isinstance(p, str) else str(p[0]) for p in known}
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


def _span(content: bytes, opening: bytes, close: bytes) -> tuple[int, int] | None:
    """Where the lines inside of an object or a list begin and end.

    No string of JSON holds the end of a line, or a quotation mark without a backslash before it.
    """
    at = content.find(opening)
    indent = content[content.rfind(b"\n", 0, max(at, 0)) + 1 : max(at, 0)]
    end = -1 if at < 0 or indent.strip() else content.find(b"\n" + indent + close, at + len(opening) - 1)
    return None if end < 0 else (at + len(opening), end)


def _tokens(content: bytes, vocab: tuple[int, int]) -> set[str]:
    tokens: set[str] = set()
    for piece in _pieces(content, *vocab, b",\n"):
        entries: dict[str, Any] = json.loads(b"{" + piece + b"}")
        if not all(kind is int for kind in set(map(type, entries.values()))) or min(entries.values(), default=0) < 0:
            raise ValueError("an id that is no number")
        tokens.update(entries)
    return tokens


def _in_order(content: bytes, tokens: set[str], merges: tuple[int, int]) -> bool:
    """Whether every merge is of two tokens, and makes one."""
    ending = b"],\n" if b"[" in content[merges[0] : merges[0] + 64] else b",\n"
    for piece in _pieces(content, *merges, ending):
        entries: list[Any] = json.loads(b"[" + piece + b"]")
        pairs = [entry.split(" ") if isinstance(entry, str) else entry for entry in entries]
        if not all(count == 2 for count in set(map(len, pairs))):
            return False
        parts = list(chain.from_iterable(pairs))
        if not (tokens.issuperset(parts) and tokens.issuperset(map(add, parts[::2], parts[1::2]))):
            return False
    return True


def _pieces(content: bytes, start: int, stop: int, ending: bytes) -> Iterator[bytes]:
    """Some entries at a time, without the comma behind the last."""
    while start < stop:
        end = content.find(ending, min(start + _PIECE, stop), stop)
        end = stop if end < 0 else end + ending.index(b",")
        yield content[start:end]
        start = end + 1
