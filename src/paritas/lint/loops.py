"""Loops that begin anew at every turn: what they read, or go on by, and do not carry to the next one."""

from paritas.lint.boundary import every_step
from paritas.lint.document import Document
from paritas.lint.fault import Findings, fault, mapping


def loop_findings(document: Document) -> Findings:
    """Of every loop, wherever it is."""
    for loop in (step for step in every_step(document.workflow["steps"]) if step["kind"] == "loop"):
        calls = [each for each in loop["steps"] if each["kind"] == "invoke"]
        fed = {value for each in calls for value in mapping(each, "inputs").values()}
        kept = {carry["cell"] for carry in loop.get("carried") or ()}
        for name, cell in document.part("state").items():
            matters = (name in fed and cell.get("service_group") is not None) or name == loop["continue_when"]
            if matters and name not in kept:
                yield fault(
                    "metadata-state-lost",
                    document.at("pipeline", "workflow", "steps"),
                    f"{name!r} goes into every turn of a loop, and nothing carries it to the next",
                    "Carry it.",
                )
