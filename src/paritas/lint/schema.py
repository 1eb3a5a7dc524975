"""The document against its dialect's JSON schema: every field and value has to be one that the standard knows."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from paritas.lint.document import Document
from paritas.lint.fault import Findings, Values, fault

_FOLDER = Path(__file__).parent / "schemas"
_LONGEST = 240
# What the reader of the wheel calls retired, where it stands.
_RETIRED = {
    "rank": "a shape alone says how many sizes there are",
    "required_capabilities": "what a document uses is found in it",
    "capabilities": "what a document uses is found in it",
}


@cache
def validator(canonical: bool) -> Any:
    """Of a dialect."""
    name = "canonical-v1" if canonical else "released-0.1.0.dev6"
    schema: Values = json.loads((_FOLDER / f"{name}.schema.json").read_bytes())
    return jsonschema.Draft202012Validator(schema)


def schema_findings(document: Document) -> Findings:
    """What the schema says, each place once, the deepest cause of it; nothing else is looked at if there is any."""
    if not document.canonical and (retired := list(_retired(document))):
        yield from retired
        return
    pipeline = document.values.get("pipeline")
    if not (isinstance(pipeline, dict) and isinstance(document.values["pipeline"].get("workflow"), dict)):
        yield fault(
            "metadata-no-workflow",
            document.at("pipeline"),
            "there is no pipeline.workflow",
            "A package without one is run by its genai_config.json: remove the file, or write the workflow.",
        )
    for error in validator(document.canonical).iter_errors(document.values):
        cause = _deepest(error)
        yield fault(
            "metadata-schema",
            document.at(*cause.absolute_path),
            _short(cause.message),
            "Write what the schema of the dialect has; docs/reference/inference-metadata.md names both.",
        )


def _deepest(error: Any) -> Any:
    """Of the alternatives that a value fits none of, the one that it is meant as, and what is wrong there."""
    while error.context:
        error = max(_meant(error.context), key=lambda each: len(each.absolute_path))
    return error


def _meant(errors: Iterable[Any]) -> list[Any]:
    """Alternatives whose ``kind`` is another are not meant, as long as there is one whose kind it is."""
    alternatives: dict[int, list[Any]] = {}
    for error in errors:
        alternatives.setdefault(error.relative_schema_path[0], []).append(error)
    of_kind = [
        group
        for group in alternatives.values()
        if not any(error.validator == "const" and list(error.relative_path)[-1:] == ["kind"] for error in group)
    ]
    return [error for group in of_kind or alternatives.values() for error in group]


def _retired(document: Document) -> Findings:
    for path, key in _keys(document.values, ()):
        if key in _RETIRED and not (key == "capabilities" and path[-1:] != ("manifest",)):
            yield fault(
                "metadata-retired",
                document.at(*path, key),
                f"{key} belongs to the dialect of August 2026, and the reader of {document.version} refuses it",
                f"Leave it out: {_RETIRED[key]}.",
            )


def _keys(values: object, path: tuple[object, ...]) -> Iterable[tuple[tuple[object, ...], str]]:
    if isinstance(values, list):
        for place, each in enumerate(values):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            yield from _keys(each, (*path, place))  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(values, dict):
        for key, each in values.items():  # pyright: ignore[reportUnknownVariableType]
            yield path, str(key)  # pyright: ignore[reportUnknownArgumentType]
            yield from _keys(each, (*path, key))  # pyright: ignore[reportUnknownArgumentType]


def _short(message: str) -> str:
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 :]}"
