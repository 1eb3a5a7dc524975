"""List the code of every error and finding in the source, with its exit code.

    python tools/list_errors.py

A test holds docs/reference/errors.md against this list.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "paritas"
EXITS = {"ParitasError": "2", "Unsupported": "2", "Invalid": "3", "Finding": "finding"}
OWN_EXITS = {"internal-error": "3", "interrupted": "130"}  # the command's own, whatever the class
_CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_SEVERITIES = ("error", "warning", "note")


def errors(source: Path = SOURCE) -> dict[str, set[str]]:
    """Code -> the exit codes it can end with (or ``finding``)."""
    found: dict[str, set[str]] = {}
    modules = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(source.rglob("*.py"))]
    shared = {name: code for module in modules for name, code in _wrappers(module).items() if name[0] != "_"}
    for module in modules:
        for code, exit_code in _of(module, shared):
            found.setdefault(code, set()).add(OWN_EXITS.get(code, exit_code))
    return dict(sorted(found.items()))


def _of(module: ast.Module, shared: dict[str, str]) -> Iterator[tuple[str, str]]:
    raised = {**EXITS, **shared, **_wrappers(module)}
    for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
        if (exit_code := raised.get(_name(call))) is not None:
            given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "code")]
            yield from ((code, exit_code) for expression in given for code in _words(expression))
    for assignment in (node for node in ast.walk(module) if isinstance(node, ast.Assign)):
        if isinstance(target := assignment.targets[0], ast.Tuple) and ast.unparse(target).startswith("(code,"):
            yield from ((code, "finding") for code in _words(assignment.value) if code not in _SEVERITIES)


def _wrappers(module: ast.Module) -> dict[str, str]:
    """Functions that take the code and pass it on: their callers name it."""
    return {
        function.name: EXITS[_name(call)]
        for function in ast.walk(module)
        if isinstance(function, ast.FunctionDef) and [a.arg for a in function.args.args][:1] == ["code"]
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and _name(call) in EXITS
    }


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _words(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CODE.fullmatch(node.value):
            yield node.value


if __name__ == "__main__":
    for name, exit_codes in errors().items():
        print(f"{name:30s} {', '.join(sorted(exit_codes))}")
