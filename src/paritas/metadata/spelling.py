"""What both dialects of the metadata spell alike: inputs, components, cells, groups and steps as plain mappings."""

from collections.abc import Callable, Mapping
from typing import Any

from paritas.metadata.workflow import (
    Alias,
    Cell,
    Component,
    Emit,
    Group,
    Input,
    Invoke,
    Loop,
    Speculation,
    Tensor,
    Workflow,
)
from paritas.package.vocabulary import FILE, Vocabulary

Values = dict[str, Any]
Contract = Callable[[Tensor], Values]
"""How a dialect writes a tensor's contract."""


class Shape(tuple[Any, ...]):
    """Sizes of a tensor, which text has on one line."""

    __slots__ = ()


def layout(tensor: Tensor) -> Values:
    """Which size is the batch; nothing where all requests share the tensor."""
    return {"batch_layout": {"kind": "request_aligned", "axis": 0}} if tensor.rows else {}


def workflow(given: Workflow, contract: Contract, family: Values) -> Values:
    """Everything below ``pipeline.workflow`` but its manifest; ``family`` is what a dialect says of each output."""
    active, done, accepted = given.serving
    return {
        "inputs": {name: _input(each, contract) for name, each in given.inputs.items()},
        "outputs": {
            name: {"contract": contract(tensor), "role": "tokens", "stage": "pre_adapter", **family}
            for name, tensor in given.outputs.items()
        },
        "components": {name: _component(each, contract) for name, each in given.components.items()},
        "state": {name: _cell(each, contract) for name, each in given.cells.items()},
        "serving": {
            "active": active,
            "done": done,
            "accepted_len": accepted,
            "state_service": {"groups": {name: _group(each) for name, each in given.groups.items()}},
        },
        "steps": [_loop(given.loop, contract)],
    }


def tokenizer(given: Vocabulary | None) -> Values:
    """What is known of the tokenizer; nothing where the package has none."""
    if given is None:
        return {}
    return {
        "algorithm": given.algorithm,
        "vocab_size": given.size,
        "byte_level": given.byte_level,
        "artifacts": [{"location": FILE}],
    }


def _input(given: Input, contract: Contract) -> Values:
    role: Values = {"kind": "opaque"}
    if given.role is not None:
        role = {"kind": "runtime", "version": "1.0", "role": given.role}
    source: Values = {"kind": "literal"} if given.literal else {"kind": "request"}
    if given.application is not None:
        source = {"kind": "application", "name": given.application}
    values: Values = {"contract": contract(given.tensor), "role": role, "source": source}
    values["required"] = given.default is None
    if given.default is not None:
        values["default"] = given.default
    if given.suppliable:
        values["externally_suppliable"] = True
    return values


def _component(given: Component, contract: Contract) -> Values:
    onnx: Values = {"kind": "onnx", "artifact": given.artifact}
    ports: Values = {
        "inputs": {name: contract(tensor) for name, tensor in given.inputs.items()},
        "outputs": {name: contract(tensor) for name, tensor in given.outputs.items()},
    }
    values: Values = {"implementation": {"kind": "binding"} if given.artifact is None else onnx}
    if (promise := given.promise) is not None:
        values["contract"] = {"id": promise.id, "version": promise.version}
        more = {"equivalence": promise.equivalence, "bindings": promise.bindings, "parameters": promise.parameters}
        values["contract"] |= {
            key: dict(value) if isinstance(value, Mapping) else value for key, value in more.items() if value
        }
    return values | {"ports": ports | ({"roles": dict(given.roles)} if given.roles else {})}


def _cell(given: Cell, contract: Contract) -> Values:
    values: Values = {"contract": contract(given.tensor), "scope": "invocation", "initializer": given.initializer}
    values["recurrence"] = {"kind": "invariant"}
    if given.bound is not None:
        axis, most = given.bound
        values["recurrence"] = {"kind": "bounded", "axis": axis, "max": most}
    if given.group is not None:
        values |= {"management": "runtime", "release_boundary": "invocation", "service_group": given.group}
    return values


def _group(given: Group) -> Values:
    values: Values = {"kind": given.kind}
    if given.axis is not None:
        values["sequence_axis"] = given.axis
    ports: dict[str, Values] = {}
    for alias in given.aliases:
        ports.setdefault(alias.component, {})[alias.cell] = _alias(alias)
    return values | {
        "layout": given.layout,
        "aliasing": "permitted" if given.in_place else "forbidden",
        "update": {"kind": "replace" if given.axis is None else "append"},
        "reuse": {"prefix_reusable": given.prefix_reusable, "evictable_prefix": given.evictable_prefix},
        "capabilities": {
            **({} if given.rollback is None else {"rollback_positions": given.rollback}),
            "snapshot": True,
            "fork": True,
        },
        "ports": ports,
    }


def _alias(given: Alias) -> Values:
    if given.output is None:
        return {"input": given.input, "access": "read_only", "role": given.role}
    return {"input": given.input, "output": given.output, "role": given.role, "layer": given.layer}


def speculation(given: Speculation, scale: bool) -> Values:
    """Everything below ``speculative`` that both dialects have; only one of them has a place for the scale."""
    table = {"component": given.target, "table": given.table} | ({"scale": given.scale} if scale else {})
    return {
        "proposer": given.proposer,
        "target": given.target,
        "proposal_execution": {
            "kind": "chained",
            "token_embedding_input": given.embedding_input,
            "logits_output": given.logits,
            "folded_carry_output": given.carry,
            "folded_carry_seed": {"component": given.target, "output": given.seed},
            "token_embedding": table,
        },
        "port_bindings": {"target_hidden_context": given.embedding_input},
        "shared_state": list(given.shared),
        "vocabulary": {"kind": "identical"},
        "max_proposal_width": given.width,
        "distribution_preserving": True,
        "rollback_state": list(given.rollback),
    }


def _loop(given: Loop, contract: Contract) -> Values:
    carried = [
        {"cell": each.cell, **({} if each.initial is None else {"initial": each.initial}), "next": each.next}
        for each in given.carried
    ]
    number = contract(Tensor("int64", (1,), rows=False))
    return {
        "kind": "loop",
        "setup": [_step(step) for step in given.setup],
        "steps": [_step(step) for step in given.steps],
        "continue_when": given.going,
        "max_iterations": given.most,
        "termination": "generation_eos" if given.generation else "predicate",
        "iteration": {"value": given.iteration, "contract": number},
        "carried": carried,
    }


def _step(given: Invoke | Emit) -> Values:
    match given:
        case Invoke(component, inputs, outputs):
            return {"kind": "invoke", "component": component, "inputs": dict(inputs), "outputs": dict(outputs)}
        case Emit(value, output, when, valid_length):
            more = {"when": when, "valid_length": valid_length}
            said = {key: name for key, name in more.items() if name is not None}
            return {"kind": "emit", "value": value, "output": output, "mode": "append", **said}
