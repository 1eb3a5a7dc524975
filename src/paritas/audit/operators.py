"""Operators and attributes that the installed ONNX Runtime does not know: it refuses to load the graph."""

import importlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import onnx

from paritas.audit.finding import Finding, names
from paritas.runtime import proto

_STANDARD = ("", "ai.onnx")


def operator_findings(model: onnx.ModelProto) -> Iterator[Finding]:
    """Of the whole model, with its subgraphs and functions."""
    versions = {each.domain: each.version for each in model.opset_import}
    standard = versions.get("", versions.get("ai.onnx", 1))
    own = {(function.domain, function.name) for function in model.functions}
    unknown: dict[str, list[str]] = defaultdict(list)
    wrong: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in proto.nodes(model):
        if (node.domain, node.op_type) in own:
            continue
        allowed = _attributes(node, standard)
        where = node.name or next(iter(node.output), node.op_type)
        if allowed is None:
            unknown[proto.operator(node)].append(where)
            continue
        for attribute in node.attribute:
            if attribute.name not in allowed:
                wrong[proto.operator(node), attribute.name].append(where)
    version = importlib.import_module("onnxruntime").__version__
    for operator, places in unknown.items():
        fact = f"ONNX Runtime {version} has no operator {operator}"
        yield Finding("operator-unknown", "warning", names(places), fact, "Say in the package which runtime has it.")
    for (operator, attribute), places in wrong.items():
        fact = f"{operator} of ONNX Runtime {version} has no attribute {attribute}: the graph does not load"
        yield Finding("operator-attribute-unknown", "error", names(places), fact, "Leave the attribute out.")


def _attributes(node: onnx.NodeProto, version: int) -> frozenset[str] | None:
    """Names that a node's attributes may have; None if there is no such operator."""
    if node.domain in _STANDARD:
        try:
            return frozenset(onnx.defs.get_schema(node.op_type, version, "").attributes)
        except onnx.defs.SchemaError:
            pass  # a few operators of the runtime's lie in the standard domain (SimplifiedLayerNormalization)
    domain = "" if node.domain in _STANDARD else node.domain
    return _contributed().get((domain, node.op_type))


@cache
def _contributed() -> Mapping[tuple[str, str], frozenset[str]]:
    """Domain and name of the runtime's own operators -> names of their attributes, of all versions."""
    runtime: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    found: dict[tuple[str, str], frozenset[str]] = {}
    for schema in runtime.get_all_operator_schema():
        domain = "" if schema.domain in _STANDARD else schema.domain
        key = (domain, schema.name)
        found[key] = found.get(key, frozenset()) | frozenset(schema.attributes)
    return found
