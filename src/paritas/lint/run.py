"""Everything that is looked at in a package's metadata, in an order in which later rules can rely on earlier ones."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritas.audit.finding import ORDER, Finding
from paritas.audit.genai import genai_findings
from paritas.audit.view import View
from paritas.errors import Exit
from paritas.lint import document as documents
from paritas.lint.boundary import boundary_findings
from paritas.lint.decoders import decoder_findings
from paritas.lint.document import Document
from paritas.lint.flow import Flow
from paritas.lint.graphs import graph_findings
from paritas.lint.groups import group_findings
from paritas.lint.loops import loop_findings
from paritas.lint.meaning import meaning_findings
from paritas.lint.parts import read_parts
from paritas.lint.reader import Reader, ask, reader_findings
from paritas.lint.schema import schema_findings
from paritas.lint.speculation import speculation_findings
from paritas.lint.surroundings import surrounding_findings
from paritas.lint.versions import version_findings
from paritas.runtime.package import Package, open_package, read_object

CANONICAL, RELEASED = "canonical v1 of August 2026", "onnx-genai 0.1.0.dev6"


@dataclass(frozen=True)
class Lint:
    """What the linter found.

    Attributes:
        package: its folder.
        file: of the metadata; None if there is none.
        dialect: in words; None if it was not told.
        version: of its schema.
        reader: what onnx-genai itself says; None if it is not installed, or does not read the dialect.
        findings: errors first.
    """

    package: Path
    file: str | None
    dialect: str | None
    version: str | None
    reader: Reader | None
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> Exit:
        """Of a command that ends with it."""
        return Exit.DIVERGES if any(each.severity == "error" for each in self.findings) else Exit.PROVEN

    def summary(self) -> dict[str, Any]:
        """What a command gives with ``--json``."""
        return {
            "package": str(self.package),
            "file": self.file,
            "dialect": self.dialect,
            "schema_version": self.version,
            "reader": None if self.reader is None else vars(self.reader),
            "errors": sum(finding.severity == "error" for finding in self.findings),
            "findings": [vars(finding) for finding in self.findings],
        }


def lint(package: Path) -> Lint:
    """Look at the metadata of the folder ``package``, and at its genai_config.json.

    Raises:
        ParitasError: the folder cannot be read as a package.
    """
    folder = package if package.is_dir() else package.parent
    file = documents.find(folder)
    read = None if file is None else documents.read(file)
    found: list[Finding] = []
    document = read if isinstance(read, Document) else None
    if isinstance(read, Finding):
        found.append(read)
    genai = read_object(folder / "genai_config.json") or None
    if document is not None:
        found += _document(document, genai)
    reader = ask(folder) if document is not None and not document.canonical else None
    if reader is not None and document is not None:
        found += reader_findings(reader, document.name)
    if genai is not None or file is None:
        found += _genai(open_package(package))
    if file is None:
        found.append(_absent())
    found.sort(key=lambda finding: ORDER.index(finding.severity))
    return Lint(
        package,
        file and file.name,
        None if document is None else CANONICAL if document.canonical else RELEASED,
        document and document.version,
        reader,
        tuple(found),
    )


def _document(document: Document, genai: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Of a document that the schema does not know, only what the schema says is certain."""
    broken = list(schema_findings(document))
    if broken:
        yield from broken
        return
    parts, files = read_parts(document)
    yield from files
    yield from version_findings(document)
    yield from boundary_findings(document, parts)
    yield from Flow(document, parts).findings()
    yield from loop_findings(document)
    yield from group_findings(document, parts)
    yield from graph_findings(document, parts)
    yield from meaning_findings(document)
    yield from decoder_findings(document, parts)
    yield from speculation_findings(document, parts)
    yield from surrounding_findings(document, parts, genai)


def _genai(package: Package) -> Iterator[Finding]:
    """What ORT GenAI would be told wrongly."""
    if package.genai_config is not None:
        yield from genai_findings(package.genai_config, View(package.model, package.folder), (), None)


def _absent() -> Finding:
    return Finding(
        "metadata-missing",
        "note",
        documents.NAMES[0],
        "the package has none: onnx-genai imports what it can from genai_config.json",
        "paritas export writes it.",
    )
