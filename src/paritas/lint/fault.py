"""How rules of the linter say what they found."""

from collections.abc import Iterator
from typing import Any

from paritas.audit.finding import Finding

Values = dict[str, Any]
Findings = Iterator[Finding]


def mapping(values: Values, key: str) -> Values:
    """A part of a document; an empty one where it is absent or null."""
    return values.get(key) or {}


def fault(code: str, where: str, message: str, remedy: str) -> Finding:
    """Something that is wrong."""
    return Finding(code, "error", where, message, remedy)


def doubt(code: str, where: str, message: str, remedy: str) -> Finding:
    """Something that may be wrong."""
    return Finding(code, "warning", where, message, remedy)
