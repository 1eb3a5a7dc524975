"""Which operators take a tensor, looked for behind those that only hand it on."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from paritas.runtime.proto import nodes, operator

HANDS_ON = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True)
class Reader:
    """An operator and the index of the input at which it takes the tensor."""

    node: onnx.NodeProto
    index: int

    @property
    def operator(self) -> str:
        """``TensorScatter``, or ``com.microsoft.GroupQueryAttention``."""
        return operator(self.node)

    def integer(self, attribute: str) -> int | None:
        """An integer attribute of the operator; None if it is not written."""
        return next((a.i for a in self.node.attribute if a.name == attribute), None)


class Wiring:
    """Every tensor of a graph, its subgraphs too, with the operators that take it.

    Attributes:
        shapes: of the initializers, by name.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.shapes = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
        self._readers: defaultdict[str, list[Reader]] = defaultdict(list)
        for node in nodes(proto):
            for index, name in enumerate(node.input):
                self._readers[name].append(Reader(node, index))

    def readers(self, name: str) -> Iterator[Reader]:
        """Every operator that takes ``name`` and does more than hand it on."""
        seen, waiting = {name}, [name]
        while waiting:
            for reader in self._readers.get(waiting.pop(), ()):
                if reader.node.op_type not in HANDS_ON:
                    yield reader
                elif reader.index == 0 and (after := reader.node.output[0]) not in seen:
                    seen.add(after)
                    waiting.append(after)
