"""What a document of the released dialect may say in the version that it names, and what that version asks for."""

import re

from paritas.audit.finding import Finding
from paritas.lint.document import Document
from paritas.lint.fault import Findings, fault, mapping

EOS_SINCE = 2
"""From v1.2 on documents hold ids of tokens, and a loop that ends at end tokens needs them."""


def version_of(document: Document) -> int:
    """The number behind ``v1.``."""
    found = re.fullmatch(r"[vV]?1(?:\.(\d+))?", document.version)
    return int(found[1] or 0) if found else 0


def version_findings(document: Document) -> Findings:
    """Features of later versions, and demands of this one. The canonical dialect has one version."""
    if document.canonical:
        return
    number = version_of(document)
    for since, what, where in _uses(document):
        if number < since:
            yield _early(document, since, what, where)
    if number >= 7 and "publication_mode" not in document.workflow:
        yield _asked(document, "publication_mode", 7, "pipeline", "workflow")
    if number >= 5:
        for name, output in document.part("outputs").items():
            if "family" not in output:
                yield _asked(document, "family", 5, "pipeline", "workflow", "outputs", name)


def _uses(document: Document) -> list[tuple[int, str, str]]:
    """(version, feature, place) of everything that 1.0 does not have."""
    at = document.at
    tokenizer = mapping(mapping(document.values, "package"), "tokenizer")
    found = [
        (5, "family", at("pipeline", "workflow", "outputs", name))
        for name, output in document.part("outputs").items()
        if "family" in output
    ]
    if tokenizer.get("special_tokens"):
        found.append((EOS_SINCE, "special_tokens", at("package", "tokenizer")))
    if mapping(document.values, "package").get("tool_protocol"):
        found.append((3, "tool_protocol", at("package")))
    if document.values.get("speculative"):
        found.append((6, "speculative", at("speculative")))
    if "publication_mode" in document.workflow:
        found.append((7, "publication_mode", at("pipeline", "workflow")))
    if mapping(document.values, "preprocessing").get("video"):
        found.append((1, "preprocessing.video", at("preprocessing")))
    found += [
        (1, "batch_capacity", at("pipeline", "workflow", "components", name))
        for name, each in document.part("components").items()
        if each.get("batch_capacity")
    ]
    return found


def _early(document: Document, since: int, what: str, where: str) -> Finding:
    return fault(
        "metadata-version",
        where,
        f"{what} came with v1.{since}, and the document is of {document.version}",
        f"Write schema_version: v1.{since}, the lowest that has it.",
    )


def _asked(document: Document, what: str, since: int, *where: str) -> Finding:
    return fault(
        "metadata-version",
        document.at(*where),
        f"documents of v1.{since} and later have a {what}; this one ({document.version}) has none",
        f"Write it, or a lower schema_version: nothing else may need v1.{since}.",
    )
