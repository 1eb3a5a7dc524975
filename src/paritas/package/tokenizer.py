"""The tokenizer files of a package: the checkpoint's own, checked that they load."""

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from paritas.errors import ParitasError


def tokenizer_files(files: Mapping[str, bytes], place: str) -> dict[str, bytes]:
    """Name -> content, as they go into the package.

    Raises:
        ParitasError: ``tokenizer-missing``, ``tokenizer-corrupt``.
    """
    if "tokenizer.json" not in files:
        raise ParitasError(
            "tokenizer-missing",
            "the checkpoint has no tokenizer.json",
            place=place,
            hint="Save it with transformers (AutoTokenizer(...).save_pretrained), or export without: --no-tokenizer.",
        )
    try:
        Tokenizer.from_str(files["tokenizer.json"].decode())
        config = json.loads(files.get("tokenizer_config.json", b"{}"))
    except Exception as error:  # tokenizers raises a bare Exception for whatever it cannot read
        raise ParitasError(
            "tokenizer-corrupt",
            f"it does not load: {error}",
            place=place,
            hint="Fetch the tokenizer again, or export without one: --no-tokenizer.",
        ) from None
    result = dict(files)
    template = _chat_template(config, files)
    if template is not None:
        result["chat_template.jinja"] = template.encode()
    return result


def _chat_template(config: Mapping[str, Any], files: Mapping[str, bytes]) -> str | None:
    """The template, from wherever the transformers version that saved it put it; of several, the one called default."""
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode()
    if "chat_template.json" in files:
        template = json.loads(files["chat_template.json"]).get("chat_template")
    else:
        template = config.get("chat_template")
    if isinstance(template, list):
        named: dict[str, str] = {entry["name"]: entry["template"] for entry in template}  # pyright: ignore[reportUnknownVariableType]
        return named.get("default")
    return template
