"""The faults of test_gemma3n.py and test_gemma4.py, where each of them acts, and what a diagnosis may call it."""

from collections.abc import Sequence

import test_gemma3n
import test_gemma4
from mutants.known import ATTENTION, MLP, ROTATION
from mutants.mutant import Mutant, Topic

INPUTS = r"per_layer|embed_tokens"
STREAMS = r"altup|\[residual|layers?\b.*\d$|\.in$|^model\.norm|input_layernorm"
VALUES = r"self_attn(\.v_norm|\.v_proj|\[|$)"
KEYS = r"self_attn(\[|$|\.q_proj|\.k_proj)"
Where = tuple[Topic, str, tuple[int, ...] | None, str]
"""Topic, module, layers, and the beginning of a cause's code."""

OF_3N: dict[str, Where] = {
    "standard deviation of a sample": (Topic.MLP, MLP, (0, 1, 2, 6), r"activation-sparsity"),
    "gates not sparse": (Topic.MLP, MLP, (0, 1, 2, 6), r"activation-(sparsity|dense)"),
    "sparsity of both tails": (Topic.MLP, MLP, (0, 1, 2, 6), r"activation-sparsity"),
    "sparse in every layer": (Topic.MLP, MLP, (3, 4, 5, 7), r"activation-sparsity"),
    "Laurel without its input": (Topic.NUMBER, r"laurel|pre_feedforward|\[residual", None, r"laurel|residual|wiring"),
    "sum not divided by the root of 2": (Topic.NUMBER, r"pre_feedforward|laurel|\[residual", None, r"residual|wiring"),
    "per-layer input given to the first stream": (Topic.NUMBER, STREAMS, None, r"stream"),
    "prediction coefficients transposed": (Topic.WEIGHT, r"prediction_coefs", None, r"weight-rows"),
    "correction coefficients transposed": (
        Topic.WEIGHT,
        r"correction_coefs",
        None,
        r"weight-(rows|differs|transposed)",
    ),
    "projections not rescaled": (Topic.NUMBER, STREAMS + r"|projections", None, r"stream"),
    "router's input not divided by hidden": (Topic.NUMBER, r"altup", None, r"norm-output-scaled|stream|router"),
    "correct_output_scale forgotten": (Topic.WEIGHT, r"altup|per_layer_input_gate", None, r"multiplier-absent"),
    "another stream is active": (Topic.NUMBER, STREAMS, None, r"stream"),
    "keys of another layer of the kind": (Topic.STATE, KEYS, (5, 6, 7), r"kv-source"),
    "shared keys without a window": (Topic.MASK, ATTENTION, (5, 7), r"window"),
    "values not normalised": (Topic.NORM, VALUES, None, r"value-norm"),
    "scores scaled by head_dim": (Topic.ATTENTION, ATTENTION, None, r"attention-scale"),
    "table not scaled": (Topic.NUMBER, INPUTS, None, r"per-layer|embedding-scale"),
    "projection not scaled": (Topic.NUMBER, INPUTS, None, r"per-layer"),
    "sum of per-layer inputs not scaled": (Topic.NUMBER, INPUTS, None, r"per-layer"),
    "ids outside of the table take its last row": (Topic.NUMBER, INPUTS, None, r"per-layer"),
    "logits not capped": (Topic.NUMBER, r"lm_head|logits", None, r"logit-softcap"),
}
OF_4: dict[str, Where] = {
    "keys of the first layer of the kind": (Topic.STATE, KEYS, (4, 5, 6), r"kv-source"),
    "keys of its own, of stale tensors": (Topic.STATE, KEYS, (4, 5, 6), r"kv-source"),
    "queries of sharing layers aligned with the first key": (Topic.MASK, ATTENTION, (4, 5, 6), r"mask|positions"),
    "keys of the call alone": (Topic.STATE, ATTENTION, (4, 5, 6), r"mask|cache|past"),
    "no window in sharing layers": (Topic.MASK, ATTENTION, (4, 5), r"window"),
    "a window in every sharing layer": (Topic.MASK, ATTENTION, (6,), r"window"),
    "no norm of queries in sharing layers": (Topic.NORM, r"self_attn(\.q_norm|\[|$)", (4, 5, 6), r"qk-norm"),
    "values of normed keys": (Topic.NORM, VALUES, None, r"value"),
    "values not normed": (Topic.NORM, VALUES, None, r"value-norm"),
    "keys of full layers in another order": (
        Topic.WEIGHT,
        r"self_attn(\.[kv]_proj|\[|$)",
        (3,),
        r"weight-rows|(kv-)?heads",
    ),
    "proportional RoPE as a partial one": (Topic.ROPE, ROTATION, (1, 3, 6), r"rope-"),
    "proportional RoPE of the rotated part": (Topic.ROPE, ROTATION, (1, 3, 6), r"rope-"),
    "every pair turns": (Topic.ROPE, ROTATION, (1, 3, 6), r"rope-"),
    "sliding RoPE of full heads": (Topic.ROPE, ROTATION, (0, 2, 4, 5), r"rope-"),
    "scale from head_dim": (Topic.ATTENTION, ATTENTION, (1, 3, 6), r"attention-scale"),
    "per-layer rows not scaled": (Topic.NUMBER, INPUTS, None, r"per-layer|embedding-scale"),
    "per-layer projection not scaled": (Topic.NUMBER, INPUTS, None, r"per-layer"),
    "per-layer sum not scaled": (Topic.NUMBER, INPUTS, None, r"per-layer"),
    "per-layer inputs of the next layer": (Topic.NUMBER, INPUTS, None, r"per-layer"),
    "per-layer gate by the other GELU": (Topic.MLP, r"per_layer", None, r"activation"),
    "layer_scalar lost": (Topic.NUMBER, r"layer_scalar|\[residual|layers?\b|\.in$", None, r"layer-scalar"),
    "softcap lost": (Topic.NUMBER, r"lm_head|logits", None, r"logit-softcap"),
    "router's number lost": (Topic.EXPERTS, r"router", None, r"router"),
    "router's norm without its weight": (Topic.EXPERTS, r"router", None, r"router|weight"),
    "scale of each expert lost": (Topic.EXPERTS, r"router|experts", None, r"expert|router"),
    "experts of the stream itself": (Topic.EXPERTS, r"norm|experts", None, r"norm"),
}


def _mutants() -> tuple[Mutant, ...]:
    found: list[Mutant] = []
    for every, places in ((test_gemma3n.MUTANTS, OF_3N), (test_gemma4.MUTANTS, OF_4)):
        assert every.keys() == places.keys(), every.keys() ^ places.keys()
        for kind, known in every.items():
            topic, module, layers, _ = places[kind]
            found.append(
                Mutant(kind, topic, known.checkpoint, known.target, module, layers, known.fault, drop=known.drop)
            )
    return tuple(found)


GEMMAS = _mutants()
ANSWERS: dict[str, Sequence[str]] = {kind: [where[3]] for kind, where in (OF_3N | OF_4).items()}
