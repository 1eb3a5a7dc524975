"""Declared ports against the graphs: names, types, fixed sizes, and that everything a graph takes is fed."""

from collections.abc import Mapping

from paritas.lint.contract import Contract
from paritas.lint.document import Document
from paritas.lint.fault import Findings, fault
from paritas.lint.parts import Part, Ports


def graph_findings(document: Document, parts: Mapping[str, Part]) -> Findings:
    """Of every component that is a graph."""
    for part in parts.values():
        if part.graph is None:
            continue
        at = ("pipeline", "workflow", "components", part.name, "ports")
        if part.declared:
            yield from _side(document, part, part.inputs or {}, part.graph.inputs, (*at, "inputs"))
            yield from _side(document, part, part.outputs or {}, part.graph.outputs, (*at, "outputs"))
            unfed = sorted(part.graph.inputs.keys() - (part.inputs or {}).keys())
            if unfed:
                yield fault(
                    "metadata-input-unfed",
                    document.at(*at, "inputs"),
                    f"the graph takes {', '.join(unfed)}, which nobody feeds",
                    "Declare every input of the graph.",
                )
        real = {*part.graph.inputs, *part.graph.outputs}
        for port, role in part.roles.items():
            if port not in real:
                yield fault(
                    "metadata-port-missing",
                    document.at(*at, "roles", port),
                    f"the graph of {part.name} has no {port!r} to be {role}",
                    "Name a port that its graph has; paritas inspect shows them.",
                )


def _side(document: Document, part: Part, told: Ports, real: Ports, path: tuple[str, ...]) -> Findings:
    for port, contract in told.items():
        where = document.at(*path, port)
        if port not in real:
            yield fault(
                "metadata-port-missing",
                where,
                f"the graph of {part.name} has no {path[-1][:-1]} {port!r}",
                "Name a port that its graph has; paritas inspect shows them.",
            )
        elif (why := _differs(contract, real[port])) is not None:
            yield fault(
                "metadata-port-differs", where, f"{why}: the document, then the graph", "Write what the graph has."
            )


def _differs(told: Contract, real: Contract) -> str | None:
    """Why a declaration is not the graph's; a number where the graph has none is a promise that it does not keep."""
    if (why := told.against(real)) is not None:
        return why
    pairs = zip(told.shape, real.shape, strict=True)
    if any(isinstance(a, int) and not isinstance(b, int) for a, b in pairs):
        return f"{told} against {real}"
    return None
