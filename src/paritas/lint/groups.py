"""States and the groups that a runtime keeps them in: rules of the standard."""

from collections.abc import Mapping

from paritas.lint.contract import INTEGERS, Contract
from paritas.lint.document import Document
from paritas.lint.fault import Findings, Values, fault, mapping
from paritas.lint.parts import Part

ATTENTION = ("full_attention", "sliding_attention", "multi_latent_attention", "cross_attention")


def group_findings(document: Document, parts: Mapping[str, Part]) -> Findings:
    """Cells, then groups, then their ends at the components."""
    for name, cell in document.part("state").items():
        for why, remedy in _cell(document, name, cell):
            yield fault("metadata-state", document.at("pipeline", "workflow", "state", name), why, remedy)
    yield from _serving(document)
    for name, group in document.groups.items():
        for why, remedy in _group(document, name, group):
            yield fault("metadata-group", document.at_group(name), why, remedy)
        for component, aliases in mapping(group, "ports").items():
            yield from _aliases(document, parts, name, component, aliases)


def _cell(document: Document, name: str, cell: Values) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    contract, recurrence = Contract.of(cell["contract"]), cell["recurrence"]
    axis, group_name = recurrence.get("axis"), cell.get("service_group")
    management = cell.get("management", "workflow")
    if axis is not None and axis >= contract.rank:
        found.append((f"it varies at axis {axis}, and is {contract}", "Name an axis that it has."))
    if recurrence["kind"] == "growing" and recurrence["increment"] != mapping(document.workflow, "serving").get(
        "accepted_len"
    ):
        found.append((f"it grows by {recurrence['increment']}", "What grows grows by serving.accepted_len."))
    for key in ("max", "increment"):
        if key in recurrence and (why := _no_number(document, recurrence[key], key)) is not None:
            found.append((why, "Name an integer."))
    if (management == "workflow") != (cell.get("release_boundary") is None):
        found.append(
            (f"management is {management}", "release_boundary is of cells that a runtime keeps, and of all of them.")
        )
    if cell.get("scope") == "invocation" and (cell.get("session") or cell.get("release_boundary") == "session"):
        found.append(
            ("it ends with the invocation, and has settings of a session", "Make its scope session, or leave them out.")
        )
    if group_name is not None:
        found += _of_group(document, cell, contract)
    if management != "workflow" and name in document.part("outputs"):
        found.append(("the runtime keeps it, and it is published as an output", "Publish another value."))
    return found


def _of_group(document: Document, cell: Values, contract: Contract) -> list[tuple[str, str]]:
    group = document.groups.get(cell["service_group"])
    if group is None:
        return [(f"there is no group {cell['service_group']!r}", "Declare it in serving.state_service.groups.")]
    found: list[tuple[str, str]] = []
    axis, varies = group.get("sequence_axis"), cell["recurrence"].get("axis")
    if cell.get("management") != "runtime":
        found.append(("it is of a group, and the runtime does not keep it", "Write management: runtime."))
    if contract.rows is None:
        found.append(("it is of a group, and has no row for each request", "Make it request_aligned."))
    if axis is not None and axis >= contract.rank:
        found.append((f"the group's sequence_axis is {axis}, and it is {contract}", "Name an axis that it has."))
    if varies is not None and varies != axis:
        found.append((f"it varies at axis {varies}, and the group's sequence_axis is {axis}", "Make them one."))
    return found


def _no_number(document: Document, name: str, key: str) -> str | None:
    source = document.part("inputs").get(name) or document.part("state").get(name)
    if source is None:
        return f"its {key}, {name!r}, is neither an input nor a cell"
    contract = Contract.of(source["contract"])
    fits = contract.dtype in INTEGERS and (contract.scalar or key == "increment")
    return None if fits else f"its {key}, {name!r}, is {contract}"


def _serving(document: Document) -> Findings:
    serving: Values | None = document.workflow.get("serving")
    if serving is None:
        return
    where = document.at("pipeline", "workflow", "serving")
    if not document.groups:
        yield fault("metadata-group", where, "it has no groups", "Declare them, or leave serving out.")
    if serving.get("accepted_len") is None:
        yield fault("metadata-group", where, "it has no accepted_len", "Name the value that tells it.")


