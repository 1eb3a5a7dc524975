"""Writes a report: the page, and the same as JSON."""

import json
import secrets
from pathlib import Path

from paritas.report.html import to_html
from paritas.report.model import Report

PAGE, DATA = "report.html", "report.json"


def write(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write ``report.html`` and ``report.json`` into ``folder``, which is made if need be; give their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    page, data = folder / PAGE, folder / DATA
    write_page(report, page)
    _replace(data, to_json(report))
    return page, data


def write_page(report: Report, file: Path) -> None:
    """Write the page alone."""
    _replace(file, to_html(report))


def to_json(report: Report) -> str:
    """The report as JSON."""
    return json.dumps(report.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n"


def _replace(file: Path, text: str) -> None:
    """Written aside, and given its name when it is whole."""
    aside = file.with_name(f".{file.name}.partial-{secrets.token_hex(4)}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
