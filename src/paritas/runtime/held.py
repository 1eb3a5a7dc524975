"""What a graph holds of a model: its tensors of fp32, fp16 and bf16 with their use, and its weights of integers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from paritas.runtime.proto import nodes
from paritas.runtime.quantized import Quantized, quantized
from paritas.runtime.stored import Stored, tensors

NARROW = ("fp16", "bf16")
_PASSES = frozenset({"Cast", "Reshape", "Transpose", "Identity", "Squeeze", "Unsqueeze"})
_INTEGERS = ("uint8", "int8", "uint4", "int4", "uint2", "int2")
_ROWS = frozenset({"Gather", "GatherBlockQuantized"})


@dataclass(frozen=True)
class Float:
    """A tensor of fp32, fp16 or bf16.

    Attributes:
        stored: the tensor.
        gathered, multiplied: whether the graph takes rows of it, and whether it does anything else with it.
    """

    stored: Stored
    gathered: bool
    multiplied: bool


@dataclass(frozen=True)
class Held:
    """All of a graph's numbers.

    Attributes:
        floats: no member of a quantised weight is among them.
        quantized: by the integers' name.
        unread: matrices of 2 to 8 bits that no operator is known to dequantise.
    """

    floats: tuple[Float, ...]
    quantized: Mapping[str, Quantized]
    unread: tuple[str, ...]

    @property
    def full(self) -> bool:
        """Everything is fp32."""
        return not self.quantized and not self.unread and not any(f.stored.dtype in NARROW for f in self.floats)


def read_held(proto: onnx.ModelProto, folder: Path) -> Held:
    """What the graph holds; no value is read yet.

    Args:
        proto: the graph.
        folder: where its external data lies.

    Raises:
        ParitasError: ``package-data-hostile``, ``package-data-truncated``.
    """
    stored = tensors(proto, folder)
    every = list(nodes(proto))
    packed = quantized(every, stored)
    members = {name for weight in packed.values() for name in weight.members}
    takers: dict[str, list[onnx.NodeProto]] = {}
    for node in every:
        for name in node.input:
            takers.setdefault(name, []).append(node)
    floats = tuple(
        Float(tensor, *_uses(name, takers))
        for name, tensor in stored.items()
        if tensor.is_float and tensor.size and name not in members
    )
    integers = [name for name, tensor in stored.items() if tensor.dtype in _INTEGERS and min(tensor.matrix) > 1]
    return Held(floats, packed, tuple(name for name in integers if name not in members))


def _uses(name: str, takers: Mapping[str, list[onnx.NodeProto]]) -> tuple[bool, bool]:
    by_rows = [node.op_type in _ROWS for node in _takers(name, takers)]
    return any(by_rows), not all(by_rows) or not by_rows


def _takers(name: str, takers: Mapping[str, list[onnx.NodeProto]]) -> Iterator[onnx.NodeProto]:
    """Who takes a tensor, looked for behind nodes that only hand it on."""
    for node in takers.get(name, ()):
        if node.op_type in _PASSES:
            yield from _takers(node.output[0], takers)
        else:
            yield node
