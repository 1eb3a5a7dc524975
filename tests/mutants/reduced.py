"""Faults in packages of less than fp32, which the rounding hides from whoever looks at the logits alone."""

from typing import Any

import ml_dtypes
import numpy as np

from mutants.graphs import attributes, of, values
from mutants.known import ATTENTION, NORMS, ROTATION
from mutants.more import RMS
from mutants.mutant import Mutant, Topic
from rounding import blocks, half, swapped, times
from test_mutants import in_every_norm, in_rope, in_window

Q = Topic.PRECISION
INT4, INT8 = blocks(4, 32, symmetric=True), blocks(8, 32, symmetric=True)
QDQ = blocks(4, 32, symmetric=True, qdq=True)


def to_bf16(array: Any) -> Any:
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


REDUCED: tuple[Mutant, ...] = (
    Mutant(
        "int4, epsilon ten times larger",
        Q,
        "llama",
        "ort",
        NORMS,
        rounded=INT4,
        fault=in_every_norm(eps=lambda n: 3e-4),
    ),
    Mutant("int4, theta of the class", Q, "qwen3", "ort", ROTATION, rounded=INT4, fault=in_rope(theta=10_000.0)),
    Mutant(
        "int4, window one too long", Q, "gemma3", "ort", ATTENTION, rounded=INT4, fault=in_window(lambda size: size + 1)
    ),
    Mutant(
        "int4, scales of a matrix 1 % too large",
        Q,
        "llama",
        "ort",
        r"mlp(\.down_proj|\[)?",
        layers=(1,),
        rounded=INT4,
        graph=values(r"layers\.1\.mlp\.down_proj\.weight_scales", times(1.01)),
    ),
    Mutant(
        "int4, gate and up swapped",
        Q,
        "mistral",
        "ort",
        r"mlp(\.(gate|up)_proj|\[)",
        layers=(2,),
        rounded=INT4,
        graph=swapped("layers.2.mlp.gate", "layers.2.mlp.up"),
    ),
    Mutant(
        "int4 by DequantizeLinear, keys and values swapped",
        Q,
        "llama",
        "onnx",
        r"self_attn(\.[kv]_proj|\[)",
        layers=(1,),
        rounded=QDQ,
        graph=swapped("layers.1.self_attn.k_proj", "layers.1.self_attn.v_proj"),
    ),
    Mutant(
        "int8, epsilon of the class",
        Q,
        "olmo2",
        "ort",
        NORMS,
        rounded=INT8,
        graph=attributes(of(*RMS), epsilon=1e-5),
    ),
    Mutant("fp16, theta of the class", Q, "llama", "ort", ROTATION, rounded=half(), fault=in_rope(theta=10_000.0)),
    Mutant(
        "fp16, 1 + weight rounded to fp16",
        Q,
        "gemma3",
        "ort",
        NORMS,
        rounded=half(),
    ),
    Mutant(
        "fp16, a row of the head zero",
        Q,
        "llama-biased",
        "ort",
        r"lm_head|logits",
        rounded=half(),
        graph=values(r"lm_head", lambda head: np.where(np.arange(len(head))[:, None] == 300, 0, head)),
    ),
)
