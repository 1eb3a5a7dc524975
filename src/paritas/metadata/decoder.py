"""What a saved decoder takes, gives and carries: its ports as the file has them, its states by the kind of layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from paritas.metadata.workflow import Size, Tensor
from paritas.runtime.ports import Ports, read_ports
from paritas.runtime.proto import load
from paritas.spec import Attention, ShortConvolution
from paritas.spec import Decoder as Spec

FULL, SLIDING, RECURRENT = "full_attention", "sliding_attention", "recurrent"
KINDS = (FULL, SLIDING, RECURRENT)
HIDDEN = "hidden_states."


@dataclass(frozen=True)
class State:
    """One tensor that goes from call to call.

    Attributes:
        past, present: its input and its output.
        role: ``key``, ``value``, or ``combined`` where a layer has one alone.
        layer: its number in the model.
    """

    past: str
    present: str
    role: str
    layer: int


@dataclass(frozen=True)
class States:
    """States of the layers of one kind.

    Attributes:
        kind: ``full_attention``, ``sliding_attention``, ``recurrent``.
        axis: where tokens lie; None if every call replaces the whole.
        layout: order of the sizes, a letter each: batch, heads (n), tokens (s), elements (h), channels (c).
        in_place: whether the graph can write the new tokens where the old ones lie.
        members: layer by layer.
    """

    kind: str
    axis: int | None
    layout: str
    in_place: bool
    members: tuple[State, ...]


@dataclass(frozen=True)
class Decoder:
    """A saved decoder: ports by name with their contracts, roles of those that a runtime has to know, states."""

    artifact: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    roles: Mapping[str, str]
    logits: str
    vocab: int
    groups: tuple[States, ...]

    @property
    def states(self) -> tuple[State, ...]:
        """Of all groups, in the order of the graph's inputs."""
        order = {name: place for place, name in enumerate(self.inputs)}
        members = (state for group in self.groups for state in group.members)
        return tuple(sorted(members, key=lambda state: order[state.past]))


def read_decoder(model: Path, spec: Spec) -> Decoder:
    """The decoder in the file ``model``; which layers have a window, the ``spec`` tells.

    Raises:
        ParitasError: what :func:`paritas.runtime.ports.read_ports` says of a graph that is no decoder.
    """
    proto = load(model)
    ports = read_ports(model, proto=proto)
    stored = {tensor.name for tensor in proto.graph.initializer}
    inputs = {value.name: tensor_of(value) for value in proto.graph.input if value.name not in stored}
    outputs = {value.name: tensor_of(value) for value in proto.graph.output}
    return Decoder(
        artifact=model.name,
        inputs=inputs,
        outputs=outputs,
        roles=_roles(ports, outputs),
        logits=ports.logits,
        vocab=ports.vocab or spec.vocab,
        groups=_groups(ports, spec),
    )


def tensor_of(value: onnx.ValueInfoProto) -> Tensor:
    """The contract of a graph's input or output, with the graph's own symbols."""
    kind = value.type.tensor_type
    shape: tuple[Size, ...] = tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in kind.shape.dim
    )
    return Tensor(dtype_of(kind.elem_type), shape)


def dtype_of(element: int) -> str:
    """ONNX's number of an element type in the metadata's word: ``float32``, ``bfloat16``, ``int64``, ``bool``."""
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(
        onnx.TensorProto.DataType.Name(element), onnx.TensorProto.DataType.Name(element).lower()
    )


def _roles(ports: Ports, outputs: Mapping[str, Tensor]) -> dict[str, str]:
    roles = {ports.input_ids: "token_ids"}
    if ports.attention_mask is not None:
        roles[ports.attention_mask] = "attention_mask"
    if ports.position_ids is not None:
        roles[ports.position_ids] = "position_ids"
    roles[ports.logits] = "logits"
    return roles | {name: "hidden_states" for name in outputs if name.startswith(HIDDEN)}


def _groups(ports: Ports, spec: Spec) -> tuple[States, ...]:
    found: dict[str, States] = {}
    for cache in ports.caches:
        halves = zip(("key", "value"), cache.halves, strict=True)
        members = tuple(State(half.past, half.present, role, cache.layer) for role, half in halves)
        _add(found, States(kind_of(spec, cache.layer), cache.axis, _layout(cache.axis), cache.in_place, members))
    for carried in ports.states:
        layer = next(int(word) for word in carried.past.split(".") if word.isdigit())
        member = State(carried.past, carried.present, "combined", layer)
        _add(found, States(kind_of(spec, layer), None, "bcs", False, (member,)))
    return tuple(found[kind] for kind in KINDS if kind in found)


def _add(found: dict[str, States], more: States) -> None:
    """To the group of its kind; a group may be written in place if each of its states may."""
    if (had := found.get(more.kind)) is None:
        found[more.kind] = more
        return
    found[more.kind] = States(
        more.kind, more.axis, more.layout, had.in_place and more.in_place, had.members + more.members
    )


def kind_of(spec: Spec, layer: int) -> str:
    """The standard's word for what a layer keeps."""
    match spec.layers[layer].mixer:
        case Attention(window=None):
            return FULL
        case Attention():
            return SLIDING
        case ShortConvolution():
            return RECURRENT


def _layout(axis: int) -> str:
    return "bnsh" if axis == 2 else "bsnh"
