"""The workflow of a decoder that is driven step by step: every choice of the loop is a graph of ``policies/``."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from paritas.metadata.decoder import Decoder
from paritas.metadata.fused import COUNT, FLAG, NUMBER, empties, empty_of
from paritas.metadata.states import cells, groups
from paritas.metadata.turns import MASK, Names, loop
from paritas.metadata.workflow import (
    ANY,
    BATCH,
    Cell,
    Component,
    Input,
    Promise,
    Size,
    Tensor,
    Workflow,
)
from paritas.policies import initializer, sampler, termination, updates
from paritas.policies.policy import Policy

FOLDER = "policies"
SLOT = Tensor("int64", (BATCH, 1))
CONTINUE = Tensor("bool", (1,), rows=False)


def policies(decoder: Decoder, ends: Sequence[int]) -> list[Policy]:
    """The graphs that the workflow of ``decoder`` is made of beside it."""
    logits = decoder.outputs[decoder.logits]
    states = {
        state.past: (_type(decoder.inputs[state.past]), _sizes(decoder.inputs[state.past])) for state in decoder.states
    }
    return [
        sampler.sampler(),
        termination.termination(),
        updates.last_logits(decoder.vocab, _type(logits)),
        updates.token_update(),
        updates.cache_update(),
        initializer.initializer(states, ends),
    ]


def looped(decoder: Decoder, context: int, graphs: Sequence[Policy], defaults: Mapping[str, float]) -> Workflow:
    """Ids in, tokens out, by ``graphs``; ``defaults`` are temperature, top_k, top_p and min_p where nobody asks."""
    return Workflow(
        inputs={**_requests(decoder, context, defaults), **_literals(decoder, context)},
        outputs={"tokens": Tensor("int64", (BATCH, "generated"))},
        components={
            "decoder": Component(decoder.artifact, decoder.inputs, decoder.outputs, decoder.roles),
            **{graph.name: component(graph) for graph in graphs},
        },
        cells={
            **cells(decoder, {state.past: empty_of(decoder, state) for state in decoder.states}, "package.capacity"),
            "active": Cell(FLAG, "package.active"),
            "done": Cell(FLAG, "package.done"),
            "accepted_len": Cell(COUNT, "package.zero"),
            "continue": Cell(CONTINUE, "package.continue"),
            "counter": Cell(COUNT, "package.zero"),
            "token": Cell(SLOT, "package.slot"),
            "logits": Cell(Tensor("float32", (BATCH, decoder.vocab)), "package.logits"),
            MASK: Cell(Tensor("int64", (BATCH, ANY)), "package.mask", bound=(1, "package.capacity")),
        },
        groups=groups(decoder, context),
        serving=("active", "done", "accepted_len"),
        loop=loop(Names.of(decoder), decoder, list(defaults)),
    )


def _requests(decoder: Decoder, context: int, defaults: Mapping[str, float]) -> dict[str, Input]:
    ids = Names.of(decoder).ids
    return {
        "request.input_ids": Input(decoder.inputs[ids], role="prompt_tokens"),
        "request.max_iterations": Input(NUMBER, role="max_iterations", default=context),
        **{f"request.{name}": _sampling(name, value) for name, value in defaults.items()},
        "request.seed": Input(COUNT, role="seed", default=0),
    }


def _literals(decoder: Decoder, context: int) -> dict[str, Input]:
    """What cells are before the setup of the loop gives them their first value."""
    return {
        "package.active": Input(FLAG, default=True, literal=True),
        "package.done": Input(FLAG, default=False, literal=True),
        "package.continue": Input(CONTINUE, default=True, literal=True),
        "package.zero": Input(COUNT, default=0, literal=True),
        "package.capacity": Input(NUMBER, default=context, literal=True),
        "package.logits": Input(Tensor("float32", (BATCH, decoder.vocab)), default=0.0, literal=True),
        "package.slot": Input(SLOT, default=0, literal=True),
        "package.mask": Input(Tensor("int64", (BATCH, "prompt")), default=1, literal=True),
        **{name: Input(tensor, default=0.0, literal=True) for name, tensor in empties(decoder).items()},
    }


def component(graph: Policy) -> Component:
    """A policy's graph, with its ports as they are in it."""
    promise = _PROMISES.get(graph.name)
    return Component(
        f"{FOLDER}/{graph.name}.onnx",
        {value.name or "": _tensor(value) for value in graph.graph.inputs},
        {value.name or "": _tensor(value) for value in graph.graph.outputs},
        promise=promise and promise_of(promise, graph),
    )


_PROMISES = {
    sampler.NAME: Promise(
        "onnx-genai.token-sampler",
        "2",
        parameters={"mode": "seeded_stochastic", "batching": "per_row", "inactive_rows": "preserve"},
        equivalence="distribution_preserving",
    ),
    termination.NAME: Promise("onnx-genai.termination-predicate", "2"),
}


def promise_of(promise: Promise, graph: Policy) -> Promise:
    """With each port bound to the part of its name."""
    ports = [value.name or "" for value in (*graph.graph.inputs, *graph.graph.outputs)]
    bindings = dict(zip(ports, ports, strict=True))
    return Promise(promise.id, promise.version, bindings, promise.parameters, promise.equivalence)


def _sampling(name: str, value: float) -> Input:
    whole = name == "top_k"
    return Input(
        Tensor("int64" if whole else "float32", (BATCH,)),
        role=f"sampling_{name}",
        default=int(value) if whole else float(value),
    )


def _tensor(value: ir.Value) -> Tensor:
    assert value.shape is not None
    assert value.dtype is not None
    sizes: tuple[Size, ...] = tuple(size if isinstance(size, int) else size.value for size in value.shape)
    names = {"FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "INT64": "int64", "BOOL": "bool"}
    return Tensor(names[value.dtype.name], sizes, rows=sizes[0] == BATCH)


def _type(tensor: Tensor) -> ir.DataType:
    return {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}[
        tensor.dtype
    ]


def _sizes(tensor: Tensor) -> tuple[int | str, ...]:
    return tuple("past" if size is None else size for size in tensor.shape[1:])
