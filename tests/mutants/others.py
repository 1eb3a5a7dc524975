"""Other exporters' packages: wrong ones as they were released, and right ones that are broken here."""

import numpy as np
import onnx

from mutants.graphs import attributes, before, both, copied, found, giving, in_turn, of, rewire, using, values
from mutants.known import ATTENTION, NORMS, ROTATION
from mutants.mutant import Mutant, Topic
from rounding import swapped

HEAD_DIM, QUERIES = 16, 48  # of the kept checkpoints
ANYWHERE = r"."


def keys_and_values_exchanged(packed: np.ndarray) -> np.ndarray:
    """Columns ``[hidden, q + k + v]`` of the packed projection, with one key-value head."""
    q, k, v = np.split(packed, [QUERIES, QUERIES + HEAD_DIM], axis=1)
    return np.concatenate([q, v, k], axis=1)


def angles_of(theta: float) -> np.ndarray:
    return np.arange(128)[:, None] * theta ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)


SKIP = both(of("SkipSimplifiedLayerNormalization"), giving(r"layers\.1/post_attention_layernorm"))


def sum_of_the_single(model: onnx.ModelProto) -> None:
    """The sum that goes on is of the stream as it was, not of its double, which the norm alone takes."""
    (node,) = found(model, SKIP)
    (double,) = (each for each in model.graph.node if node.input[0] in each.output)
    total = node.output[3]
    rewire(model, total, f"{total}.single")
    node.output[3] = f"{total}.unused"
    added = onnx.helper.make_node("Add", [double.input[0], node.input[1]], [f"{total}.single"])
    model.graph.node.insert(list(model.graph.node).index(node), added)


EXCHANGED = values(r"layers\.1\.attn\.qkv_proj\.MatMul\.weight$", keys_and_values_exchanged)
OTHER_THETA = in_turn(
    values(r"cos_cache$", lambda _: np.cos(angles_of(10_000.0))),
    values(r"sin_cache$", lambda _: np.sin(angles_of(10_000.0))),
)
RELEASED: tuple[Mutant, ...] = (
    Mutant("as released: norms in bf16, embedding scale", Topic.PAIR, "kept-gemma2", "builder", r"norm|embed_tokens"),
    Mutant("as released: YaRN dropped", Topic.ROPE, "kept-yarn", "builder", ROTATION),
    Mutant("as released: window dropped", Topic.MASK, "kept-mistral", "builder", ATTENTION),
    Mutant("as released: epsilon", Topic.NORM, "kept-phi", "builder", NORMS),
    Mutant(
        "as released: embedding scale, layers' kinds swapped",
        Topic.PAIR,
        "kept-gemma2",
        "mobius",
        rf"embed_tokens|{ATTENTION}",
    ),
    Mutant(
        "as released: embedding scale, attention scale, softcap",
        Topic.PAIR,
        "kept-gemma3",
        "mobius",
        rf"embed_tokens|lm_head|logits|{ATTENTION}",
    ),
    Mutant("as released: window dropped", Topic.MASK, "kept-mistral", "mobius", ATTENTION),
    Mutant(
        "as released: and one RoPE for all layers, no window",
        Topic.PAIR,
        "kept-gemma3",
        "mobius-cpu",
        rf"embed_tokens|lm_head|logits|{ROTATION}",
    ),
    Mutant("as released: scores not capped", Topic.ATTENTION, "kept-gemma2", "optimum", r"self_attn\["),
)
BROKEN: tuple[Mutant, ...] = (
    Mutant(
        "keys and values swapped",
        Topic.WEIGHT,
        "kept-llama",
        "builder",
        r"self_attn(\.[kv]_proj|\[)",
        layers=(1,),
        graph=EXCHANGED,
    ),
    Mutant("theta of the class", Topic.ROPE, "kept-llama", "builder", ROTATION, graph=OTHER_THETA),
    Mutant(
        "scale from head_dim",
        Topic.ATTENTION,
        "kept-llama",
        "builder",
        ATTENTION,
        layers=(0,),
        graph=attributes(of("GroupQueryAttention"), only=(0,), scale=0.2),
    ),
    Mutant(
        "epsilon ten times larger",
        Topic.NORM,
        "kept-llama",
        "optimum",
        NORMS,
        graph=values(r"norm/Constant_2_output_0$", lambda eps: 10 * eps),
    ),
    Mutant(
        "keys and values swapped",
        Topic.WEIGHT,
        "kept-llama",
        "optimum",
        r"self_attn(\.[kv]_proj|\[)",
        layers=(0,),
        graph=swapped("onnx::MatMul_738", "onnx::MatMul_739"),
    ),
    Mutant(
        "the stream added twice behind attention",
        Topic.NORM,
        "kept-llama",
        "builder",
        r"mlp|norm|\[residual|\[to|self_attn",
        graph=before(SKIP, 0, "Mul", np.float32(2)),
    ),
    Mutant(
        "the stream added twice for a norm alone",
        Topic.NORM,
        "kept-llama",
        "builder",
        r"mlp|norm|\[residual|\[to|self_attn",
        graph=in_turn(before(SKIP, 0, "Mul", np.float32(2)), sum_of_the_single),
    ),
    Mutant("theta of the class", Topic.ROPE, "kept-llama", "mobius", ROTATION, graph=OTHER_THETA),
    Mutant(
        "another layer's down_proj",
        Topic.WEIGHT,
        "kept-llama",
        "mobius",
        r"mlp(\.down_proj|\[)?",
        layers=(1,),
        graph=copied(r"layers\.1\.mlp\.down_proj\.weight_t$", "model.layers.0.mlp.down_proj.weight_t"),
    ),
    Mutant(
        "scale of one layer from hidden",
        Topic.ATTENTION,
        "kept-llama",
        "mobius-static",
        ATTENTION,
        layers=(1,),
        graph=attributes(both(of("Attention"), giving(r"layers\.1\.")), scale=42**-0.5),
    ),
    Mutant(
        "epsilon of the final norm alone",
        Topic.NORM,
        "kept-llama",
        "mobius",
        r"model\.norm",
        graph=attributes(using(r"^model\.norm\.weight"), epsilon=1e-6),
    ),
)
OTHERS: tuple[Mutant, ...] = (*RELEASED, *BROKEN)
