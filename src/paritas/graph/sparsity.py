"""Activation sparsity: of the gates of an MLP, those that stand out."""

import math
from statistics import NormalDist

import numpy as np
import onnx_ir as ir

from paritas.graph.builder import Graph


def quantile(share: float) -> float:
    """Of the standard normal distribution, with transformers' rounding.

    torch's ``Normal.icdf`` of an fp32 number multiplies ``erfinv``, which is rounded to fp32, by the root of 2.
    """
    root = np.float32(math.sqrt(2.0))
    return float(np.float32(NormalDist().inv_cdf(float(np.float32(share))) / math.sqrt(2.0)) * root)


def sparse(graph: Graph, share: float, gate: ir.Value) -> ir.Value:
    """``relu(gate - (mean + quantile(share) * std))``, of each token's gates [batch, sequence, width].

    The standard deviation is the population's. Source: ``_gaussian_topk`` of transformers'
    models/gemma3n/modeling_gemma3n.py.
    """
    op = graph.op
    last = graph.constant(np.array([-1]), "axis.last")
    mean = op.ReduceMean(gate, last, keepdims=1)
    apart = op.Sub(gate, mean)
    std = op.Sqrt(op.ReduceMean(op.Mul(apart, apart), last, keepdims=1))
    least = op.Add(mean, op.Mul(std, graph.scalar(quantile(share), f"sparsity.{share!r}")))
    return op.Relu(op.Sub(gate, least))
