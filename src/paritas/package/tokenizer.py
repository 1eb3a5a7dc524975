"""The tokenizer files of a package: the checkpoint's own, checked that they load; the chat template in its own file."""

import json
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

from tokenizers import Tokenizer

from paritas.errors import ParitasError
from paritas.package.vocabulary import FILE, Vocabulary, described, taken_apart

_TEMPLATE = "chat_template.jinja"


def tokenizer_files(files: Mapping[str, bytes], place: str) -> dict[str, bytes]:
    """Name -> content, as they go into the package. Whether ``tokenizer.json`` loads is asked by :func:`reading`.

    Raises:
        ParitasError: ``tokenizer-missing``, ``tokenizer-corrupt``.
    """
    if FILE not in files:
        raise ParitasError(
            "tokenizer-missing",
            "the checkpoint has no tokenizer.json",
            place=place,
            hint="Save the tokenizer with transformers (AutoTokenizer.from_pretrained(...).save_pretrained(...)), or "
            "export without one: --no-tokenizer.",
        )
    rest = [name for name in files if name.endswith(".json") and name != FILE]
    objects = {name: _object(files[name], f"{place}, {name}") for name in rest}
    template = _chat_template(files, objects, place)
    return dict(files) if template is None else {**files, _TEMPLATE: template.encode()}


@contextmanager
def reading(files: Mapping[str, bytes], place: str) -> Generator[Future[Vocabulary | None]]:
    """:func:`read_tokenizer` of these files, if there is one among them, beside other work."""
    with ThreadPoolExecutor(1) as aside:
        yield aside.submit(lambda: read_tokenizer(files[FILE], place) if FILE in files else None)


def read_tokenizer(content: bytes, place: str) -> Vocabulary:
    """What ``tokenizer.json`` says of itself, once it is known to load: a second of work for a large vocabulary.

    Raises:
        ParitasError: ``tokenizer-corrupt``.
    """
    apart = taken_apart(content)
    try:
        Tokenizer.from_str((content if apart is None else apart.rest).decode())
    except Exception as error:  # tokenizers raises a bare Exception for whatever it cannot read
        raise _corrupt(f"it does not load: {error}", f"{place}, {FILE}") from None
    return described(content if apart is None else apart)


def _object(content: bytes, place: str) -> dict[str, Any]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _corrupt(f"not JSON: {error}", place) from None
    if not isinstance(values, dict):
        raise _corrupt("not a JSON object", place)
    return cast(dict[str, Any], values)


def _chat_template(files: Mapping[str, bytes], objects: Mapping[str, Mapping[str, Any]], place: str) -> str | None:
    """The template, from wherever the transformers version that saved it put it; of several, the one called default."""
    if _TEMPLATE in files:
        try:
            return files[_TEMPLATE].decode()
        except UnicodeDecodeError as error:
            raise _corrupt(f"not UTF-8: {error}", f"{place}, {_TEMPLATE}") from None
    holder = "chat_template.json" if "chat_template.json" in files else "tokenizer_config.json"
    template: Any = objects.get(holder, {}).get("chat_template")
    if isinstance(template, list):
        try:
            template = {entry["name"]: entry["template"] for entry in cast(list[Any], template)}.get("default")
        except (KeyError, TypeError):
            template = False
    if template is not None and not isinstance(template, str):
        raise _corrupt("chat_template is neither a text nor a list of them by name", f"{place}, {holder}")
    return template


def _corrupt(fact: str, place: str) -> ParitasError:
    return ParitasError(
        "tokenizer-corrupt",
        fact,
        place=place,
        hint="Fetch the tokenizer again, or export without one: --no-tokenizer.",
    )
