"""Write docs/reference/source-tree.md: every module with the first line of its own documentation.

    python tools/write_tree.py

A test holds the file against what this writes.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "reference" / "source-tree.md"
SOURCE = ROOT / "src" / "paritas"
HEAD = """# Source tree

Every module, with the first line of its own documentation. `python tools/write_tree.py` writes this page; what may
import what is in [architecture](../explanation/architecture.md).
"""


def page() -> str:
    """The content of the file."""
    folders = sorted({path.parent for path in SOURCE.rglob("*.py")}, key=lambda path: path.relative_to(ROOT).as_posix())
    parts = [section(folder) for folder in (*folders, ROOT / "tools", ROOT / "benchmarks")]
    return "\n".join([HEAD, *parts])


def section(folder: Path) -> str:
    """One folder: what it is, and a row a module."""
    lines = [f"## {folder.relative_to(ROOT).as_posix()}", ""]
    package = folder / "__init__.py"
    if package.is_file():
        lines += [first_line(package), ""]
    return "\n".join([*lines, "| module | |", "|---|---|", *rows(folder), ""])


def rows(folder: Path) -> Iterator[str]:
    """The modules of a folder."""
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield f"| `{path.name}` | {first_line(path).replace('|', chr(92) + '|')} |"


def first_line(path: Path) -> str:
    """Of a module's documentation."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].replace("``", "`")


if __name__ == "__main__":
    OUT.write_text(page(), encoding="utf-8")
