"""The house rules of docs/explanation/architecture.md, held by reading the imports and measuring the source."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "paritas"
MODULES = {
    ".".join(["paritas", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
FRAMEWORKS = {"torch", "transformers"}

# Package -> the modules of ours that it may import besides its own. What is not listed may import anything.
ALLOWED = {
    "paritas.ropes": (),
    "paritas.spec": ("paritas.ropes",),
    "paritas.errors": (),
    "paritas.casts": (),
    "paritas.scalings": ("paritas.spec", "paritas.errors"),
    "paritas.config": ("paritas.scalings", "paritas.spec", "paritas.errors"),
    "paritas.families": ("paritas.spec", "paritas.config", "paritas.errors"),
    "paritas.checkpoint": ("paritas.errors",),
    "paritas.weights": ("paritas.checkpoint", "paritas.errors"),
    "paritas.quant": ("paritas.weights", "paritas.ahead", "paritas.errors"),
    "paritas.graph": (
        "paritas.spec",
        "paritas.weights",
        "paritas.checkpoint",
        "paritas.targets.base",
        "paritas.errors",
    ),
    "paritas.targets": ("paritas.spec", "paritas.weights", "paritas.quant", "paritas.graph", "paritas.errors"),
    "paritas.measuring": (
        "paritas.weights",
        "paritas.quant",
        "paritas.plan",
        "paritas.package",
        "paritas.runtime",
        "paritas.verify",
        "paritas.errors",
        "paritas.progress",
    ),
    "paritas.policies": ("paritas.graph.builder", "paritas.errors"),
    "paritas.metadata": (
        "paritas.package.vocabulary",
        "paritas.policies",
        "paritas.runtime",
        "paritas.spec",
        "paritas.errors",
    ),
    "paritas.lint": ("paritas.audit", "paritas.metadata", "paritas.runtime", "paritas.errors"),
    "paritas.runtime": ("paritas.errors", "paritas.progress"),
    "paritas.bench": (
        "paritas.runtime",
        "paritas.verify.loading",
        "paritas.checkpoint",
        "paritas.peak",
        "paritas.errors",
        "paritas.progress",
    ),
    "paritas.audit": (
        "paritas.spec",
        "paritas.families",
        "paritas.config",
        "paritas.checkpoint",
        "paritas.casts",
        "paritas.runtime",
        "paritas.graph.rope",
        "paritas.errors",
        "paritas.progress",
    ),
    "paritas.report": (
        "paritas.diagnose.diagnosis",
        "paritas.diagnose.report",
        "paritas.audit",
        "paritas.verify",
        "paritas.checkpoint",
        "paritas.errors",
        "paritas.progress",
    ),
    "paritas.verify": ("paritas.casts", "paritas.runtime", "paritas.checkpoint", "paritas.errors", "paritas.progress"),
    "paritas.diagnose": (
        "paritas.verify",
        "paritas.audit",
        "paritas.casts",
        "paritas.runtime",
        "paritas.checkpoint",
        "paritas.package.staging",
        "paritas.errors",
        "paritas.progress",
    ),
}


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_it_may(package: str) -> None:
    allowed = (package, *ALLOWED[package])
    outside = {
        (module, name)
        for module in MODULES
        if within(module, package)
        for name in imports(module)
        if within(name, "paritas") and name != "paritas" and not any(within(name, each) for each in allowed)
    }
    assert not outside


def test_torch_and_transformers_are_imported_by_verify_and_diagnose_alone_and_lazily() -> None:
    importers = {module for module in MODULES if FRAMEWORKS & {name.split(".")[0] for name in imports(module)}}
    outside = {m for m in importers if not within(m, "paritas.verify") and not within(m, "paritas.diagnose")}
    assert outside == set()
    lazily = {module for module in MODULES if FRAMEWORKS & {name.split(".")[0] for name in imports(module, top=True)}}
    assert lazily == set()


def test_imports_have_no_circle() -> None:
    """Nor one that an import inside a function would hide."""
    order = TopologicalSorter({module: imports(module) & MODULES.keys() - {module} for module in MODULES})
    order.prepare()


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils", "util", "helpers", "helper", "common", "manager", "misc", "registry"}
    assert not {module for module in MODULES if drawers & set(module.split("."))}


@pytest.mark.parametrize(("package", "most"), [("paritas", 500), ("paritas.families", 120)])
def test_files_fit_a_reader(package: str, most: int) -> None:
    lines = {module: len(path.read_text().splitlines()) for module, path in MODULES.items() if within(module, package)}
    assert {module: count for module, count in lines.items() if count > most} == {}


def test_functions_fit_a_screen() -> None:
    """40 lines, declaration and documentation not counted."""
    long = {f"{module}.{node.name}": body_lines(node) for module in MODULES for node in functions(module)}
    assert {name: count for name, count in long.items() if count > 40} == {}


def test_an_export_needs_neither_torch_nor_transformers(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from paritas.export import export
from paritas.targets import TARGETS
for name, target in TARGETS.items():
    export({str(checkpoint("gemma3"))!r}, Path({str(tmp_path)!r}) / name, target)
assert not {FRAMEWORKS} & set(sys.modules), sorted({FRAMEWORKS} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def imports(module: str, *, top: bool = False) -> set[str]:
    """Full names of the modules that a module imports, by statement or by ``import_module``; at its top level alone."""
    nodes = tree(module).body if top else ast.walk(tree(module))
    return {name for node in nodes for name in imported(node)}


def imported(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (each.name for each in names)
        case ast.ImportFrom(module=str(source), names=names, level=0):
            inner = [f"{source}.{each.name}" for each in names if f"{source}.{each.name}" in MODULES]
            yield from inner if len(inner) == len(names) else [source, *inner]
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
            yield name


def functions(module: str) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef))


def body_lines(node: ast.FunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_every_family_has_been_proven_on_every_target() -> None:
    """``paritas families`` shows a record; a family that nobody proved is not in it."""
    from paritas.families import families
    from paritas.proven import proven
    from paritas.targets import TARGETS
    from paritas.verify.verdict import PROVEN_FLOORS
    from tiny import of_family

    record = proven().families
    assert record.keys() == families().keys(), "python tools/prove_families.py"
    for name, targets in record.items():
        assert {each.checkpoints for each in targets.values()} == {tuple(of_family(name))}, f"prove {name} again"
    assert {name: set(targets) for name, targets in record.items()} == {name: set(TARGETS) for name in record}
    assert max(each.worst for targets in record.values() for each in targets.values()) <= PROVEN_FLOORS
