"""Matrices of integers in ONNX Runtime: MatMulNBits multiplies by one, GatherBlockQuantized takes rows of one.

A tied table is stored once: its integers lie in the file once, in the shapes that the two operators want, and their
scales and zero points are the same initializers.
"""

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph
from paritas.quant.packing import Packed
from paritas.weights import Blocks, Weight

MICROSOFT = "com.microsoft"


def product(graph: Graph, x: ir.Value, weight: Weight) -> ir.Value:
    """``x @ weight.T`` for a weight [outputs, inputs] of the present scope."""
    packed = Packed(weight)
    how = packed.how
    return graph.op.MatMulNBits(
        x,
        _integers(graph, packed, packed.integers),
        *_scales(graph, packed),
        K=packed.columns,
        N=packed.rows,
        bits=how.bits,
        block_size=how.block,
        accuracy_level=how.accuracy,
        _domain=MICROSOFT,
    )


def rows(graph: Graph, table: Weight, ids: ir.Value) -> ir.Value:
    """Rows of a table [count, width] of the present scope: ids [batch, sequence] -> [batch, sequence, width]."""
    packed = Packed(table)
    how, op = packed.how, graph.op
    integers = _integers(graph, packed, packed.table)
    scales, *zeros = _scales(graph, packed)
    taken = op.GatherBlockQuantized(
        integers,
        ids,
        scales,
        *zeros,
        bits=how.bits,
        block_size=how.block,
        gather_axis=0,
        quantize_axis=1,
        _domain=MICROSOFT,
    )
    if packed.columns % how.block == 0:
        return taken
    limits = [graph.constant(np.array([limit]), f"axis.{limit}") for limit in (0, packed.columns, 2)]
    return op.Slice(taken, *limits)


def integers_name(parameter: str, how: Blocks) -> str:
    """The initializer that a parameter's integers are, [outputs, bytes] where rows are taken of it."""
    return f"{parameter}.int{how.bits}"


def _integers(graph: Graph, packed: Packed, weight: Weight) -> ir.Value:
    name = integers_name("weight", packed.how)
    value = graph.parameter(name, weight)
    if tuple(value.shape or ()) == weight.shape:
        return value
    return graph.view(f"{name}.{'blocks' if len(weight.shape) == 3 else 'rows'}", value, weight.shape)


def _scales(graph: Graph, packed: Packed) -> list[ir.Value]:
    scales = [graph.parameter("weight.scales", packed.scales)]
    return scales if packed.zeros is None else [*scales, graph.parameter("weight.zeros", packed.zeros)]