def _group(document: Document, name: str, group: Values) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    update, axis = group["update"]["kind"], group.get("sequence_axis")
    cells = {cell: each for cell, each in document.part("state").items() if each.get("service_group") == name}
    if not group["layout"]:
        found.append(("its layout is empty", "Write the order of the sizes, bnsh."))
    if (update == "replace") != (axis is None):
        found.append(
            (f"its update is {update}, its sequence_axis is {axis}", "What is replaced has none, all else has one.")
        )
    if update == "replace" and any(cell["recurrence"]["kind"] != "invariant" for cell in cells.values()):
        found.append(("it is replaced, and a cell of it varies in size", "Such cells are invariant."))
    lost = set(mapping(group, "capabilities").get("cascade") or ()) - document.groups.keys()
    if lost:
        found.append((f"it cascades to {', '.join(sorted(lost))}, which is no group", "Name groups."))
    if mapping(group, "capabilities").get("rollback_positions") == 0:
        found.append(("rollback_positions is 0", "Leave it out where nothing can be taken back."))
    if (group.get("checkpoint") is not None) and not document.canonical:
        found.append(("its checkpoint adapter is known to no release", "Leave checkpoint out."))
    for key in ("logical_lengths", "total_length"):
        told = group.get(key)
        if told is not None and told not in document.part("state"):
            found.append((f"its {key}, {told!r}, is no cell", "Name one."))
    if update == "indexed_scatter":
        found += _scatter(document, group, cells)
    return found


def _scatter(document: Document, group: Values, cells: Mapping[str, Values]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    update = group["update"]
    if group.get("logical_lengths") is None:
        found.append(("it is scattered into, and has no logical_lengths", "Name the cell that tells them."))
    indices = document.part("state").get(update["write_indices"])
    if indices is None or Contract.of(indices["contract"]).rank != 1:
        found.append((f"write_indices {update['write_indices']!r} is no cell of one index a row", "Name one."))
    if (why := _no_number(document, update["capacity"], "capacity")) is not None:
        found.append((why, "Name an integer."))
    for key in ("write_indices_ports", "kv_length_ports"):
        lost = set(update.get(key) or {}) - document.part("components").keys()
        if lost:
            found.append((f"{key} names {', '.join(sorted(lost))}", "Name components."))
        if unbound := set(group.get("ports") or {}) - set(update.get(key) or {}):
            found.append((f"{key} says nothing of {', '.join(sorted(unbound))}", "Name its port."))
    if any(cell["recurrence"]["kind"] != "invariant" for cell in cells.values()):
        found.append(("it is scattered into, and a cell of it varies in size", "Such cells are invariant."))
    return found


def _aliases(
    document: Document, parts: Mapping[str, Part], group: str, component: str, aliases: Mapping[str, Values]
) -> Findings:
    part = parts.get(component)
    if part is None:
        yield fault(
            "metadata-alias", document.at_group(group, "ports", component), "there is no such component", "Name one."
        )
        return
    for cell, alias in aliases.items():
        for why, remedy in _alias(document, part, group, cell, alias):
            yield fault("metadata-alias", document.at_group(group, "ports", component, cell), why, remedy)
    yield from _layers(document, group, component, aliases)


def _alias(document: Document, part: Part, group: str, cell: str, alias: Values) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    own = document.part("state").get(cell)
    if own is None:
        found.append(("there is no such cell", "Name a cell of the state."))
    elif own.get("service_group") != group:
        found.append((f"the cell is of group {own.get('service_group')}", "List it with its own group."))
    reads = alias.get("access") == "read_only"
    if alias.get("output") is None and not reads:
        found.append(("it has no output", "Name the port, or make its access read_only."))
    for side, real in (("input", part.inputs), ("output", part.outputs)):
        port = alias.get(side)
        if port is None or real is None:
            continue
        if port not in real:
            found.append((f"{part.name} has no {side} {port!r}", "Name a port that its graph has."))
        elif own is not None and (why := _grown(own, real[port])) is not None:
            found.append((f"{side} {port!r}: {why}", "Cell and port are one tensor."))
    return found


def _grown(cell: Values, port: Contract) -> str | None:
    """The cell against a port of it."""
    return Contract.of(cell["contract"]).against(port)


def _layers(document: Document, group: str, component: str, aliases: Mapping[str, Values]) -> Findings:
    """Several of one role have a layer each, all different; keys and values are of the same layers."""
    where = document.at_group(group, "ports", component)
    by_role: dict[str, list[int | None]] = {}
    for alias in aliases.values():
        by_role.setdefault(alias.get("role", "combined"), []).append(alias.get("layer"))
    for role, layers in by_role.items():
        if len(layers) < 2:
            continue
        if None in layers:
            yield fault(
                "metadata-layer-wrong",
                where,
                f"a {role} of several has no layer",
                "Number all of them.",
            )
        elif len(set(layers)) < len(layers):
            yield fault("metadata-layer-wrong", where, f"two {role}s are of one layer", "Number them apart.")
    keys, values = (set(by_role.get(role, ())) for role in ("key", "value"))
    if document.groups[group]["kind"] in ATTENTION and keys != values:
        odd = ", ".join(sorted(map(str, keys ^ values)))
        yield fault("metadata-layer-wrong", where, f"keys and values differ in layers: {odd}", "Pair them.")
