"""Decoders that readers accept and that are described wrongly: roles, sizes and states against the graph."""

import re
from collections.abc import Iterator, Mapping

from paritas.audit.finding import layers as layers_of
from paritas.audit.sites import sites
from paritas.audit.windows import window_at
from paritas.errors import ParitasError
from paritas.lint.contract import Contract
from paritas.lint.document import Document
from paritas.lint.fault import Findings, doubt, fault, mapping
from paritas.lint.parts import Graph, Part
from paritas.runtime.ports import Ports, read_ports


def decoder_findings(document: Document, parts: Mapping[str, Part]) -> Findings:
    """Of each graph that takes tokens; what attends takes tokens, or their embeddings."""
    graphs = [part for part in parts.values() if part.graph is not None]
    for part in graphs:
        if (
            len(graphs) == 1
            and _attends(document, part)
            and not {"token_ids", "inputs_embeds"} & {*part.roles.values()}
        ):
            yield fault(
                "metadata-role-missing",
                document.at("pipeline", "workflow", "components", part.name, "ports", "roles"),
                "it attends, and none of its inputs has the role token_ids or inputs_embeds",
                "Give the input that takes the prompt its role.",
            )
    for part in parts.values():
        if part.graph is not None and part.port_of("token_ids") is not None:
            yield from _decoder(document, part, part.graph)


def _attends(document: Document, part: Part) -> bool:
    """Whether a group of keys and values has an end at it."""
    return any(
        group["kind"].endswith("attention") and mapping(mapping(group, "ports"), part.name)
        for group in document.groups.values()
    )


def decoder_of(parts: Mapping[str, Part]) -> Part | None:
    """The component that takes tokens, if there is one whose graph could be read."""
    return next((p for p in parts.values() if p.graph is not None and p.port_of("token_ids") is not None), None)


def _decoder(document: Document, part: Part, graph: Graph) -> Findings:
    at = document.at("pipeline", "workflow", "components", part.name)
    try:
        ports = read_ports(graph.path, proto=graph.proto)
    except ParitasError as error:
        yield doubt("metadata-decoder-unread", at, f"its ports could not be told apart: {error.fact}", error.hint)
        return
    yield from _roles(document, part, ports)
    yield from _symbols(document, part, ports)
    yield from _owned(document, part, ports)
    yield from _heads(document, part, graph)
    yield from _windows(document, part, graph)
    yield from _aliasing(document, part, ports)
    yield from _unexplained(document, part, graph, ports)


def _roles(document: Document, part: Part, ports: Ports) -> Findings:
    real = {"attention_mask": ports.attention_mask, "position_ids": ports.position_ids, "logits": ports.logits}
    for role, port in real.items():
        if port is not None and part.roles.get(port) != role:
            yield fault(
                "metadata-role-missing",
                document.at("pipeline", "workflow", "components", part.name, "ports", "roles"),
                f"{port!r} has no role {role}",
                "A runtime that fills it in by itself finds it by its role.",
            )


def _symbols(document: Document, part: Part, ports: Ports) -> Findings:
    """Lengths of a call, of the past and of both together differ, so their symbols have to."""
    if not part.declared:
        return
    told = {**(part.inputs or {}), **(part.outputs or {})}
    past = {_length(told, cache.past_key, cache.axis) for cache in ports.caches}
    present = {_length(told, cache.present_key, cache.axis) for cache in ports.caches}
    call = {_length(told, ports.input_ids, 1)}
    seen = {_length(told, ports.attention_mask, 1)}
    for one, other, words in (
        (call, past, "a call and the past"),
        (past, present, "the past and the present"),
        (call, present, "a call and the present"),
        (call, seen, "a call and the mask"),
        (past, seen, "the past and the mask"),
    ):
        shared = (one & other) - {None}
        if shared:
            yield fault(
                "metadata-symbols",
                document.at("pipeline", "workflow", "components", part.name, "ports"),
                f"{words} are both {', '.join(sorted(map(str, shared)))} long: sizes of one symbol have to be equal",
                "Give each length a symbol of its own.",
            )


