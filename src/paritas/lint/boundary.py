"""What comes in, what goes out, and what components promise: rules of each by itself."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from paritas.lint.contract import own_faults
from paritas.lint.document import Document
from paritas.lint.fault import Findings, Values, fault, mapping
from paritas.lint.parts import Part

_ABSENT = ("media", "constraint", "session_id")


def boundary_findings(document: Document, parts: Mapping[str, Part]) -> Findings:
    """Inputs, outputs, components, generation, capabilities."""
    for name, given in document.part("inputs").items():
        for why, remedy in _input(given):
            yield fault("metadata-input", document.at("pipeline", "workflow", "inputs", name), why, remedy)
    yield from _presences(document)
    yield from _contracts(document)
    for name, given in document.part("outputs").items():
        for why, remedy in _output(given):
            yield fault("metadata-output", document.at("pipeline", "workflow", "outputs", name), why, remedy)
    for part in parts.values():
        for why, remedy in _component(document, part):
            yield fault("metadata-component", document.at("pipeline", "workflow", "components", part.name), why, remedy)
    yield from _overrides(document)
    yield from _capabilities(document)


def _contracts(document: Document) -> Findings:
    """Every contract by itself."""
    for path, values in _held(document.workflow, ("pipeline", "workflow")):
        for why, remedy in own_faults(values):
            yield fault("metadata-contract", document.at(*path), why, remedy)


def _held(values: Any, path: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], Values]]:
    if isinstance(values, dict):
        held = cast(Values, values)
        if "dtype" in held:
            yield path, held
        for key, each in held.items():
            yield from _held(each, (*path, key))
    elif isinstance(values, list):
        for place, each in enumerate(cast(list[Any], values)):
            yield from _held(each, (*path, place))


def _fits(value: Any, dtype: str) -> bool:
    """Whether a literal is of a type."""
    if isinstance(value, list):
        return all(_fits(each, dtype) for each in cast(list[Any], value))
    if dtype == "bool":
        return isinstance(value, bool)
    known = (int,) if "int" in dtype else (int, float)
    return isinstance(value, known) and not isinstance(value, bool)


def _input(given: Values) -> list[tuple[str, str]]:
    source, role = given["source"]["kind"], given["role"]["kind"]
    found: list[tuple[str, str]] = []
    if source == "request" and role != "runtime":
        found.append(("it comes with the request, and has no role there", "Give it a role of kind runtime."))
    default = given.get("default")
    if default is not None and not _fits(default, given["contract"]["dtype"]):
        found.append((f"its default {default!r} is no {given['contract']['dtype']}", "Write one that is."))
    if not given.get("required", True) and default is None and not given.get("present_as"):
        found.append(("it is not required, and nothing tells what it is then", "Give it a default, or present_as."))
    if given.get("present_as"):
        if given.get("required", True) or default is not None:
            found.append(("it has present_as, and is never absent", "Leave present_as, or make it not required."))
        if source not in ("request", "application"):
            found.append((f"a {source} is never absent", "Leave present_as out."))
        if source == "request" and given["role"].get("role") not in _ABSENT:
            found.append((f"a {given['role'].get('role')} may not be absent", f"Only {', '.join(_ABSENT)} may be."))
    return found


def _presences(document: Document) -> Findings:
    seen: dict[str, str] = {}
    for name, given in document.part("inputs").items():
        presence = given.get("present_as")
        if presence is None:
            continue
        if presence in seen or presence in document.part("inputs"):
            yield fault(
                "metadata-input",
                document.at("pipeline", "workflow", "inputs", name),
                f"{presence!r} is the name of another value",
                "Give it one of its own.",
            )
        seen[presence] = name


def _output(given: Values) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    image, audio = given["role"] == "image", given["role"] == "audio"
    if image != bool(given.get("value_range")):
        found.append(("images have a value_range, and nothing else has one", "Write it, or leave it out."))
    media = given.get("media")
    if media and not audio:
        found.append(("media is of audio alone", "Leave it out."))
    if media and not (media.get("sample_rate_hz", 1) > 0 and media.get("channels", 1) > 0):
        found.append(("it has no samples or no channels", "Write how many there are."))
    return found


def _component(document: Document, part: Part) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    values = part.values
    implementation = values["implementation"]
    if not part.name or "." in part.name:
        found.append(("a component's name is not empty and has no dot", "Rename it."))
    if implementation["kind"] == "adapter":
        pinned = mapping(document.workflow["manifest"], "adapter_abis").get(implementation["abi"])
        if pinned != implementation["version"]:
            found.append((f"{implementation['abi']} is not pinned in manifest.adapter_abis", "Pin its version there."))
    contract: Values = values.get("contract") or {}
    if contract and not (contract["id"] and contract["version"]):
        found.append(("its contract has no id or no version", "Write both."))
    if part.declared:
        ports = {*(part.inputs or {}), *(part.outputs or {})}
        lost = sorted(set(mapping(contract, "bindings").values()) - ports)
        if lost:
            found.append((f"its contract binds {', '.join(lost)}, which it does not have", "Name its ports."))
    if values.get("application_overridable") and not (contract and implementation["kind"] == "onnx"):
        found.append(("only a graph with a contract can be overridden", "Write the contract."))
    unknown = sorted(set(values.get("effects") or ()) - mapping(document.workflow, "effects").keys())
    if unknown:
        found.append((f"effects {', '.join(unknown)} are described nowhere", "Describe them in workflow.effects."))
    return found


def _overrides(document: Document) -> Findings:
    for name, given in mapping(mapping(document.values, "generation"), "overrides").items():
        source = document.part("inputs").get(given["input"])
        limits: Values = given.get("constraint") or {}
        least, most = limits.get("minimum"), limits.get("maximum")
        where = document.at("generation", "overrides", name)
        if source is None or source["source"]["kind"] != "request" or source["role"]["kind"] != "runtime":
            yield fault(
                "metadata-generation", where, f"{given['input']!r} is no input of the request", "Name one that is."
            )
        if least is not None and most is not None and least > most:
            yield fault("metadata-generation", where, f"{least} to {most} is no range", "Turn them round.")


def _capabilities(document: Document) -> Findings:
    """The dialect of August lists what a document uses; one that is missing makes it invalid."""
    if not document.canonical:
        return
    told = set(document.workflow["manifest"].get("capabilities") or ())
    lost = sorted(_used(document) - told)
    if lost:
        yield fault(
            "metadata-capability",
            document.at("pipeline", "workflow", "manifest", "capabilities"),
            f"the workflow uses {', '.join(lost)}, and does not say so",
            "List them.",
        )


def _used(document: Document) -> set[str]:
    inputs, cells = document.part("inputs").values(), document.part("state").values()
    steps = list(every_step(document.workflow["steps"]))
    kinds = {step["kind"] for step in steps}
    uses = {
        "serving_service_contract": bool(document.workflow.get("serving")),
        "session_state_lease": any(cell.get("scope") == "session" for cell in cells),
        "bounded_state_recurrence": any(cell["recurrence"]["kind"] == "bounded" for cell in cells),
        "advisory_state": any(cell.get("class") == "advisory" for cell in cells),
        "input_presence": any(given.get("present_as") for given in inputs),
        "nested_control_flow": bool(kinds & {"loop", "branch"}),
        "linear_effects": any(step["kind"] == "loop" and _threads(step) for step in steps),
        "loop_induction_values": any(step.get("iteration") for step in steps),
        "typed_emit": "emit" in kinds,
        "streaming_emit": any(step.get("mode") == "event" for step in steps),
        "emit_valid_length": any(step.get("valid_length") for step in steps),
    }
    return {"workflow_ssa", *(name for name, used in uses.items() if used)}


def _threads(loop: Values) -> bool:
    return bool(loop.get("carried")) or any(step["kind"] == "emit" for step in every_step(loop["steps"]))


def every_step(steps: list[Values]) -> list[Values]:
    """Steps, and those inside of them."""
    found: list[Values] = []
    for step in steps:
        inner = [*(step.get("setup") or ()), *(step.get("steps") or ()), *mapping(step, "cases").values()]
        if step.get("default") and step["kind"] == "branch":
            inner.append(step["default"])
        found += [step, *every_step(inner)]
    return found
