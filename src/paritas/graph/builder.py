"""A graph under construction: scoped names, operators, and initializers that remember the weight they come from."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript import GraphBuilder

from paritas.checkpoint import Tensor
from paritas.errors import ParitasError
from paritas.weights import Stored, Weight


class Graph:
    """Builds one ONNX graph. Parts have the checkpoint's names: a scope is a module, an initializer a parameter.

    Args:
        tensors: the checkpoint's tensors, by the name that the graph's scopes will ask for.
        opsets: operator set versions by domain.

    Attributes:
        op: onnxscript's operator builder (``graph.op.MatMul(a, b)``).
        weights: initializer name -> weight, in the order in which the graph first uses them.
    """

    def __init__(self, tensors: Mapping[str, Tensor], opsets: Mapping[str, int]) -> None:
        self._tensors = tensors
        self._path: list[str] = []
        self.ir = ir.Graph([], [], nodes=[], name="decoder", opset_imports=dict(opsets))
        self._builder = GraphBuilder(self.ir)
        self.op: Any = self._builder.op
        self.weights: dict[str, Weight] = {}

    @contextmanager
    def scope(self, *names: str) -> Generator[None]:
        """Everything inside is named under ``names``."""
        for name in names:
            self._path.append(name)
            self._builder.push_module(name)
        yield
        for _ in names:
            self._builder.pop_module()
            self._path.pop()

    @contextmanager
    def root(self) -> Generator[None]:
        """Leave every scope: for what belongs to no module."""
        held, self._path = self._path, []
        yield
        self._path = held

    def stored(self, name: str, shape: tuple[int, ...]) -> Weight:
        """The checkpoint tensor ``name`` of the present scope.

        Raises:
            ParitasError: ``tensor-missing``; ``tensor-shape-wrong`` if it is not of the shape that the spec gives.
        """
        full = self._name(name)
        tensor = self._tensors.get(full)
        if tensor is None:
            raise ParitasError(
                "tensor-missing",
                f"the checkpoint has no tensor {full}",
                place=full,
                hint="The configuration asks for it. Fetch the checkpoint again, or repair the configuration.",
            )
        if tensor.shape != shape:
            raise ParitasError(
                "tensor-shape-wrong",
                f"{full} is {list(tensor.shape)}; the configuration makes it {list(shape)}",
                place=tensor.place,
                hint="Configuration and weights are of different models.",
            )
        return Stored(tensor)

    def parameter(self, name: str, weight: Weight) -> ir.Value:
        """An initializer whose data is written later, from ``weight``. One name is one initializer."""
        full = self._name(name)
        if full not in self.weights:
            self.weights[full] = weight
            value = ir.Value(name=full, shape=ir.Shape(weight.shape), type=ir.TensorType(ir.DataType.FLOAT))
            # The data follows (package.data); until then the place is held by an empty external tensor.
            value.const_value = ir.ExternalTensor(
                "", None, None, ir.DataType.FLOAT, shape=ir.Shape(weight.shape), name=full
            )
            self.ir.register_initializer(value)
        return self.ir.initializers[full]

    def constant(self, array: NDArray[Any], name: str) -> ir.Value:
        """A small constant that lies in the graph itself; shared by name across scopes."""
        if name not in self.ir.initializers:
            tensor = ir.tensor(array, name=name)
            self.ir.register_initializer(
                ir.Value(
                    name=name,
                    shape=ir.Shape(array.shape),
                    type=ir.TensorType(tensor.dtype),
                    const_value=tensor,
                )
            )
        return self.ir.initializers[name]

    def scalar(self, value: float, name: str) -> ir.Value:
        """An fp32 number, rounded once, here."""
        return self.constant(np.array(value, np.float32), name)

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
        """A graph input."""
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
        self.ir.inputs.append(value)
        return value

    def output(self, value: ir.Value, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> None:
        """Make ``value`` a graph output."""
        value.name = name
        value.type = ir.TensorType(dtype)
        value.shape = ir.Shape(shape)
        self.ir.outputs.append(value)

    def _name(self, name: str) -> str:
        return ".".join([*self._path, name])
