"""Looks through a large tokenizer.json without building it: seconds and hundreds of megabytes for a big vocabulary.

What makes it large are the vocabulary and the merges. They are read in pieces here, and held against each other as
the tokenizers library does it; the library itself then loads the file without them.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, cast

_PIECE = 1 << 20
_VOCAB = re.compile(rb'^([ \t]+)"vocab":\s*\{\n', re.MULTILINE)
_MERGES = re.compile(rb'^([ \t]+)"merges":\s*\[\n', re.MULTILINE)


def without_vocabulary(content: bytes) -> bytes | None:
    """The file with neither tokens nor merges, once they are found to be in order; None if it has to be loaded whole.

    That is so for every file that :func:`taken_apart` leaves alone, and for one in which anything is not as it should
    be: the library has the last word, and the words for what is wrong.
    """
    try:
        found = taken_apart(content)
        merges = _span(content, _MERGES, b"]")
        in_order = found is not None and merges is not None and _in_order(content, found[0], merges)
    except (ValueError, RecursionError):
        return None
    return found[1] if found is not None and in_order else None


def taken_apart(content: bytes) -> tuple[set[str], bytes] | None:
    """The tokens, and the file with neither them nor merges; None for what is no BPE written line by line.

    Raises:
        ValueError: an id is no number, or it is not JSON.
    """
    spans = [_span(content, start, close) for start, close in ((_VOCAB, b"}"), (_MERGES, b"]"))]
    if b'"type": "BPE"' not in content or b'"continuing_subword_prefix": null' not in content or None in spans:
        return None
    vocab, merges = cast(list[tuple[int, int]], spans)
    if vocab[1] > merges[0]:
        return None
    tokens: set[str] = set()
    for piece in _pieces(content, *vocab, b",\n"):
        entries: dict[str, Any] = json.loads(b"{" + piece + b"}")
        if not all(type(number) is int and number >= 0 for number in entries.values()):
            raise ValueError("an id that is no number")
        tokens.update(entries)
    return tokens, content[: vocab[0]] + content[vocab[1] : merges[0]] + content[merges[1] :]


def _span(content: bytes, opening: re.Pattern[bytes], close: bytes) -> tuple[int, int] | None:
    """Where the lines inside of an object or a list begin and end. No string of JSON holds the end of a line."""
    found = opening.search(content)
    end = -1 if found is None else content.find(b"\n" + found[1] + close, found.end() - 1)
    return None if found is None or end < 0 else (found.end(), end)


def _in_order(content: bytes, tokens: set[str], merges: tuple[int, int]) -> bool:
    """Whether both parts of every merge, and what they make, are tokens."""
    ending = b"],\n" if b"[" in content[merges[0] : merges[0] + 64] else b",\n"
    for piece in _pieces(content, *merges, ending):
        for entry in json.loads(b"[" + piece + b"]"):
            first, second = entry.split(" ") if isinstance(entry, str) else entry
            if not (first in tokens and second in tokens and first + second in tokens):
                return False
    return True


def _pieces(content: bytes, start: int, stop: int, ending: bytes) -> Iterator[bytes]:
    """Some entries at a time, without the comma behind the last."""
    while start < stop:
        end = content.find(ending, min(start + _PIECE, stop), stop)
        end = stop if end < 0 else end + ending.index(b",")
        yield content[start:end]
        start = end + 1
