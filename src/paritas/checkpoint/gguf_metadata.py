"""A GGUF's metadata, read key by key, and the account of what nobody read."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from paritas.checkpoint.gguf_file import Value
from paritas.errors import ParitasError

T = TypeVar("T", bool, int, float, str)

# Keys that say nothing about what the model computes, and why.
IGNORABLE: Mapping[str, str] = {
    "tensor_data_layout": "names the converter's source; every source gives the same row order",
    "rope.scaling.finetuned": "a remark on the training",
    "rope.scaling.original_context_length": "only YaRN computes with it, and YaRN is refused",
}
IGNORABLE_TOKENIZER: Mapping[str, str] = {
    "token_type_count": "segments of encoder models",
    "seperator_token_id": "encoder models",  # GGUF's own spelling
    "cls_token_id": "encoder models",
    "mask_token_id": "names a token; does not change how text is split",
    "prefix_token_id": "infilling is not part of a package",
    "suffix_token_id": "infilling is not part of a package",
    "middle_token_id": "infilling is not part of a package",
    "fim_pre_token_id": "infilling is not part of a package",
    "fim_suf_token_id": "infilling is not part of a package",
    "fim_mid_token_id": "infilling is not part of a package",
    "fim_pad_token_id": "infilling is not part of a package",
    "fim_rep_token_id": "infilling is not part of a package",
    "fim_sep_token_id": "infilling is not part of a package",
    "add_sep_token": "encoder models; decoder tokenizers never add one",
}


class Metadata:
    """The metadata of one file. Keys asked for are remembered; :meth:`account` stops at the others."""

    def __init__(self, values: Mapping[str, Value], path: Path) -> None:
        self.path = path
        self._values = values
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the file has this key. Asking does not count as reading."""
        return key in self._values

    def is_list(self, key: str) -> bool:
        """Whether the file has this key with an array."""
        return isinstance(self._values.get(key), list)

    def need(self, key: str, kind: type[T]) -> T:
        """The value of a key that must be there."""
        value = self.find(key, kind)
        if value is None:
            raise ParitasError(
                "gguf-key-missing",
                f"metadata key {key!r} is missing",
                place=str(self.path),
                hint="Convert the model again with a current converter.",
            )
        return value

    def find(self, key: str, kind: type[T]) -> T | None:
        """The value of a key, or None if the file does not have it."""
        self._read.add(key)
        value = self._values.get(key)
        if value is None:
            return None
        if kind is float and type(value) is int:
            return kind(value)
        if not isinstance(value, kind) or type(value) is not kind:  # a bool is an int
            raise self._wrong_type(key, kind.__name__)
        return value

    def list_of(self, key: str, kind: type[T]) -> list[T] | None:
        """The values of a key that holds an array, or None if the file does not have it."""
        self._read.add(key)
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._wrong_type(key, f"array of {kind.__name__}")
        found = [item for item in value if isinstance(item, kind) and type(item) is kind]
        if len(found) != len(value):
            raise self._wrong_type(key, f"array of {kind.__name__}")
        return found

    def account(self, prefix: str, ignorable: Iterable[str]) -> None:
        """Stop if a key under ``prefix`` was neither read nor listed as ignorable.

        Raises:
            ParitasError: ``gguf-key-unread``: such a key may change what the model computes.
        """
        allowed = self._read.union(prefix + name for name in ignorable)
        unread = [key for key in self._values if key.startswith(prefix) and key not in allowed]
        if unread:
            raise ParitasError(
                "gguf-key-unread",
                "nothing here reads " + ", ".join(f"{key} = {_short(self._values[key])}" for key in unread),
                place=str(self.path),
                hint="The key may change what the model computes. Please report it with the model's name.",
            )

    def wrong_value(self, key: str, wanted: str) -> ParitasError:
        """The error for a value that cannot be right."""
        return ParitasError(
            "gguf-key-value",
            f"metadata key {key!r} should be {wanted}, it is {_short(self._values.get(key, ''))}",
            place=str(self.path),
        )

    def _wrong_type(self, key: str, wanted: str) -> ParitasError:
        return ParitasError(
            "gguf-key-type",
            f"metadata key {key!r} should be of type {wanted}, it is {_short(self._values[key])}",
            place=str(self.path),
        )


def _short(value: Value) -> str:
    text = repr(value[:8] if isinstance(value, list) else value)
    return text if len(text) <= 80 else text[:77] + "..."
