"""Mixture of experts, written in two ways. Both compute the chosen experts alone, exactly.

Least milliseconds on one thread, ONNX Runtime 1.32, 32 experts of width 512, 4 chosen, hidden 1024
(``python benchmarks/experts.py --cycles 15``):

    tokens                                   1     16    128
    Loop over the chosen (target onnx)     1.9     43     83
    MoE (target ort)                       1.7     34     97
    every expert for every token          26.1     55    349

The Loop copies the matrices of an expert before it multiplies by them. A chain of all experts would not, but is ten
nodes an expert: fifty thousand in a model of the usual size.
"""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from paritas.graph.activation import gated
from paritas.graph.builder import Graph
from paritas.spec import ClampedSwiglu, Experts
from paritas.targets.base import ExpertWeights
from paritas.weights import Stack

MICROSOFT = "com.microsoft"


def experts(graph: Graph, spec: Experts, x: ir.Value, scores: ir.Value, weights: ExpertWeights) -> ir.Value:
    """In standard operators: a Loop over the experts that any token of the call has chosen, as transformers does it.

    In each turn the tokens that chose the expert are gathered, and what it gives is added in their places.
    """
    op, hidden = graph.op, weights.down.shape[1]
    rows = op.Reshape(x, graph.constant(np.array([-1, hidden]), f"shape.rows.{hidden}"))
    choice, share = _chosen(graph, spec, scores)
    if weights.scale is not None:
        share = op.Mul(share, op.Gather(weights.scale, choice))
    hit = op.Unique(choice, _outputs=4)[0]
    parameters = _parameters(graph, weights)

    def turn(number: ir.Value, going: ir.Value, total: ir.Value) -> tuple[ir.Value, ir.Value]:
        op, last = graph.op, graph.constant(np.array([-1]), "axis.last")
        expert = op.Gather(hit, number)
        where = op.NonZero(op.Equal(choice, expert))  # [2, tokens]: the token, and which of its choices
        tokens = op.Gather(where, graph.constant(np.array(0), "zero"))
        given = _expert(graph, spec, op.Gather(rows, tokens), [op.Gather(each, expert) for each in parameters])
        part = op.Unsqueeze(op.GatherND(share, op.Transpose(where, perm=[1, 0])), last)
        added = op.ScatterND(total, op.Unsqueeze(tokens, last), op.Mul(given, part), reduction="add")
        return op.Identity(going), added

    total = ["tokens", hidden]
    so_far, after = _value("so_far", ir.DataType.FLOAT, total), _value("sum", ir.DataType.FLOAT, total)
    taken = [_value("number", ir.DataType.INT64), _value("going", ir.DataType.BOOL), so_far]
    body = graph.body("expert", taken, [_value("goes_on", ir.DataType.BOOL), after], turn)
    none = op.Expand(graph.scalar(0.0, "zero.fp32"), op.Shape(rows))
    summed = op.Loop(op.Size(hit), graph.constant(np.array(True), "true"), none, body=body)
    return op.Reshape(summed, op.Shape(x))


def fused(graph: Graph, spec: Experts, x: ir.Value, scores: ir.Value, weights: ExpertWeights) -> ir.Value:
    """ONNX Runtime's MoE. Its kernel for the CPU wants the rows of gate and up in turn, and is exact in fp32."""
    op, kind = graph.op, spec.activation
    gating = {"activation_alpha": 1.0, "activation_beta": 0.0}
    if isinstance(kind, ClampedSwiglu):
        gating = {"activation_alpha": kind.alpha, "activation_beta": 1.0, "swiglu_limit": kind.limit}
    first = graph.parameter("gate_up_proj.weight", in_turn(weights.gate, weights.up))
    second = graph.parameter("down_proj.weight", weights.down)
    offsets: list[ir.Value | None] = [None, None]
    if weights.gate_bias is not None and weights.up_bias is not None and weights.down_bias is not None:
        offsets[0] = graph.parameter("gate_up_proj.bias", in_turn(weights.gate_bias, weights.up_bias))
        offsets[1] = graph.parameter("down_proj.bias", weights.down_bias)
    by_token = op.Reshape(scores, graph.constant(np.array([-1, spec.count]), f"shape.rows.{spec.count}"))
    return op.MoE(
        x,
        by_token,
        first,
        offsets[0],
        second,
        offsets[1],
        k=spec.chosen,
        activation_type="swiglu",
        swiglu_fusion=1,
        normalize_routing_weights=int(spec.normalized),
        **gating,
        _domain=MICROSOFT,
    )


def in_turn(one: Stack, other: Stack) -> Stack:
    """Rows of the two in turn, part by part: [count, 2 * rows, ...]."""
    count, rows, *rest = one.shape

    def part(index: int) -> NDArray[np.float32]:
        return np.stack([one.part(index), other.part(index)], axis=1).reshape(2 * rows, *rest)

    sources = dict.fromkeys((*one.sources, *other.sources))
    return Stack((count, 2 * rows, *rest), tuple(sources), part)


def _chosen(graph: Graph, spec: Experts, scores: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The experts of each token, and the weight of each of them: [tokens, chosen] both."""
    op = graph.op
    scores = op.Reshape(scores, graph.constant(np.array([-1, spec.count]), f"shape.rows.{spec.count}"))
    size = graph.constant(np.array([spec.chosen]), f"chosen.{spec.chosen}")
    best, choice = op.TopK(scores, size, axis=-1, _outputs=2)
    if spec.normalized:
        return choice, op.Softmax(best, axis=-1)
    return choice, op.GatherElements(op.Softmax(scores, axis=-1), choice, axis=-1)


def _parameters(graph: Graph, weights: ExpertWeights) -> list[ir.Value]:
    named = {
        "gate_proj.weight": weights.gate,
        "up_proj.weight": weights.up,
        "down_proj.weight": weights.down,
        "gate_proj.bias": weights.gate_bias,
        "up_proj.bias": weights.up_bias,
        "down_proj.bias": weights.down_bias,
    }
    return [graph.parameter(name, weight) for name, weight in named.items() if weight is not None]


def _expert(graph: Graph, spec: Experts, x: ir.Value, parameters: list[ir.Value]) -> ir.Value:
    """One expert for the tokens x [tokens, hidden]; parameters as :func:`_parameters` orders them."""
    op = graph.op
    gate, up, down, *biases = parameters
    offsets = [(bias,) for bias in biases] or [(), (), ()]
    opened, passed = op.Gemm(x, gate, *offsets[0], transB=1), op.Gemm(x, up, *offsets[1], transB=1)
    return op.Gemm(gated(graph, spec.activation, opened, passed), down, *offsets[2], transB=1)


def _value(name: str, dtype: ir.DataType, shape: list[int | str] | None = None) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape or []))
