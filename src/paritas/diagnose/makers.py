"""Who made a package, and the command line that makes it again: by the graph's producer, where that is installed."""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Set

from paritas.diagnose.shrink.exporter import MODEL, PACKAGE, Exporter
from paritas.runtime.package import Package

Operators = Set[tuple[str, str]]
"""Domain and name of each that a graph has."""

_FUSED = "com.microsoft"


def _ours(operators: Operators) -> tuple[str, ...]:
    target = "ort" if any(domain == _FUSED for domain, _ in operators) else "onnx"
    return ("paritas", "export", MODEL, PACKAGE, "--no-verify", "--target", target)


def _builder(operators: Operators) -> tuple[str, ...]:
    del operators
    module = "onnxruntime_genai.models.builder"
    return (module, "-i", MODEL, "-o", PACKAGE, "-p", "fp32", "-e", "cpu", "-c", f"{PACKAGE}/cache")


def _mobius(operators: Operators) -> tuple[str, ...]:
    provider = "cpu" if (_FUSED, "GroupQueryAttention") in operators else "default"
    return ("mobius", "build", "--model", MODEL, PACKAGE, "--dtype", "f32", "--ep", provider)


_MAKERS: Mapping[str, Callable[[Operators], tuple[str, ...]]] = {
    "paritas": _ours,
    "onnxruntime-genai": _builder,
    "mobius": _mobius,
}
"""Producer of a graph -> the module that is run for a package of fp32, and its words; they hang on the operators that a
package has."""


def maker(package: Package) -> Exporter | None:
    """The exporter that made a package, as this Python can run it; None if it is unknown or not installed here."""
    proto = package.proto
    if proto.producer_name not in _MAKERS:
        return None
    operators = {(node.domain, node.op_type) for node in proto.graph.node}
    module, *words = _MAKERS[proto.producer_name](operators)
    return Exporter((sys.executable, "-m", module, *words)) if _is_installed(module) else None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
