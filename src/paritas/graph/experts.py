"""Mixture of experts: the router's scores, and the experts' weights, in whichever way the checkpoint holds them.

Files hold a tensor for each expert (``experts.3.up_proj.weight``, as published ones mostly do and as transformers
writes them), or one for all (``experts.gate_up_proj``, GraniteMoE and gpt-oss). What is there decides.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from paritas.graph.builder import Graph
from paritas.graph.linear import router
from paritas.spec import Experts, Stacking
from paritas.targets.base import ExpertWeights, Target
from paritas.weights import Stack

Matrix = NDArray[np.float32]


def experts(graph: Graph, target: Target, spec: Experts, hidden: int, x: ir.Value) -> ir.Value:
    """What the chosen experts give, [batch, sequence, hidden] in and out."""
    return routed(graph, target, spec, hidden, x, router(graph, target, "gate", x, hidden, spec.count, spec.bias))


def routed(
    graph: Graph,
    target: Target,
    spec: Experts,
    hidden: int,
    x: ir.Value,
    scores: ir.Value,
    scale: ir.Value | None = None,
) -> ir.Value:
    """The same by scores [batch, sequence, experts]; ``scale`` [experts] multiplies what each gives."""
    with graph.scope("experts"):
        weights = stacked(graph, spec, hidden) if graph.has("gate_up_proj") else one_by_one(graph, spec, hidden)
        return target.experts(graph, spec, x, scores, replace(weights, scale=scale))


def one_by_one(graph: Graph, spec: Experts, hidden: int) -> ExpertWeights:
    """Of a tensor for each expert and projection."""

    def stack(name: str, shape: tuple[int, ...], parameter: str) -> Stack:
        tensors = [graph.tensor(f"{index}.{name}.{parameter}", shape) for index in range(spec.count)]
        return Stack((spec.count, *shape), tuple(each.name for each in tensors), lambda index: tensors[index].read())

    names = ("gate_proj", "up_proj", "down_proj")
    shapes = ((spec.width, hidden), (spec.width, hidden), (hidden, spec.width))
    matrices = [stack(name, shape, "weight") for name, shape in zip(names, shapes, strict=True)]
    if not spec.bias:
        return ExpertWeights(*matrices)
    biases = [stack(name, (size,), "bias") for name, size in zip(names, (spec.width, spec.width, hidden), strict=True)]
    return ExpertWeights(*matrices, *biases)


def stacked(graph: Graph, spec: Experts, hidden: int) -> ExpertWeights:
    """Of tensors that hold all experts, the halves of gate and up one after the other or in turn."""
    rows = spec.stacking is Stacking.ROWS
    halves = [slice(0, spec.width), slice(spec.width, None)] if rows else [slice(0, None, 2), slice(1, None, 2)]

    def stack(name: str, sizes: tuple[int, ...], half: slice = slice(None)) -> Stack:
        """``sizes`` of the part that is taken; a matrix lies as it is, or transposed."""
        parts = 1 if half == slice(None) else 2
        whole = (parts * sizes[0], *sizes[1:])
        tensor = graph.tensor(name, (spec.count, *(whole if rows else whole[::-1])))
        return Stack((spec.count, *sizes), (tensor.name,), _taking(lambda at: tensor.rows(at, at + 1)[0], rows, half))

    wide, tall = (spec.width, hidden), (hidden, spec.width)
    matrices = stack("gate_up_proj", wide, halves[0]), stack("gate_up_proj", wide, halves[1]), stack("down_proj", tall)
    if not spec.bias:
        return ExpertWeights(*matrices)
    biases = [stack("gate_up_proj_bias", wide[:1], half) for half in halves]
    return ExpertWeights(*matrices, *[*biases, stack("down_proj_bias", tall[:1])])


def _taking(read: Callable[[int], Matrix], rows: bool, half: slice) -> Callable[[int], Matrix]:
    return lambda index: (read(index) if rows else read(index).T)[half]
