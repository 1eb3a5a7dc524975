"""A drafter beside its target: rules of the standard, and what no reader looks at."""

import math
from collections.abc import Iterable, Mapping

from paritas.audit.finding import Finding
from paritas.audit.numbers import following_scale
from paritas.lint.document import Document
from paritas.lint.fault import Findings, Values, fault, mapping
from paritas.lint.parts import Graph, Part

IDENTITY, VERSION, ACCEPTED = "onnx-genai.speculative", "1", "accepted_prefix"


def speculation_findings(document: Document, parts: Mapping[str, Part]) -> Findings:
    """Of the section ``speculative``; nothing where there is none."""
    given: Values | None = document.values.get("speculative")
    if given is None:
        return
    proposer, target = (parts.get(given[key]) for key in ("proposer", "target"))
    for key, part in (("proposer", proposer), ("target", target)):
        if part is None:
            yield _fault(document, (key,), f"there is no component {given[key]!r}", "Name one.")
    if proposer is None or target is None:
        return
    yield from _identity(document, given)
    yield from _width(document, given)
    execution: Values = given.get("proposal_execution") or {"kind": "block"}
    if execution["kind"] == "chained":
        yield from _chain(document, execution, proposer)
        if execution.get("folded_carry_output") is not None:
            yield from _folded(document, given, execution, target)
    yield from _rollback(document, given)
    yield from _verification(document, given, target)
    yield from _vocabulary(document, given)


def _identity(document: Document, given: Values) -> Findings:
    if not document.canonical and (given["identity"], given["version"]) != (IDENTITY, VERSION):
        yield _fault(
            document, ("identity",), f"it is {given['identity']} {given['version']}", f"Write {IDENTITY}, '{VERSION}'."
        )
    for name in given.get("shared_state") or ():
        if name not in document.groups:
            yield _fault(document, ("shared_state",), f"there is no group {name!r}", "Name groups of states.")
        elif not mapping(mapping(document.groups[name], "ports"), given["proposer"]):
            yield _fault(
                document,
                ("shared_state",),
                f"{given['proposer']} reads nothing of group {name}",
                "Name its inputs among the group's ports.",
            )


def _width(document: Document, given: Values) -> Findings:
    if given["max_proposal_width"] < 1:
        yield fault(
            "metadata-proposal-width",
            document.at("speculative", "max_proposal_width"),
            f"{given['max_proposal_width']} positions can be proposed",
            "Write how many guesses can be taken back: 1 or more.",
        )


def _chain(document: Document, execution: Values, proposer: Part) -> Findings:
    path = ("proposal_execution",)
    if not execution.get("recurrent") and execution.get("folded_carry_output") is None:
        yield _fault(document, path, "nothing goes from guess to guess", "Name recurrent or folded_carry_output.")
    for key, real in (
        ("token_embedding_input", proposer.inputs),
        ("logits_output", proposer.outputs),
        ("folded_carry_output", proposer.outputs),
    ):
        port = execution.get(key)
        if port is not None and real is not None and port not in real:
            yield _fault(document, (*path, key), f"{proposer.name} has no port {port!r}", "Name one that it has.")


def _folded(document: Document, given: Values, execution: Values, target: Part) -> Findings:
    path = ("proposal_execution",)
    context = mapping(given, "port_bindings").get("target_hidden_context")
    if context != execution.get("token_embedding_input"):
        yield _fault(
            document,
            ("port_bindings", "target_hidden_context"),
            f"the carry goes into {context!r}, the token into {execution.get('token_embedding_input')!r}",
            "A folded carry is the second half of the token's input: name that.",
        )
    seed: Values | None = execution.get("folded_carry_seed")
    if (
        seed is None
        or seed["component"] != target.name
        or (target.outputs is not None and seed["output"] not in target.outputs)
    ):
        yield _fault(document, (*path, "folded_carry_seed"), "it is no output of the target", "Name its hidden states.")
    source: Values | None = execution.get("token_embedding")
    if source is None or source["component"] != target.name:
        yield _fault(document, (*path, "token_embedding"), "it is no table of the target", "Name the target's.")
        return
    if target.graph is None:  # what is wrong with it has been said
        return
    if source["table"] not in target.graph.stored:
        yield fault(
            "metadata-table-missing",
            document.at("speculative", *path, "token_embedding", "table"),
            f"the target's graph has no initializer {source['table']!r}",
            "Name the one that its ids are looked up in.",
        )
        return
    yield from _scale(document, source, target.graph)


