"""The workflow of a decoder that the runtime drives by itself: with its own decode session, sampler and stops."""

from paritas.metadata.decoder import Decoder, State
from paritas.metadata.states import cells, groups
from paritas.metadata.workflow import (
    BATCH,
    Carry,
    Cell,
    Component,
    Emit,
    Input,
    Invoke,
    Loop,
    Promise,
    Tensor,
    Workflow,
)

DECODE = Promise("onnx-genai.autoregressive-decode", "1.0")
POLICY = Promise("onnx-genai.token-policy", "1.0")
FLAG = Tensor("bool", (BATCH,))
COUNT = Tensor("int64", (BATCH,))
NUMBER = Tensor("int64", (1,), rows=False)


def fused(decoder: Decoder, context: int) -> Workflow:
    """Ids in, tokens out; keys, values and other states are kept by the runtime."""
    ids = next(name for name, role in decoder.roles.items() if role == "token_ids")
    sequence = decoder.inputs[ids]
    told = {name: f"application.{name}" for name, role in decoder.roles.items() if role in _MADE_UP}
    return Workflow(
        inputs={
            "request.input_ids": Input(sequence, role="prompt_tokens"),
            "request.max_iterations": Input(NUMBER, role="max_iterations", default=context),
            **{value: Input(decoder.inputs[name], application=name, suppliable=True) for name, value in told.items()},
            "package.active": Input(FLAG, default=True, literal=True),
            "package.done": Input(FLAG, default=False, literal=True),
            "package.accepted_len": Input(COUNT, default=0, literal=True),
            "package.sequence_capacity": Input(NUMBER, default=context, literal=True),
            **{value: Input(tensor, default=0.0, literal=True) for value, tensor in empties(decoder).items()},
        },
        outputs={"tokens": sequence},
        components={
            "decoder": Component(decoder.artifact, decoder.inputs, decoder.outputs, decoder.roles, DECODE),
            "token_policy": _policy(decoder, sequence),
        },
        cells={
            **cells(decoder, {state.past: empty_of(decoder, state) for state in decoder.states}),
            "active": Cell(FLAG, "package.active"),
            "done": Cell(FLAG, "package.done"),
            "accepted_len": Cell(COUNT, "package.accepted_len"),
            "sequence": Cell(sequence, "request.input_ids", bound=(1, "package.sequence_capacity")),
        },
        groups=groups(decoder, context),
        serving=("active", "done", "accepted_len"),
        loop=_loop(decoder, {ids: "request.input_ids", **told}),
    )


_MADE_UP = ("attention_mask", "position_ids")


def empty_of(decoder: Decoder, state: State) -> str:
    """The literal that a state begins as: one for all states of one contract."""
    tensor = decoder.inputs[state.past]
    sizes = ".".join("n" if size is None or isinstance(size, str) else str(size) for size in tensor.shape[1:])
    return f"package.empty.{tensor.dtype}.{sizes}"


def empties(decoder: Decoder) -> dict[str, Tensor]:
    """Literals that states begin as, by name: a scalar that the runtime spreads over the sizes."""
    return {empty_of(decoder, state): decoder.inputs[state.past] for state in decoder.states}


def _policy(decoder: Decoder, sequence: Tensor) -> Component:
    logits = decoder.outputs[decoder.logits]
    outputs = {"token": sequence, "active": FLAG, "done": FLAG, "accepted_len": COUNT}
    return Component(None, {"logits": logits}, outputs, promise=POLICY)


def _loop(decoder: Decoder, fed: dict[str, str]) -> Loop:
    kept = {state.past: state.past for state in decoder.states}
    given = {name: f"step.{name}" for name in decoder.outputs}
    policy = {"token": "step.token", "active": "step.active", "done": "step.done", "accepted_len": "step.accepted_len"}
    return Loop(
        setup=(),
        steps=(
            Invoke("decoder", fed | kept, given),
            Invoke("token_policy", {"logits": given[decoder.logits]}, policy),
            Emit("step.token", "tokens", when="active"),
        ),
        going="active",
        most="request.max_iterations",
        carried=(
            *(Carry(state.past, given[state.present]) for state in decoder.states),
            *(Carry(name, f"step.{name}") for name in ("active", "done", "accepted_len")),
            Carry("sequence", "step.token"),
        ),
        generation=True,
    )
