"""Threefry-2x64, 20 rounds: random numbers that are a function of a key and a counter, so any draw can be repeated.

Salmon, Moraes, Dror and Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011). All arithmetic is modulo 2**64.
"""

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph

ROUNDS = 20
ROTATIONS = (16, 42, 12, 31, 16, 32, 24, 21)
PARITY = 0x1BD11BDAA9FC1A22
Words = tuple[ir.Value, ir.Value]


def threefry(graph: Graph, key: Words, counter: Words) -> Words:
    """The two words of a block; everything is uint64 of one shape."""
    op = graph.op
    keys = (*key, op.BitwiseXor(op.BitwiseXor(key[0], key[1]), word(graph, PARITY)))
    x, y = op.Add(counter[0], keys[0]), op.Add(counter[1], keys[1])
    for number in range(ROUNDS):
        x = op.Add(x, y)
        y = op.BitwiseXor(rotated(graph, y, ROTATIONS[number % len(ROTATIONS)]), x)
        if number % 4 == 3:
            injected = number // 4 + 1
            x = op.Add(x, keys[injected % 3])
            y = op.Add(op.Add(y, keys[(injected + 1) % 3]), word(graph, injected))
    return x, y


def rotated(graph: Graph, x: ir.Value, bits: int) -> ir.Value:
    """``x`` rotated to the left."""
    op = graph.op
    left = op.BitShift(x, word(graph, bits), direction="LEFT")
    return op.BitwiseOr(left, op.BitShift(x, word(graph, 64 - bits), direction="RIGHT"))


def uniform(graph: Graph, seed: ir.Value, counter: ir.Value) -> ir.Value:
    """One number in [0, 1) of 53 bits for each pair: key ``(seed, 0)``, counter ``(counter, 0)``; fp64.

    Args:
        graph: where it is written.
        seed, counter: int64 of one shape.
    """
    op = graph.op
    zero = op.Cast(op.Mul(seed, graph.constant(np.array(0), "zero")), to=ir.DataType.UINT64)
    first, _ = threefry(graph, (unsigned(graph, seed), zero), (unsigned(graph, counter), zero))
    top = op.Cast(op.BitShift(first, word(graph, 11), direction="RIGHT"), to=ir.DataType.DOUBLE)
    return op.Mul(top, graph.constant(np.array(2.0**-53), "unit"))


def unsigned(graph: Graph, x: ir.Value) -> ir.Value:
    """The same 64 bits."""
    return graph.op.Cast(x, to=ir.DataType.UINT64)


def word(graph: Graph, value: int) -> ir.Value:
    """A constant of 64 bits."""
    return graph.constant(np.array(value, np.uint64), f"word.{value:x}")
