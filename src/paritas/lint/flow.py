"""What runs, step by step: every value is defined once, before it is used, and is what the port that takes it wants."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paritas.audit.finding import Finding
from paritas.lint.contract import BOOL, INTEGERS, Contract
from paritas.lint.document import Document
from paritas.lint.fault import Values, fault, mapping
from paritas.lint.parts import Part, Ports

Scope = dict[str, Contract | None]
"""Value -> what it is; None where that could not be told, because something before it is wrong."""


class Flow:
    """A walk through the steps of a workflow."""

    def __init__(self, document: Document, parts: Mapping[str, Part]) -> None:
        self._document = document
        self._parts = parts
        self._optional: set[str] = set()

    def findings(self) -> Iterator[Finding]:
        """Of all steps."""
        scope: Scope = {}
        for name, given in self._document.part("inputs").items():
            scope[name] = Contract.of(given["contract"])
            if (presence := given.get("present_as")) is not None:
                scope[presence] = BOOL
                self._optional.add(name)
        scope |= {name: Contract.of(cell["contract"]) for name, cell in self._document.part("state").items()}
        for name, cell in self._document.part("state").items():
            yield from self._known(scope, cell["initializer"], ("state", name, "initializer"), scope[name])
        yield from self._steps(self._document.workflow["steps"], scope, ("steps",))
        yield from self._serving(scope)

    def _steps(self, steps: Sequence[Values], scope: Scope, path: tuple[object, ...]) -> Iterator[Finding]:
        for place, step in enumerate(steps):
            yield from self._step(step, scope, (*path, place))

    def _step(self, step: Values, scope: Scope, path: tuple[object, ...]) -> Iterator[Finding]:
        match step["kind"]:
            case "sequence":
                yield from self._sequence(step, scope, path)
            case "invoke":
                yield from self._invoke(step, scope, path)
            case "loop":
                yield from self._loop(step, scope, path)
            case "branch":
                yield from self._branch(step, scope, path)
            case _:
                yield from self._emit(step, scope, path)

    def _sequence(self, step: Values, scope: Scope, path: tuple[object, ...]) -> Iterator[Finding]:
        yield from self._body(step["steps"], path)
        yield from self._steps(step["steps"], scope, (*path, "steps"))

    def _invoke(self, step: Values, scope: Scope, path: tuple[object, ...]) -> Iterator[Finding]:
        part = self._parts.get(step["component"])
        if part is None:
            yield self._unknown("component", step["component"], path)
            scope |= dict.fromkeys(mapping(step, "outputs").values())
            return
        given: Values = step.get("inputs") or {}
        yield from self._ports(part, part.inputs, given, (*path, "inputs"), "input")
        for port, value in given.items():
            wanted = None if part.inputs is None else part.inputs.get(port)
            yield from self._known(scope, value, (*path, "inputs", port), wanted)
        taken: Values = step.get("outputs") or {}
        yield from self._ports(part, part.outputs, taken, (*path, "outputs"), "output")
        for port, value in taken.items():
            yield from self._define(
                scope, value, None if part.outputs is None else part.outputs.get(port), (*path, "outputs", port)
            )

    def _ports(
        self, part: Part, real: Ports | None, bound: Values, path: tuple[object, ...], side: str
    ) -> Iterator[Finding]:
        """Ports that are bound are there; those that are there are bound, but outputs that nobody declared."""
        if real is None:
            return
        for port in bound:
            if port not in real:
                yield fault(
                    "metadata-port-missing",
                    self._at(*path, port),
                    f"component {part.name} has no {side} {port!r}",
                    "Name a port that its graph has; paritas inspect shows them.",
                )
        needed = part.declared or side == "input"
        for port in real if needed else ():
            if port not in bound and not part.optional(port):
                yield fault(
                    "metadata-port-unbound",
                    self._at(*path),
                    f"{side} {port!r} of component {part.name} is not bound",
                    "Bind it to a value.",
                )

    def _loop(self, step: Values, scope: Scope, path: tuple[object, ...]) -> Iterator[Finding]:
        yield from self._body(step["steps"], path)
        yield from self._number(scope, step["max_iterations"], (*path, "max_iterations"))
        yield from self._flag(scope, step["continue_when"], (*path, "continue_when"))
        inner: Scope = dict(scope)
        yield from self._steps(step.get("setup") or (), inner, (*path, "setup"))
        begun = dict(inner)
        if (counter := step.get("iteration")) is not None:
            yield from self._define(inner, counter["value"], Contract.of(counter["contract"]), (*path, "iteration"))
            contract = Contract.of(counter["contract"])
            if contract.dtype != "int64" or contract.rank > 1:
                yield self._differs(f"{counter['value']} is {contract}, not int64[] or int64[1]", (*path, "iteration"))
        yield from self._steps(step["steps"], inner, (*path, "steps"))
        for place, carry in enumerate(step.get("carried") or ()):
            yield from self._carry(carry, begun, inner, (*path, "carried", place))

    def _carry(self, carry: Values, begun: Scope, inner: Scope, path: tuple[object, ...]) -> Iterator[Finding]:
        cell = self._document.part("state").get(carry["cell"])
        if cell is None:
            yield self._unknown("state", carry["cell"], path)
            return
        wanted = Contract.of(cell["contract"])
        axis = mapping(cell, "recurrence").get("axis")
        if axis is not None and axis < wanted.rank:
            wanted = replace(wanted, shape=(*wanted.shape[:axis], None, *wanted.shape[axis + 1 :]))
        yield from self._known(inner, carry["next"], (*path, "next"), wanted)
        if carry["next"] == carry["cell"]:
            yield self._differs(f"{carry['cell']} is carried on as itself: it never changes", (*path, "next"))
        if carry.get("initial") is not None:
            yield from self._known(begun, carry["initial"], (*path, "initial"), wanted)

    def _branch(self, step: Values, scope: Scope, path: tuple[object, ...]) -> Iterator[Finding]:
        yield from self._known(scope, step["predicate"], (*path, "predicate"), None)
        if not step["cases"]:
            yield self._empty(path)
        present = {n for n, i in self._document.part("inputs").items() if i.get("present_as") == step["predicate"]}
        inside: dict[str, Scope] = {}
        for name, case in step["cases"].items():
            guarded = present & self._optional if name == "true" else set[str]()
            self._optional -= guarded
            inside[name] = dict(scope)
            yield from self._steps([case], inside[name], (*path, "cases", name))
            self._optional |= guarded
        if step.get("default") is not None:
            inside["default"] = dict(scope)
            yield from self._steps([step["default"]], inside["default"], (*path, "default"))
        for name, output in mapping(step, "outputs").items():
            yield from self._merge(name, output, inside, scope, (*path, "outputs", name))

    def _merge(
        self, name: str, output: Values, inside: Mapping[str, Scope], scope: Scope, path: tuple[object, ...]
    ) -> Iterator[Finding]:
        """A value that every case gives, and gives alike."""
        sources = {**output["cases"], **({"default": output["default"]} if output.get("default") else {})}
        for case in sorted(inside.keys() - sources.keys()):
            yield self._differs(f"case {case!r} gives nothing for {name}", path)
        kinds: list[Contract] = []
        for case, value in sources.items():
            if case not in inside:
                yield self._unknown("case", case, path)
                continue
            yield from self._known(inside[case], value, (*path, case), kinds[0] if kinds else None)
            if (kind := inside[case].get(value)) is not None:
                kinds.append(kind)
        yield from self._define(scope, name, kinds[0] if kinds else None, path)

    def _emit(self, step: Values, scope: Scope, path: tuple[object, ...]) -> Iterator[Finding]:
        output = self._document.part("outputs").get(step["output"])
        if output is None:
            yield self._unknown("output", step["output"], path)
            return
        wanted = Contract.of(output["contract"])
        ragged = step.get("when") is not None or step.get("valid_length") is not None
        value = scope.get(step["value"])
        loose = replace(wanted, shape=(None,) * wanted.rank) if step.get("valid_length") is not None else wanted
        yield from self._known(scope, step["value"], (*path, "value"), loose)
        if step.get("when") is not None:
            yield from self._flag(scope, step["when"], (*path, "when"))
        if ragged and wanted.layout != "request_aligned":
            yield self._differs(f"{step['output']} is emitted row by row, and is not request_aligned", path)
        if value is not None and "unsaid" not in (value.layout, wanted.layout) and value.layout != wanted.layout:
            yield self._differs(f"{step['value']} is {value.layout}, {step['output']} is {wanted.layout}", path)

    def _serving(self, scope: Scope) -> Iterator[Finding]:
        serving: Values = self._document.workflow.get("serving") or {}
        for name in ("active", "done"):
            if serving.get(name) is not None:
                yield from self._flag(scope, serving[name], ("serving", name))
        if (accepted := serving.get("accepted_len")) is not None:
            yield from self._known(scope, accepted, ("serving", "accepted_len"), None)
            kind = scope.get(accepted)
            if kind is not None and (kind.dtype not in INTEGERS or not kind.flag_of_rows):
                yield self._differs(f"{accepted} is {kind}, not an integer for each row", ("serving", "accepted_len"))

    # What is asked of one value.

    def _known(self, scope: Scope, value: str, path: tuple[object, ...], wanted: Contract | None) -> Iterator[Finding]:
        if value not in scope:
            yield fault(
                "metadata-value-undefined",
                self._at(*path),
                f"{value!r} is not defined here",
                "Name an input, a cell of the state, or an output of an earlier step.",
            )
            return
        if value in self._optional:
            yield self._differs(f"{value!r} may be absent, and is read outside of the case that tells", path)
        kind = scope[value]
        if kind is not None and wanted is not None and (why := kind.against(wanted)) is not None:
            yield self._differs(f"{value!r} does not fit: {why}", path)

    def _define(self, scope: Scope, value: str, kind: Contract | None, path: tuple[object, ...]) -> Iterator[Finding]:
        if value in scope:
            yield fault(
                "metadata-value-redefined",
                self._at(*path),
                f"{value!r} is defined already",
                "Give it a name of its own.",
            )
        scope[value] = kind

    def _flag(self, scope: Scope, value: str, path: tuple[object, ...]) -> Iterator[Finding]:
        yield from self._known(scope, value, path, None)
        kind = scope.get(value)
        if kind is not None and (kind.dtype != "bool" or not kind.flag_of_rows):
            yield self._differs(f"{value} is {kind}, not a bool for each row", path)

    def _number(self, scope: Scope, value: str, path: tuple[object, ...]) -> Iterator[Finding]:
        yield from self._known(scope, value, path, None)
        kind = scope.get(value)
        if kind is not None and (kind.dtype not in INTEGERS or not kind.scalar):
            yield self._differs(f"{value} is {kind}, not one integer", path)

    def _body(self, steps: Sequence[Values], path: tuple[object, ...]) -> Iterator[Finding]:
        if not steps:
            yield self._empty(path)

    def _empty(self, path: tuple[object, ...]) -> Finding:
        return fault("metadata-empty", self._at(*path), "there is nothing in it", "Write its steps, or leave it out.")

    def _unknown(self, what: str, name: str, path: tuple[object, ...]) -> Finding:
        return fault(
            "metadata-name-unknown", self._at(*path), f"there is no {what} {name!r}", "Declare it, or correct the name."
        )

    def _differs(self, why: str, path: tuple[object, ...]) -> Finding:
        return fault("metadata-contract", self._at(*path), why, "Make the two sides one tensor.")

    def _at(self, *path: Any) -> str:
        return self._document.at("pipeline", "workflow", *path)
