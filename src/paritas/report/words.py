"""Token ids as people read them."""

from collections.abc import Callable, Mapping, Sequence

from tokenizers import Tokenizer

Words = Callable[[Sequence[int]], str]
"""Ids -> their text; empty where there is none."""


def no_words(ids: Sequence[int]) -> str:
    """Of a checkpoint without a tokenizer."""
    return ""


def words_of(files: Mapping[str, bytes]) -> Words:
    """The text of ids by the tokenizer files of a checkpoint, as far as they can be read."""
    try:
        tokenizer = Tokenizer.from_buffer(files["tokenizer.json"])
    except Exception:  # tokenizers raises nothing narrower; a report can do without the text
        return no_words

    def words(ids: Sequence[int]) -> str:
        text = tokenizer.decode(list(ids), skip_special_tokens=False)
        if len(ids) == 1 and (not text or "\N{REPLACEMENT CHARACTER}" in text):  # a part of a character
            return tokenizer.id_to_token(ids[0]) or ""
        return text

    return words
