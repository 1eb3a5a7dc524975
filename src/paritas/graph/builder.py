"""A graph under construction: scoped names, operators, and initializers that remember the weight they come from."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript import GraphBuilder

from paritas.checkpoint import Tensor
from paritas.errors import ParitasError
from paritas.weights import Float, Rows, Storage, Stored, View, Weight

Storing = Callable[[str, tuple[int, ...]], Storage]


def as_fp32(name: str, shape: tuple[int, ...]) -> Storage:
    """Every matrix is stored as fp32."""
    return Float.FP32


class Graph:
    """Builds one ONNX graph. Parts have the checkpoint's names: a scope is a module, an initializer a parameter.

    Args:
        tensors: the checkpoint's tensors, by the name that the graph's scopes will ask for.
        opsets: operator set versions by domain.
        storing: how a matrix is stored, by its name and its shape.

    Attributes:
        op: onnxscript's operator builder (``graph.op.MatMul(a, b)``).
        weights: initializer name -> weight, in the order in which the graph first uses them.
        matrices: name -> weight, of everything that the recipe was asked about.
    """

    def __init__(self, tensors: Mapping[str, Tensor], opsets: Mapping[str, int], storing: Storing = as_fp32) -> None:
        self._tensors = tensors
        self._storing = storing
        self._path: list[str] = []
        self.ir = ir.Graph([], [], nodes=[], name="decoder", opset_imports=dict(opsets))
        self._builder = GraphBuilder(self.ir)
        self.op: Any = self._builder.op
        self.weights: dict[str, Weight] = {}
        self.matrices: dict[str, Weight] = {}

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
        return Stored(self._tensor(name, shape))

    def packed(self, name: str, shape: tuple[int, ...], ranges: Sequence[tuple[int, int]]) -> Weight:
        """Rows ``[start, stop)`` of the checkpoint tensor ``name`` [of ``shape``], range after range.

        Raises:
            ParitasError: as :meth:`stored`.
        """
        return Rows(self._tensor(name, shape), ranges)

    def matrix(self, name: str, weight: Weight) -> Weight:
        """``weight``, which the present scope calls ``name``, stored as the recipe says: what is multiplied by."""
        full = self._name(name)
        self.matrices[full] = weight.stored_as(self._storing(full, weight.shape))
        return self.matrices[full]

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a tensor ``name`` of the present scope."""
        return self._name(name) in self._tensors

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The same as it lies in the checkpoint, for a weight that is made of parts of it.

        Raises:
            ParitasError: as :meth:`stored`.
        """
        return self._tensor(name, shape)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
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
        return tensor

    def parameter(self, name: str, weight: Weight) -> ir.Value:
        """An initializer whose data is written later, from ``weight``. One name is one initializer."""
        full = self._name(name)
        if full not in self.weights:
            self.weights[full] = weight
            dtype = ir.DataType.from_numpy(weight.dtype)
            value = ir.Value(name=full, shape=ir.Shape(weight.shape), type=ir.TensorType(dtype))
            # The data follows (package.data); until then the place is held by an empty external tensor.
            value.const_value = ir.ExternalTensor("", None, None, dtype, shape=ir.Shape(weight.shape), name=full)
            self.ir.register_initializer(value)
        return self.ir.initializers[full]

    def view(self, name: str, of: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        """The bytes of the initializer ``of`` in another shape, as an initializer of its own."""
        return self.parameter(name, View(str(of.name), self.weights[str(of.name)], shape))

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

    def body(
        self, name: str, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], trace: Callable[..., Any]
    ) -> ir.Graph:
        """The body of a Loop, by ``trace(*inputs)``, within which ``op`` writes into it.

        Args:
            name: of the body.
            inputs, outputs: names, types and shapes.
            trace: returns the outputs. It may use values of the graph around it, constants and parameters.
        """
        around = self.op

        def inside(op: Any, *values: ir.Value) -> Any:
            self.op = op
            return trace(*values)

        try:
            made: Any = self._builder
            return made.subgraph(inside, inputs, outputs, name=name)
        finally:
            self.op = around

    def optional(self, name: str, default: NDArray[Any]) -> ir.Value:
        """A graph input that is ``default`` where it is not given."""
        tensor = ir.tensor(default, name=name)
        value = ir.Value(name=name, shape=ir.Shape(default.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.ir.inputs.append(value)
        self.ir.register_initializer(value)
        return value

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
