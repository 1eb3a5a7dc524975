"""A graph read without its weights: load it, walk its nodes."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from paritas.errors import ParitasError


def load(model: Path) -> onnx.ModelProto:
    """The graph of ``model``; external data is not opened.

    Raises:
        ParitasError: ``package-model-broken`` if the file cannot be read as an ONNX model.
    """
    try:
        proto = onnx.ModelProto.FromString(model.read_bytes())
    except (DecodeError, OSError) as error:
        raise _broken(model, " ".join(str(error).split())) from error
    if not proto.graph.node:
        raise _broken(model, "it has no nodes")
    return proto


def nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of the model, those of subgraphs and of local functions too."""
    yield from _walk(proto.graph.node)
    for function in proto.functions:
        yield from _walk(function.node)


def _walk(layer: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in layer:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _walk(attribute.g.node)
            for graph in attribute.graphs:
                yield from _walk(graph.node)


def operators(model: Path) -> Counter[str]:
    """How often each operator occurs: ``Attention``, or ``com.microsoft.GroupQueryAttention``.

    Raises:
        ParitasError: ``package-model-broken``.
    """
    return Counter(operator(node) for node in nodes(load(model)))


def operator(node: onnx.NodeProto) -> str:
    """The operator's name, with its domain unless that is the standard's."""
    standard = node.domain in ("", "ai.onnx")
    return node.op_type if standard else f"{node.domain}.{node.op_type}"


def _broken(model: Path, why: str) -> ParitasError:
    return ParitasError(
        "package-model-broken",
        f"not a readable ONNX model: {why}",
        place=str(model),
        hint="Copy or download it again, or export it again.",
    )
