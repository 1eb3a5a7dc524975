"""Mixtures of experts in one shape: a matrix for each expert, however a checkpoint or a graph packs them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paritas.audit.view import View, attributes
from paritas.checkpoint import Tensor
from paritas.runtime.stored import BLOCK, Stored
from paritas.spec import Decoder, Experts, Stacking

Rows = NDArray[np.float32]
_FIRST = (2, 3)  # places of fc1's weights and biases among the inputs of MoE


def one_by_one(tensors: Mapping[str, Tensor], spec: Decoder) -> dict[str, Tensor]:
    """The checkpoint's tensors, those of all experts taken apart: ``mlp.experts.3.gate_proj.weight``."""
    apart = dict(tensors)
    for number, layer in enumerate(spec.layers):
        if isinstance(layer.mlp, Experts):
            for name, each in _parts(layer.mlp).items():
                stacked = f"model.layers.{number}.mlp.experts.{name}"
                if stacked in tensors and tensors[stacked].shape[0] == layer.mlp.count:
                    del apart[stacked]
                    apart |= {
                        f"model.layers.{number}.mlp.experts.{expert}.{part}": OfExpert(tensors[stacked], expert, take)
                        for expert in range(layer.mlp.count)
                        for part, take in each.items()
                    }
    return apart


def _parts(spec: Experts) -> dict[str, dict[str, Callable[[Rows], Rows]]]:
    """Tensor of all experts -> what lies in an expert's part of it."""
    rows = spec.stacking is Stacking.ROWS
    gate = slice(0, spec.width) if rows else slice(0, None, 2)
    up = slice(spec.width, None) if rows else slice(1, None, 2)
    return {
        "gate_up_proj": {
            "gate_proj.weight": lambda part: (part if rows else part.T)[gate],
            "up_proj.weight": lambda part: (part if rows else part.T)[up],
        },
        "gate_up_proj_bias": {"gate_proj.bias": lambda part: part[gate], "up_proj.bias": lambda part: part[up]},
        "down_proj": {"down_proj.weight": lambda part: part if rows else part.T},
        "down_proj_bias": {"down_proj.bias": lambda part: part},
    }


class OfExpert(Tensor):
    """One expert's part of a tensor of all experts."""

    def __init__(self, tensor: Tensor, expert: int, take: Callable[[Rows], Rows]) -> None:
        self.name, self.dtype, self.place = tensor.name, tensor.dtype, tensor.place
        self.shape = take(np.empty(tensor.shape[1:], np.float32)).shape
        self._tensor, self._expert, self._take = tensor, expert, take

    def rows(self, start: int, stop: int) -> Rows:
        """Rows of the part; all of the expert is read."""
        return np.ascontiguousarray(self._take(self._tensor.rows(self._expert, self._expert + 1)[0])[start:stop])


@dataclass(frozen=True)
class InTurn(Stored):
    """Weights or biases of gate and up as ONNX Runtime's MoE wants them, their rows in turn: read one after the other.

    The shape is [experts, 2 * width, hidden], or [experts, 2 * width] of biases.
    """

    def rows(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)`` of the matrix, an expert's gate before its up."""
        both = self.shape[1]
        if len(self.shape) == 2:
            return super().rows(start, stop).reshape(-1, both // 2, 2).swapaxes(1, 2).reshape(-1, both)
        first, last = start // both, -(-stop // both)
        whole = super().rows(first * both, last * both).reshape(last - first, both // 2, 2, -1)
        return whole.swapaxes(1, 2).reshape(-1, whole.shape[-1])[start - first * both : stop - first * both]

    def blocks(self) -> Iterator[tuple[int, Rows]]:
        """``(first row, rows)`` of the matrix, in order."""
        rows, columns = self.matrix
        step = max(1, BLOCK // columns)
        for start in range(0, rows, step):
            yield start, self.rows(start, min(rows, start + step))

    def vector(self) -> Rows:
        """All values in one row."""
        return self.rows(0, self.matrix[0]).reshape(-1)


def as_gate_and_up(stored: Stored, view: View) -> Stored:
    """The same tensor, or what it is read as where MoE takes it in turn."""
    for node, place in view.takers.get(stored.name, ()):
        if node.op_type == "MoE" and place in _FIRST and attributes(node).get("swiglu_fusion") == 1:
            return InTurn(**vars(stored))
    return stored
