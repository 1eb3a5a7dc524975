"""What rounding one matrix does to the next-token distributions: measured on the fp32 package, in ONNX Runtime.

Every matrix of the graph becomes an input whose default is its own initializer, so that one session answers for all of
them: a run is given one matrix as a recipe would store it, and nothing else.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.measuring.whole import Asked
from paritas.plan import Plan
from paritas.quant.packing import quantised
from paritas.weights import Blocks, Transposed, Weight

_CACHED = 1 << 16  # numbers that are quantised at a time
Values = NDArray[np.float32]


class Measured:
    """A package of fp32 in which matrices can be replaced.

    Args:
        home: folder of the package.
        plan: whose package it is.
        matrices: name -> weight [outputs, inputs] of everything that can be quantised.
    """

    def __init__(self, home: Path, plan: Plan, matrices: Mapping[str, Weight]) -> None:
        def open_up(model: onnx.ModelProto) -> None:
            known = {tensor.name: tensor for tensor in model.graph.initializer}
            for name in matrices:
                info = onnx.helper.make_tensor_value_info(name, known[name].data_type, known[name].dims)
                model.graph.input.append(info)

        self._stored, self._matrices = plan.graph.weights, matrices
        self._asked = Asked(home, plan, open_up)
        self._exact = [_log_softmax(self._asked.logits(ids, {})) for ids in self._asked.texts]

    @property
    def positions(self) -> int:
        """At which distributions are compared."""
        return self._asked.positions

    def kl(self, chosen: Mapping[str, Blocks]) -> float:
        """The mean KL divergence (nats) from the exact package's distributions, with these matrices rounded."""
        return self._divergence({name: self._rounded(name, how)[0] for name, how in chosen.items()})

    def alone(self, name: str, how: Blocks) -> tuple[float, float]:
        """The same with one matrix rounded; and the squared distance of what is stored from the matrix."""
        values, error = self._rounded(name, how)
        return self._divergence({name: values}), error

    def error(self, name: str, how: Blocks) -> float:
        """The squared distance alone."""
        return self._rounded(name, how)[1]

    def _rounded(self, name: str, how: Blocks) -> tuple[Values, float]:
        """A matrix dequantised, as the graph stores it."""
        weight, error, start = self._matrices[name], 0.0, 0
        values = np.empty(weight.shape, np.float32)
        for block in weight.blocks():
            for rows in np.array_split(block, max(1, block.size // _CACHED)):
                got = quantised(rows, how).values(how.bits).reshape(len(rows), -1)[:, : weight.shape[1]]
                values[start : start + len(rows)] = got
                error += float(((got - rows) ** 2).sum(dtype=np.float64))
                start += len(rows)
        turned = isinstance(self._stored[name], Transposed)
        return np.ascontiguousarray(values.T) if turned else values, error

    def _divergence(self, given: Mapping[str, Values]) -> float:
        total = 0.0
        for exact, ids in zip(self._exact, self._asked.texts, strict=True):
            other = _log_softmax(self._asked.logits(ids, given))
            total += float(np.maximum((np.exp(exact) * (exact - other)).sum(axis=1, dtype=np.float64), 0).sum())
        return total / self.positions


def _log_softmax(logits: Values) -> Values:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
