"""A part of a graph as a graph of its own: between values that it is given and values that it gives."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

COMPUTED = "@computed"
"""Behind the name of an output that is an input too: the value as the graph computes it."""


@dataclass(frozen=True)
class Extract:
    """A part of a graph.

    Attributes:
        proto: a model; its external data are where those of the whole graph are.
        outputs: value -> the output's name: its own, or with :data:`COMPUTED` behind it.
    """

    proto: onnx.ModelProto
    outputs: dict[str, str]


def extract(
    proto: onnx.ModelProto,
    inputs: Collection[str],
    outputs: Sequence[str],
    declared: Mapping[str, onnx.ValueInfoProto] | None = None,
) -> Extract:
    """The nodes that compute ``outputs`` from ``inputs``, from inputs of the graph and from initializers.

    A value that is both is cut: it is computed as an output, and who takes it is given the input. Values of an
    unknown name are no error here: an input that nothing takes is left out.

    Args:
        proto: the whole graph; it is not changed, and its external data is not opened.
        inputs: names of values that are given.
        outputs: names of values that are computed.
        declared: types and shapes of inputs; what is not in it is taken as the graph declares it, else as fp32.
    """
    cuts = frozenset(inputs)
    makers = {name: node for node in proto.graph.node for name in node.output if name}
    needed = _needed(makers, cuts, outputs)
    part = onnx.ModelProto()
    part.CopyFrom(_head(proto))
    renamed = {name: name + COMPUTED for name in outputs if name in cuts}
    for node in proto.graph.node:
        if id(node) in needed:
            copied = part.graph.node.add()
            copied.CopyFrom(node)
            _separate(copied, cuts, renamed)
    taken = {name for node in part.graph.node for name in taken_by(node)}
    part.graph.initializer.extend(each for each in proto.graph.initializer if each.name in taken - cuts)
    _add_ports(part, proto, taken & cuts, taken, declared or {})
    for name in outputs:
        part.graph.output.append(onnx.helper.make_empty_tensor_value_info(renamed.get(name, name)))
    return Extract(part, {name: renamed.get(name, name) for name in outputs})


def between(makers: dict[str, onnx.NodeProto], cuts: Collection[str], value: str) -> Sequence[onnx.NodeProto]:
    """Nodes that compute ``value`` from ``cuts``, in no particular order."""
    return list(_needed(makers, cuts, [value]).values())


def _head(proto: onnx.ModelProto) -> onnx.ModelProto:
    """All that is not in the graph: versions, operator sets, functions."""
    head = onnx.ModelProto(ir_version=proto.ir_version)
    head.opset_import.extend(proto.opset_import)
    head.functions.extend(proto.functions)
    head.graph.name = proto.graph.name
    return head


def _needed(
    makers: dict[str, onnx.NodeProto], cuts: Collection[str], outputs: Iterable[str]
) -> dict[int, onnx.NodeProto]:
    found: dict[int, onnx.NodeProto] = {}
    waiting = [makers[name] for name in outputs if name in makers]
    while waiting:
        node = waiting.pop()
        if id(node) not in found:
            found[id(node)] = node
            waiting.extend(makers[name] for name in taken_by(node) if name not in cuts and name in makers)
    return found


def taken_by(node: onnx.NodeProto) -> list[str]:
    """Names that a node takes, those that its subgraphs take from outside among them."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            inside = {name for inner in graph.node for name in inner.output}
            inside |= {each.name for each in (*graph.input, *graph.initializer)}
            names += [name for inner in graph.node for name in taken_by(inner) if name not in inside]
            names += [each.name for each in graph.output if each.name not in inside]
    return names


def _separate(node: onnx.NodeProto, cuts: frozenset[str], renamed: dict[str, str]) -> None:
    """What is given keeps its name; what a node makes under a given name is renamed, or loses its name."""
    for place, name in enumerate(node.output):
        if name in cuts:
            node.output[place] = renamed.get(name, name + COMPUTED)


def _add_ports(
    part: onnx.ModelProto,
    proto: onnx.ModelProto,
    cuts: Collection[str],
    taken: Collection[str],
    declared: Mapping[str, onnx.ValueInfoProto],
) -> None:
    """Inputs: the graph's own that are taken, and what is given."""
    known = {value.name: value for value in (*proto.graph.value_info, *declared.values())}
    own = {value.name: value for value in proto.graph.input}
    for name in sorted(name for name in taken if name in own or name in cuts):
        fallback = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        part.graph.input.append(own.get(name) or known.get(name) or fallback)