def _length(told: Mapping[str, Contract], name: str | None, axis: int) -> str | None:
    contract = told.get(name) if name is not None else None
    size = contract.shape[axis] if contract is not None and contract.rank > axis else None
    return size if isinstance(size, str) else None


def _owned(document: Document, part: Part, ports: Ports) -> Findings:
    """Every state of the graph is in a group, with the graph's own two ends."""
    ends = dict(_ends(document, part))
    for carried in ports.carried:
        if carried.past not in ends:
            yield fault(
                "metadata-state-unowned",
                document.at_group(),
                f"{carried.past!r} goes from call to call, and is in no group",
                "List it, with the group of its layer's kind.",
            )
        elif ends[carried.past] != carried.present:
            yield fault(
                "metadata-alias-crossed",
                document.at_group(),
                f"{carried.past!r} goes on as {ends[carried.past]!r}; the graph gives it as {carried.present!r}",
                "Name the output of the same layer and half.",
            )


def _ends(document: Document, part: Part) -> Iterator[tuple[str, str | None]]:
    for group in document.groups.values():
        for alias in mapping(mapping(group, "ports"), part.name).values():
            yield alias["input"], alias.get("output")


def _heads(document: Document, part: Part, graph: Graph) -> Findings:
    """The decode session of the wheel allocates caches by the graph's own numbers."""
    for past, _ in _ends(document, part):
        contract = graph.inputs.get(past)
        if (
            contract is not None
            and contract.rank == 4
            and not all(isinstance(contract.shape[axis], int) for axis in (1, 3))
        ):
            yield fault(
                "metadata-head-dim",
                document.at("pipeline", "workflow", "components", part.name, "ports", "inputs", past),
                f"the graph declares it as {contract}: heads and their size have to be numbers",
                "Write them into the graph.",
            )


def _windows(document: Document, part: Part, graph: Graph) -> Findings:
    """Kinds of groups against the windows that the graph's attention has."""
    windows = {site.layer: window_at(graph.view, site, 0) for site in sites(graph.view)}
    for name, group in document.groups.items():
        if group["kind"] not in ("full_attention", "sliding_attention"):
            continue
        aliases = mapping(mapping(group, "ports"), part.name).values()
        layers = {int(found[0]) for alias in aliases if len(found := re.findall(r"\d+", alias["input"])) == 1}
        wrong = sorted(
            layer
            for layer in layers
            if windows.get(layer, False) is not False
            and (windows[layer] is None) != (group["kind"] == "full_attention")
        )
        if wrong:
            yield fault(
                "metadata-state-kind",
                document.at_group(name),
                f"{layers_of(wrong)}: {'no' if windows[wrong[0]] is None else 'a'} window in the graph",
                "Move them to the group of their kind.",
            )


def _aliasing(document: Document, part: Part, ports: Ports) -> Findings:
    in_place = {name: cache.in_place for cache in ports.caches for name in (cache.past_key, cache.past_value)}
    for name, group in document.groups.items():
        aliases = mapping(mapping(group, "ports"), part.name).values()
        apart = sorted(alias["input"] for alias in aliases if in_place.get(alias["input"], True) is False)
        if group.get("aliasing", "forbidden") != "forbidden" and group["update"]["kind"] == "append" and apart:
            yield fault(
                "metadata-aliasing",
                document.at_group(name),
                f"aliasing is {group['aliasing']}, and the graph makes a longer tensor of {apart[0]}",
                "Write aliasing: forbidden.",
            )


def _unexplained(document: Document, part: Part, graph: Graph, ports: Ports) -> Findings:
    known = {carried.present for carried in ports.carried} | part.roles.keys()
    for name, contract in graph.outputs.items():
        if name not in known and contract.dtype.startswith(("float", "bfloat")):
            yield fault(
                "metadata-output-unexplained",
                document.at("pipeline", "workflow", "components", part.name, "ports", "roles"),
                f"output {name!r} is neither logits nor a state, and has no role: the wheel takes it for a state",
                "Give it the role hidden_states.",
            )
