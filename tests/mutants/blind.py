"""Faults that were written down before anybody looked at what a diagnosis can name.

They come from how conversions go wrong, not from a list of hypotheses. Keep it so: a new one is added without reading
``paritas.diagnose``.
"""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

import tiny
from mutants.graphs import (
    after,
    another_type,
    attributes,
    before,
    both,
    giving,
    in_turn,
    of,
    rewire,
    using,
    values,
)
from mutants.mutant import Change, Mutant, Topic
from rounding import blocks, half

D, HEADS, KV = tiny.HEAD_DIM, 6, 2
Array = NDArray[Any]
TABLES = r"^rope\..*\.(cos|sin)$"


def interleaved(columns: Array) -> Array:
    """Columns ``[inputs, heads * head_dim]`` of each head in the order of neighbours: i, i + d / 2, i + 1, ..."""
    by_head = columns.reshape(len(columns), -1, 2, D // 2)
    return by_head.swapaxes(2, 3).reshape(columns.shape)


def to_fp16(array: Array) -> Array:
    return array.astype(np.float16).astype(np.float32)


def repeated(rows: int) -> Any:
    """A table of ``rows`` positions, over and over."""
    return lambda table: table[np.arange(len(table)) % rows]


def tables_of_narrow_heads(model: onnx.ModelProto) -> None:
    """The exponents of the frequencies as if a head were hidden / heads wide."""
    angles = np.arange(tiny.CONTEXT)[:, None] * 5_000.0 ** -(2 * np.arange(D // 2) / (tiny.HIDDEN / HEADS))
    values(r"^rope\..*\.cos$", lambda _: np.cos(angles))(model)
    values(r"^rope\..*\.sin$", lambda _: np.sin(angles))(model)


def residual_of_the_normed(model: onnx.ModelProto) -> None:
    """In layer 1, what the MLP gives is added to its norm instead of to the stream."""
    mlp = r"layers\.1\.mlp\.down_proj"
    (gate,) = [n for n in model.graph.node if n.op_type == "MatMul" and using(r"layers\.1\.mlp\.gate_proj")(n)]
    (total,) = [n for n in model.graph.node if n.op_type == "Add" and using(mlp)(n)]
    place = next(at for at, name in enumerate(total.input) if "down_proj" not in name)
    total.input[place] = gate.input[0]


def heads_dealt_out(model: onnx.ModelProto) -> None:
    """Query heads take key-value heads in turn (h modulo 2) instead of three by three."""
    order = [head for group in range(KV) for head in range(HEADS) if head % KV == group]
    rows = np.concatenate([np.arange(head * D, (head + 1) * D) for head in order])
    values(r"self_attn\.q_proj\.weight$", lambda w: w[:, rows])(model)
    values(r"self_attn\.o_proj\.weight$", lambda w: w[rows])(model)


def output_not_transposed(weight: Array) -> Array:
    """Rows ``[heads * head_dim, hidden]`` as if what attention gives were [head_dim, heads]."""
    return weight.reshape(HEADS, D, -1).swapaxes(0, 1).reshape(weight.shape)


def normed_twice(model: onnx.ModelProto) -> None:
    (last,) = [n for n in model.graph.node if using(r"^model\.norm\.weight$")(n)]
    given, again = last.output[0], f"{last.output[0]}.again"
    node = onnx.helper.make_node("RMSNormalization", [given, "model.norm.weight"], [again], epsilon=3e-5, axis=-1)
    rewire(model, given, again)
    model.graph.node.insert(list(model.graph.node).index(last) + 1, node)


def blocks_exchanged(columns: Array) -> Array:
    b, c, u = np.split(columns, 3, axis=-1)
    return np.concatenate([c, b, u], axis=-1)


def nibbles_swapped(packed: Array) -> Array:
    return (packed >> 4) | (packed << 4)


def rows_behind_a_removed_token(table: Array) -> Array:
    """The table as it was before one token in the middle was removed: every row behind it is one too early."""
    return np.concatenate([table[:100], table[99:-1]])


def with_adapter(weight: Array) -> Array:
    """A low-rank addition, once more than it should be."""
    random = np.random.default_rng(7)
    left, right = random.normal(0, 0.05, (len(weight), 2)), random.normal(0, 0.05, (2, weight.shape[1]))
    return weight + left @ right


def queries_one_ahead() -> Change:
    """Rotations come in pairs, of queries and then of keys: each first one takes the next position."""
    return before(of("RotaryEmbedding"), 3, "Add", np.array(1, np.int64), only=(0, 2, 4))


def small_scales_flushed(scales: Array) -> Array:
    """As fp16 with its subnormals flushed would have them, were the scales a thousandth of what they are."""
    return (scales.astype(np.float32) / 64).astype(ml_dtypes.float8_e5m2).astype(np.float32) * 64


ROTATION = r"self_attn\[(rotation|attention)"

_WRITTEN = (
    # positions
    Mutant(
        "rows of k alone interleaved",
        Topic.WEIGHT,
        "mistral",
        "ort",
        r"self_attn(\.k_proj|\[)",
        graph=values(r"self_attn\.k_proj\.weight$", interleaved),
        seen="ggml-org/llama.cpp#3364",
    ),
    Mutant(
        "RoPE tables rounded to fp16",
        Topic.ROPE,
        "qwen3",
        "ort",
        ROTATION,
        graph=values(TABLES, to_fp16),
        seen="huggingface/transformers#29285",
    ),
    Mutant(
        "RoPE tables made for 48 positions and repeated",
        Topic.ROPE,
        "llama-biased",
        "onnx",
        ROTATION,
        graph=values(TABLES, repeated(48)),
        seen="neuralmagic/sparseml#1826",
    ),
    Mutant(
        "queries rotated one position ahead of keys",
        Topic.ROPE,
        "olmo2",
        "onnx",
        r"self_attn\[(rotation of queries|attention)",
        graph=queries_one_ahead(),
    ),
    Mutant(
        "frequencies of heads of hidden / heads",
        Topic.ROPE,
        "llama",
        "ort",
        ROTATION,
        graph=tables_of_narrow_heads,
        seen="ggml-org/llama.cpp#8579",
    ),
    Mutant(
        "one layer rotates neighbours",
        Topic.ROPE,
        "kept-llama",
        "mobius",
        ROTATION,
        layers=(1,),
        graph=attributes(both(of("RotaryEmbedding"), giving(r"layers\.1\.")), interleaved=1),
    ),
    # attention
    Mutant(
        "query heads dealt out to key-value heads in turn",
        Topic.ATTENTION,
        "llama",
        "onnx",
        r"self_attn(\.[qo]_proj|\[attention)|\[residual to post_attention",
        graph=heads_dealt_out,
        seen="onnxruntime/mobius#396",
    ),
    Mutant(
        "attention's output not transposed before o_proj",
        Topic.ATTENTION,
        "mistral",
        "onnx",
        r"self_attn(\.o_proj|\[)",
        layers=(0,),
        graph=values(r"layers\.0\.self_attn\.o_proj\.weight$", output_not_transposed),
    ),
    Mutant(
        "queries and keys both divided by the square root of head_dim",
        Topic.ATTENTION,
        "kept-llama",
        "optimum",
        r"self_attn\[",
        graph=in_turn(
            before(both(of("MatMul"), giving(r"layers\.0/self_attn/MatMul_output")), 0, "Mul", np.float32(D**-0.5)),
            before(both(of("MatMul"), giving(r"layers\.1/self_attn/MatMul_output")), 0, "Mul", np.float32(D**-0.5)),
        ),
    ),
    Mutant(
        "values of one head negated",
        Topic.WEIGHT,
        "kept-llama",
        "builder",
        r"self_attn(\.v_proj|\[)",
        layers=(1,),
        graph=values(
            r"layers\.1\.attn\.qkv_proj\.MatMul\.weight$", lambda w: np.concatenate([w[:, :-D], -w[:, -D:]], axis=1)
        ),
    ),
    # residual stream, norms, numbers
    Mutant(
        "the residual is taken behind the norm",
        Topic.NORM,
        "llama",
        "onnx",
        r"(mlp|input_layernorm|post_attention_layernorm|\[residual|\[to)",
        layers=(1, 2),
        graph=residual_of_the_normed,
    ),
    Mutant(
        "final norm applied twice",
        Topic.NORM,
        "qwen2",
        "onnx",
        r"model\.norm|lm_head|logits",
        graph=normed_twice,
    ),
    Mutant(
        "embedding scale applied to the tied head too",
        Topic.NUMBER,
        "gemma2",
        "ort",
        r"lm_head|logits|model\.norm",
        graph=after(of("FusedMatMul"), "Mul", np.float32(tiny.HIDDEN**0.5)),
        seen="huggingface/transformers#29402",
    ),
    Mutant(
        "logits capped twice",
        Topic.NUMBER,
        "gemma3",
        "onnx",
        r"lm_head|logits",
        graph=in_turn(
            before(of("Tanh"), 0, "Tanh"),
        ),
    ),
    # weights
    Mutant(
        "rows behind a removed token one too early",
        Topic.WEIGHT,
        "llama-biased",
        "ort",
        r"embed_tokens|input_layernorm|model\[",
        graph=values(r"embed_tokens\.weight$", rows_behind_a_removed_token),
    ),
    # mixtures
    Mutant(
        "router's scores through a sigmoid",
        Topic.EXPERTS,
        "olmoe",
        "onnx",
        r"mlp",
        graph=another_type(of("Softmax"), "Sigmoid"),
    ),
    # convolutions
    Mutant(
        "convolution kernel back to front",
        Topic.WEIGHT,
        "lfm2",
        "ort",
        r"conv",
        layers=(0, 2, 3),
        graph=values(r"conv\.conv\.weight$", lambda w: w[..., ::-1]),
    ),
    Mutant(
        "convolution state not carried",
        Topic.STATE,
        "lfm2",
        "onnx",
        r"conv",
        layers=(0, 2, 3),
        graph=before(both(of("Concat"), using(r"past\.\d+\.conv")), 0, "Mul", np.float32(0)),
        seen="onnxruntime/mobius nemotron_h",
    ),
    Mutant(
        "gates of the convolution exchanged",
        Topic.WEIGHT,
        "lfm2",
        "onnx",
        r"conv",
        layers=(2,),
        graph=values(r"layers\.2\.conv\.in_proj\.(weight|bias)$", blocks_exchanged),
    ),
    # activation
    Mutant(
        "SiLU with a factor of 1.702",
        Topic.MLP,
        "smollm3",
        "onnx",
        r"mlp",
        graph=before(of("Sigmoid"), 0, "Mul", np.float32(1.702)),
    ),
    # what was added to, left out of or put in the wrong place of a whole
    Mutant(
        "the stream added twice in one layer",
        Topic.NORM,
        "qwen2",
        "onnx",
        r"(mlp|input_layernorm|\[residual|\[to)",
        layers=(1, 2),
        graph=before(both(of("Add"), using(r"layers\.1\.mlp\.down_proj")), 0, "Mul", np.float32(2)),
    ),
    Mutant(
        "what attention gives divided by the root of twice the layers",
        Topic.NUMBER,
        "qwen3",
        "onnx",
        r"self_attn\.o_proj|\[residual|\[to|post_attention_layernorm",
        graph=after(both(of("MatMul"), using(r"o_proj\.weight")), "Mul", np.float32(6**-0.5)),
    ),
    Mutant(
        "row of a special token zero",
        Topic.WEIGHT,
        "mistral",
        "onnx",
        r"embed_tokens|input_layernorm|model\[",
        graph=values(r"embed_tokens\.weight$", lambda table: np.where(np.arange(len(table))[:, None] == 3, 0, table)),
    ),
    Mutant(
        "bias subtracted",
        Topic.WEIGHT,
        "llama-biased",
        "onnx",
        r"self_attn(\.q_proj|\[)",
        layers=(2,),
        graph=another_type(both(of("Add"), using(r"layers\.2\.self_attn\.q_proj\.bias")), "Sub"),
    ),
    Mutant(
        "a norm divides by the root of the sum",
        Topic.NORM,
        "mistral",
        "onnx",
        r"input_layernorm|self_attn\[to q_proj",
        layers=(0,),
        graph=after(using(r"layers\.0\.input_layernorm\.weight"), "Mul", np.float32(tiny.HIDDEN**-0.5)),
    ),
    Mutant(
        "bias of the router missing",
        Topic.EXPERTS,
        "gpt_oss",
        "ort",
        r"mlp",
        graph=values(r"mlp\.(gate|router)\.bias$", lambda bias: 0 * bias),
        seen="onnxruntime/mobius#414",
    ),
    Mutant(
        "temperature of the generation configuration in the graph",
        Topic.NUMBER,
        "qwen3",
        "ort",
        r"lm_head|logits",
        graph=after(giving(r"^logits$"), "Div", np.float32(0.7)),
    ),
    Mutant(
        "an adapter merged twice",
        Topic.WEIGHT,
        "llama",
        "ort",
        r"self_attn(\.q_proj|\[)",
        layers=(1,),
        graph=values(r"layers\.1\.self_attn\.q_proj\.weight$", with_adapter),
    ),
    Mutant(
        "values rotated too",
        Topic.ROPE,
        "llama",
        "onnx",
        r"self_attn(\.v_proj|\[)",
        graph=before(
            of("Attention"),
            2,
            "RotaryEmbedding",
            "rope.5000.16.cos",
            "rope.5000.16.sin",
            "v_step.Slice_6",
            num_heads=KV,
        ),
    ),
    Mutant(
        "scale of the padded head",
        Topic.ATTENTION,
        "llama-heads-of-20",
        "ort",
        r"self_attn\[",
        graph=attributes(of("Attention", "GroupQueryAttention"), scale=32**-0.5),
    ),
    Mutant(
        "last rows of a matrix not written",
        Topic.WEIGHT,
        "qwen2",
        "ort",
        r"mlp(\.down_proj|\[)?",
        layers=(1,),
        graph=values(r"layers\.1\.mlp\.down_proj\.weight$", lambda w: np.where(np.arange(len(w))[:, None] > 95, 0, w)),
    ),
    Mutant(
        "a matrix read one element late",
        Topic.WEIGHT,
        "olmo2",
        "ort",
        r"mlp(\.up_proj|\[)?",
        layers=(0,),
        graph=values(r"layers\.0\.mlp\.up_proj\.weight$", lambda w: np.roll(w.T.ravel(), -1).reshape(w.T.shape).T),
    ),
    Mutant(
        "int8, zero points ignored",
        Topic.PRECISION,
        "qwen2",
        "ort",
        r"self_attn|mlp",
        rounded=blocks(8, 32, symmetric=False),
        graph=values(r"_zero_points?$", lambda points: 0 * points + 128),
        seen="microsoft/onnxruntime-genai#1951",
    ),
    # reduced precision
    Mutant(
        "int4, halves of a byte swapped in one matrix",
        Topic.PRECISION,
        "llama",
        "ort",
        r"self_attn(\.q_proj|\[)",
        layers=(0,),
        rounded=blocks(4, 32, symmetric=True),
        graph=values(r"layers\.0\.self_attn\.q_proj\.weight_Q4", nibbles_swapped),
        seen="amd/Quark#20",
    ),
    Mutant(
        "int4, scales stored in fp8",
        Topic.PRECISION,
        "llama",
        "ort",
        r"mlp(\.down_proj|\[)?",
        rounded=blocks(4, 32, symmetric=True),
        graph=values(r"mlp\.down_proj\.weight_scales", small_scales_flushed),
    ),
    Mutant(
        "fp16, keys of one layer negated",
        Topic.PRECISION,
        "llama",
        "ort",
        r"self_attn(\.k_proj|\[)",
        layers=(1,),
        rounded=half(),
        graph=values(r"layers\.1\.self_attn\.k_proj\.weight", lambda w: -w),
    ),
)

BLIND: tuple[Mutant, ...] = tuple(replace(each, blind=True) for each in _WRITTEN)