def _scale(document: Document, source: Values, graph: Graph) -> Findings:
    """What the target multiplies its embedding by, a drafter that reads the table has to as well."""
    found = [
        following_scale(graph.view, node.output[0])
        for node in graph.view.nodes
        if node.op_type == "Gather" and node.input[0] == source["table"]
    ]
    told = float(source.get("scale", 1.0))
    if document.canonical or not found or math.isclose(found[0], told, rel_tol=1e-3):
        return
    yield fault(
        "metadata-embedding-scale",
        document.at("speculative", "proposal_execution", "token_embedding"),
        f"{'no scale is told' if 'scale' not in source else f'scale is {told:.9g}'}; "
        f"the target multiplies the rows by {found[0]:.9g}",
        f"Write scale: {found[0]!r}. Without it no guess is ever right.",
    )


def _rollback(document: Document, given: Values) -> Findings:
    """Whatever the target appends, a rejected guess takes back; as far as guesses go."""
    told: list[str] = given.get("rollback_state") or []
    cells = document.part("state")
    for name in told:
        if name not in cells:
            yield _fault(document, ("rollback_state",), f"there is no cell {name!r}", "Name cells of the state.")
    lost = sorted(_written(document, given["target"]) - set(told))
    if lost:
        yield fault(
            "metadata-rollback-missing",
            document.at("speculative", "rollback_state"),
            f"the target writes {', '.join(lost)}, and nothing takes a rejected guess out of it",
            "List every state of the target.",
        )
    groups = {cells[name]["service_group"] for name in told if cells.get(name, {}).get("service_group")}
    for name in sorted(_cascaded(document, groups)):
        held = mapping(document.groups[name], "capabilities").get("rollback_positions") or 0
        if held < given["max_proposal_width"]:
            yield fault(
                "metadata-rollback-short",
                document.at_group(name, "capabilities"),
                f"{held} positions can be taken back, {given['max_proposal_width']} can be proposed",
                "Write rollback_positions of at least max_proposal_width.",
            )


def _written(document: Document, target: str) -> set[str]:
    return {
        cell
        for group in document.groups.values()
        for cell, alias in mapping(mapping(group, "ports"), target).items()
        if alias.get("access", "read_write") == "read_write"
    }


def _cascaded(document: Document, names: Iterable[str]) -> set[str]:
    found: set[str] = set()
    waiting = [name for name in names if name in document.groups]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            more: list[str] = mapping(document.groups[name], "capabilities").get("cascade") or []
            waiting += [each for each in more if each in document.groups]
    return found


def _verification(document: Document, given: Values, target: Part) -> Findings:
    told: Values | None = given.get("verification")
    if told is None:
        return
    output = told["target_output"]
    if output["component"] != target.name or (target.outputs is not None and output["output"] not in target.outputs):
        yield _fault(document, ("verification", "target_output"), "it is no output of the target", "Name its logits.")
    elif target.roles and target.roles.get(output["output"]) != "logits":
        yield _fault(document, ("verification", "target_output"), f"{output['output']!r} is not logits", "Name those.")
    path: Values = told["accepted_path"]
    if path["kind"] == "runtime" and path.get("binding") != ACCEPTED:
        yield fault(
            "metadata-accepted-path",
            document.at("speculative", "verification", "accepted_path"),
            f"the runtime has no {path.get('binding')!r}",
            f"Write binding: {ACCEPTED}.",
        )


def _vocabulary(document: Document, given: Values) -> Findings:
    told: Values = given["vocabulary"]
    real = mapping(document.values, "model").get("vocab_size")
    size = told.get("proposer_vocab_size")
    if told["kind"] == "subset" and size is not None and real is not None and size > real:
        yield fault(
            "metadata-vocabulary",
            document.at("speculative", "vocabulary"),
            f"a subset of {size:,} tokens out of {real:,}",
            "A subset has at most as many.",
        )


def _fault(document: Document, path: tuple[str, ...], why: str, remedy: str) -> Finding:
    return fault("metadata-speculative", document.at("speculative", *path), why, remedy)
