"""A drafter beside its target: what it reads of the target's states, and how it guesses."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paritas.metadata.decoder import Decoder, tensor_of
from paritas.metadata.states import COMPONENT
from paritas.metadata.workflow import Alias, Component, Group, Speculation, Tensor, Workflow
from paritas.runtime.proto import load

PROPOSER = "assistant"
_EMBEDS, _LOGITS, _CARRY = "inputs_embeds", "logits", "last_hidden_state"


@dataclass(frozen=True)
class Drafter:
    """A drafter's graph in the package, and what pairs it with the target.

    Attributes:
        artifact: its file, from the package's folder.
        inputs, outputs: its ports.
        borrowed: its input -> the target's output that it reads.
        hidden: the target's output that the first guess carries on.
        table, scale: the target's initializer of embeddings, and what they are multiplied by.
        width: guesses at a time.
    """

    artifact: str
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    borrowed: dict[str, str]
    hidden: str
    table: str
    scale: float
    width: int


def read_drafter(package: Path) -> Drafter | None:
    """The drafter in ``assistant/`` of the package; None if it has none."""
    folder = package / PROPOSER
    if not (folder / "drafter.json").is_file():
        return None
    pairing: dict[str, Any] = json.loads((folder / "drafter.json").read_text(encoding="utf-8"))
    proto = load(folder / "model.onnx")
    stored = {tensor.name for tensor in proto.graph.initializer}
    return Drafter(
        artifact=f"{PROPOSER}/model.onnx",
        inputs={value.name: tensor_of(value) for value in proto.graph.input if value.name not in stored},
        outputs={value.name: tensor_of(value) for value in proto.graph.output},
        borrowed=pairing["borrowed"],
        hidden=pairing["hidden"],
        table=pairing["embedding"],
        scale=float(pairing["scale"]),
        width=int(pairing["width"]),
    )


def paired(workflow: Workflow, decoder: Decoder, drafter: Drafter) -> tuple[Workflow, Speculation]:
    """The workflow with the drafter beside the decoder, whose steps stay as they are."""
    past = {state.present: state for state in decoder.states}
    kinds = {state.past: group.kind for group in decoder.groups for state in group.members}
    reads: dict[str, list[Alias]] = {}
    for port, present in drafter.borrowed.items():
        state = past[present]
        reads.setdefault(kinds[state.past], []).append(Alias(PROPOSER, state.past, port, None, state.role, None))

    def shared(group: Group) -> Group:
        return replace(group, aliases=(*group.aliases, *reads.get(group.kind, ())))

    both = replace(
        workflow,
        components={
            **workflow.components,
            PROPOSER: Component(drafter.artifact, drafter.inputs, drafter.outputs),
        },
        groups={name: shared(group) for name, group in workflow.groups.items()},
    )
    speculation = Speculation(
        proposer=PROPOSER,
        target=COMPONENT,
        embedding_input=_EMBEDS,
        logits=_LOGITS,
        carry=_CARRY,
        seed=drafter.hidden,
        target_logits=decoder.logits,
        table=drafter.table,
        scale=drafter.scale,
        shared=tuple(reads),
        rollback=tuple(state.past for state in decoder.states),
        width=drafter.width,
    )
    return both, speculation
