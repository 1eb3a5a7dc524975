"""A policy graph under construction, and how it is saved."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

import paritas
from paritas.graph.builder import Graph

OPSET = 21
_IR_VERSION = 10  # of opset 21
BATCH = "batch"


@dataclass(frozen=True)
class Policy:
    """A finished graph, by the name that its file gets."""

    name: str
    graph: ir.Graph

    @property
    def bytes(self) -> bytes:
        """The model."""
        model = ir.Model(
            self.graph, ir_version=_IR_VERSION, producer_name="paritas", producer_version=paritas.__version__
        )
        return ir.to_proto(model).SerializeToString()


def begin() -> Graph:
    """An empty graph of standard operators that reads no checkpoint."""
    return Graph({}, {"": OPSET})


def floats(graph: Graph, name: str, *sizes: int | str) -> ir.Value:
    """An fp32 input, a row a request."""
    return graph.input(name, ir.DataType.FLOAT, [BATCH, *sizes])


def integers(graph: Graph, name: str, *sizes: int | str) -> ir.Value:
    """An int64 input, a row a request."""
    return graph.input(name, ir.DataType.INT64, [BATCH, *sizes])


def flags(graph: Graph, name: str) -> ir.Value:
    """A bool input, one a request."""
    return graph.input(name, ir.DataType.BOOL, [BATCH])


def give(graph: Graph, value: ir.Value, name: str, dtype: ir.DataType, *sizes: int | str) -> None:
    """An output, a row a request."""
    graph.output(value, name, dtype, [BATCH, *sizes])


def finish(graph: Graph, name: str) -> Policy:
    """The policy ``name``."""
    graph.ir.name = name
    return Policy(name, graph.ir)


def axis(graph: Graph, *numbers: int) -> ir.Value:
    """A constant list of axes or sizes."""
    return graph.constant(np.array(numbers, np.int64), "numbers." + ".".join(map(str, numbers)))
