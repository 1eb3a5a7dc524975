"""Faults beyond those that have a test of their own: most in one layer, or of one architecture."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from mutants.graphs import (
    after,
    another_type,
    attributes,
    before,
    both,
    bypass,
    copied,
    found,
    giving,
    in_turn,
    inputs,
    of,
    rewire,
    using,
    values,
)
from mutants.known import ATTENTION, MLP, NORMS, ROTATION
from mutants.mutant import Fault, Mutant, Topic
from paritas.spec import Activation, Experts, Layer, Llama3, Norms, Pairing, Rope
from rounding import swapped
from test_family_mutants import in_longrope
from test_mutants import in_attention, in_layers, in_mlp, in_rope, in_spec

Array = NDArray[Any]
RMS = ("SimplifiedLayerNormalization", "RMSNormalization", "SkipSimplifiedLayerNormalization")


def in_layer(number: int, change: Callable[[Layer], Layer]) -> Fault:
    return in_spec(
        lambda spec: replace(
            spec, layers=tuple(change(layer) if at == number else layer for at, layer in enumerate(spec.layers))
        )
    )


def in_experts(**changes: Any) -> Fault:
    def changed(layer: Layer) -> Layer:
        return replace(layer, mlp=replace(layer.mlp, **changes)) if isinstance(layer.mlp, Experts) else layer

    return in_layers(changed)


def in_gating(**changes: Any) -> Fault:
    return in_layers(
        lambda layer: replace(layer, mlp=replace(layer.mlp, activation=replace(layer.mlp.activation, **changes)))
    )


def rope_everywhere(patch: Any) -> None:
    """The one RoPE that the model has, in layers without one too."""
    ropes: list[Rope] = []

    def changed(layer: Layer) -> Layer:
        ropes.extend([layer.attention.rope] if layer.attention.rope else [])
        return replace(layer, mixer=replace(layer.attention, rope=layer.attention.rope or ropes[0]))

    in_layers(changed)(patch)


def one_after_the_other(layer: Layer) -> Layer:
    """A parallel layer, wired as most models are."""
    return replace(layer, norms=Norms(before_attention="input_layernorm", before_mlp="post_attention_layernorm"))


def through(kind: type[Any]) -> Callable[[Array], Array]:
    return lambda array: array.astype(kind).astype(np.float32)


def through_int8(weight: Array) -> Array:
    scale = np.abs(weight).max() / 127
    return np.round(weight / scale) * scale


def ungated(model: onnx.ModelProto) -> None:
    """The shared expert's output as it is, and no trace of its gate."""
    for gate in found(model, both(of("Sigmoid"), using(r"shared_expert_gate"))):
        (product,) = found(model, both(of("Mul"), using(f"^{re.escape(gate.output[0])}$")))
        (number,) = found(model, giving(f"^{re.escape(gate.input[0])}$"))
        (expert,) = (name for name in product.input if name != gate.output[0])
        rewire(model, product.output[0], expert)
        for node in (product, gate, number):
            model.graph.node.remove(node)
        for tensor in [each for each in model.graph.initializer if each.name in number.input]:
            model.graph.initializer.remove(tensor)


def noise(array: Array) -> Array:
    return np.random.default_rng(0).normal(0, 0.02, array.shape)


def first_two_exchanged(array: Array) -> Array:
    return array[[1, 0, *range(2, len(array))]]


R, A, K, N, W = Topic.ROPE, Topic.ATTENTION, Topic.MASK, Topic.NORM, Topic.WEIGHT
U, E, S, F = Topic.NUMBER, Topic.EXPERTS, Topic.STATE, Topic.MLP

ROPES = (
    Mutant("theta of the class", R, "qwen3", "ort", ROTATION, fault=in_rope(theta=10_000.0), seen="genai#2076"),
    Mutant("theta of the class", R, "mixtral", "onnx", ROTATION, fault=in_rope(theta=10_000.0), seen="genai#2076"),
    Mutant(
        "llama3 factor 32 for 8",
        R,
        "llama-biased",
        "onnx",
        ROTATION,
        fault=in_rope(scaling=Llama3(32.0, 1.0, 4.0, 32)),
        seen="TransformerLensOrg/TransformerLens#910",
    ),
    Mutant("pairs of halves", R, "cohere", "ort", ROTATION, fault=in_rope(pairing=Pairing.HALVES), seen="lcpp#3018"),
    Mutant("pairs of halves", R, "glm", "onnx", ROTATION, fault=in_rope(pairing=Pairing.HALVES)),
    Mutant("pairs of neighbours", R, "llama", "ort", ROTATION, fault=in_rope(pairing=Pairing.NEIGHBOURS)),
    Mutant(
        "LongRoPE switches at twice the length",
        R,
        "phi3-longrope",
        "ort",
        ROTATION,
        fault=in_longrope(lambda scaling: replace(scaling, original_context=2 * scaling.original_context)),
    ),
    Mutant("RoPE on layers without one", R, "cohere2", "ort", ROTATION, layers=(1,), fault=rope_everywhere),
    Mutant("RoPE on layers without one", R, "exaone4", "onnx", ROTATION, layers=(1,), fault=rope_everywhere),
    Mutant("alpha of dynamic scaling lost", R, "hunyuan_v1_dense", "ort", ROTATION, fault=in_rope(theta=5_000.0)),
    Mutant("partial rotary over the whole head", R, "glm", "ort", ROTATION, fault=in_rope(dim=32)),
    Mutant("partial rotary over the whole head", R, "stablelm", "onnx", ROTATION, fault=in_rope(dim=16)),
)
ATTENTIONS = (
    Mutant(
        "scale of one layer from hidden",
        A,
        "qwen3",
        "ort",
        ATTENTION,
        layers=(1,),
        fault=in_layer(1, lambda layer: replace(layer, mixer=replace(layer.attention, scale=72**-0.5))),
    ),
    Mutant(
        "clipping of q, k and v ignored", A, "olmo-clip", "ort", r"self_attn", fault=in_attention(clip=lambda _: None)
    ),
    Mutant(
        "attention sinks dropped",
        A,
        "gpt_oss",
        "ort",
        ATTENTION,
        fault=in_attention(sinks=lambda _: False),
        drop=("*.sinks",),
        seen="microsoft/onnxruntime#25269",
    ),
    Mutant(
        "causal mask from the upper left corner",
        K,
        "mistral",
        "onnx",
        ATTENTION,
        graph=inputs(both(of("Range"), using(r"Sub_\d+$")), lambda _: ["zero", "v_step.Squeeze_8", "one"]),
        seen="microsoft/onnxruntime#29020",
    ),
    Mutant(
        "a token does not see itself",
        K,
        "kept-llama",
        "optimum",
        r"self_attn\[",
        graph=another_type(of("LessOrEqual"), "Less"),
    ),
    Mutant(
        "window ignored",
        K,
        "exaone4",
        "ort",
        ATTENTION,
        layers=(0, 2),
        fault=in_attention("sliding", window=lambda _: None),
    ),
    Mutant("window one too long", K, "mixtral", "onnx", ATTENTION, fault=in_attention(window=lambda a: a.window + 1)),
    Mutant(
        "cached values lost",
        S,
        "llama",
        "onnx",
        r"self_attn",
        graph=before(of("Attention"), 5, "Mul", np.float32(0)),
    ),
    Mutant(
        "a layer takes another one's cache",
        S,
        "qwen3",
        "ort",
        r"self_attn",
        layers=(1,),
        graph=inputs(
            both(of("GroupQueryAttention"), using(r"past_key_values\.1\.")),
            lambda names: [name.replace("past_key_values.1.", "past_key_values.0.") for name in names],
        ),
        seen="onnxruntime/mobius#474",
    ),
    Mutant(
        "cached keys rounded to fp16",
        S,
        "mistral",
        "onnx",
        r"self_attn",
        graph=in_turn(before(of("Attention"), 4, "Cast", to=10), before(of("Attention"), 4, "Cast", to=1)),
    ),
)
NORMED = (
    Mutant(
        "epsilon of the class",
        N,
        "olmo2",
        "ort",
        NORMS,
        graph=attributes(of(*RMS), epsilon=1e-5),
        seen="onnxruntime/mobius tolerance guide",
    ),
    Mutant(
        "epsilon of the final norm alone",
        N,
        "llama",
        "onnx",
        r"model\.norm",
        graph=attributes(both(of(*RMS), using(r"^model\.norm")), epsilon=1e-6),
    ),
    Mutant(
        "RMSNorm for LayerNorm",
        N,
        "olmo",
        "onnx",
        NORMS,
        graph=in_turn(
            another_type(of("LayerNormalization"), "RMSNormalization", epsilon=1e-5, axis=-1),
            bypass(both(of("Sub"), giving(r"^v_model\."))),
        ),
        seen="onnxruntime/mobius OLMo guide",
    ),
    Mutant("bias of LayerNorm lost", N, "starcoder2", "ort", NORMS, graph=values(r"norm\.bias$", lambda b: 0 * b)),
    Mutant("bias of LayerNorm lost", N, "phi", "onnx", NORMS, graph=values(r"norm\.bias$", lambda b: 0 * b)),
    Mutant(
        "q_norm and k_norm exchanged",
        N,
        "qwen3",
        "onnx",
        r"self_attn(\.[qk]_norm|\[)",
        graph=swapped("q_norm", "k_norm"),
    ),
    Mutant(
        "two norms exchanged",
        N,
        "llama",
        "ort",
        NORMS,
        graph=swapped("input_layernorm", "post_attention_layernorm"),
        seen="onnxruntime/mobius#474",
    ),
    Mutant(
        "k_norm of one layer left out",
        N,
        "qwen3",
        "onnx",
        r"self_attn(\.k_norm|\[)",
        layers=(1,),
        graph=bypass(using(r"layers\.1\.self_attn\.k_norm")),
        seen="onnxruntime/mobius#474",
    ),
    Mutant(
        "norm behind attention left out",
        N,
        "gemma2",
        "onnx",
        r"norm|\[|o_proj",
        layers=(1,),
        graph=bypass(using(r"layers\.1\.post_attention_layernorm")),
    ),
    Mutant(
        "norm weights rounded to fp16", N, "gemma", "ort", NORMS, graph=values(r"norm\.weight$", through(np.float16))
    ),
    Mutant(
        "parallel layers wired one after the other",
        N,
        "gpt_neox",
        "onnx",
        r"mlp|layernorm|\[",
        fault=in_layers(one_after_the_other),
    ),
    Mutant(
        "final norm of another place",
        N,
        "mistral",
        "ort",
        r"model\.norm",
        graph=copied(r"^model\.norm\.weight$", "model.layers.0.input_layernorm.weight"),
        seen="microsoft/onnxruntime-genai#1687",
    ),
)
NUMBERS = (
    Mutant("GELU for SiLU", F, "mistral", "ort", MLP, fault=in_mlp(activation=Activation.GELU), seen="vllm#3411"),
    Mutant("ReLU squared for SiLU", F, "qwen2", "onnx", MLP, fault=in_mlp(activation=Activation.RELU2)),
    Mutant(
        "logits scale inverted",
        U,
        "cohere",
        "onnx",
        r"lm_head|logits",
        fault=in_spec(lambda spec: replace(spec, logits_scale=1 / spec.logits_scale)),
        seen="unslothai/unsloth#1218",
    ),
    Mutant(
        "bias of the head missing",
        U,
        "phi",
        "ort",
        r"lm_head|logits",
        fault=in_spec(lambda spec: replace(spec, head_bias=False)),
        drop=("lm_head.bias",),
    ),
    Mutant(
        "logits rounded to bf16",
        U,
        "llama",
        "ort",
        r"lm_head|logits",
        graph=in_turn(
            after(giving(r"^logits$"), "Cast", to=1), after(giving(r"^logits\.before\.Cast$"), "Cast", to=16)
        ),
        seen="microsoft/onnxruntime-genai#1479",
    ),
    Mutant(
        "softcap of another value",
        U,
        "gemma2",
        "onnx",
        r"lm_head|logits",
        fault=in_spec(lambda spec: replace(spec, softcap=30.0)),
    ),
)
WEIGHTS = (
    Mutant("layers exchanged", W, "llama", "ort", r".", layers=(1, 2), graph=swapped("layers.1.", "layers.2.")),
    Mutant(
        "another layer's down_proj",
        W,
        "qwen2",
        "onnx",
        r"mlp(\.down_proj|\[)?",
        layers=(2,),
        graph=copied(r"layers\.2\.mlp\.down_proj\.weight$", "model.layers.1.mlp.down_proj.weight"),
    ),
    Mutant(
        "biases of k and v exchanged",
        W,
        "smollm3",
        "ort",
        r"self_attn(\.[kv]_proj|\[)",
        graph=swapped("k_proj.bias", "v_proj.bias"),
        seen="microsoft/onnxruntime-genai#1059",
    ),
    Mutant(
        "values of one layer written as zeros",
        W,
        "phi3",
        "onnx",
        r"self_attn(\.(v|qkv)_proj|\[)",
        layers=(1,),
        graph=values(r"layers\.1\.self_attn\.v_proj\.weight$", lambda w: 0 * w),
        seen="onnxruntime/mobius#351",
    ),
    Mutant(
        "bias that was never set is noise",
        W,
        "granite",
        "ort",
        r"mlp(\.down_proj|\[)?",
        layers=(0,),
        graph=values(r"layers\.0\.mlp\.down_proj\.bias$", noise),
        seen="onnxruntime/mobius phimoe",
    ),
    Mutant(
        "head tied that is not",
        W,
        "llama-biased",
        "onnx",
        r"lm_head|logits",
        graph=inputs(using(r"^lm_head\.weight$"), lambda names: [names[0], "model.embed_tokens.weight", *names[2:]]),
        seen="microsoft/onnxruntime-genai#2237",
    ),
    Mutant(
        "one matrix through int8",
        W,
        "olmo2",
        "onnx",
        r"self_attn\.o_proj",
        layers=(2,),
        graph=values(r"layers\.2\.self_attn\.o_proj\.weight$", through_int8),
    ),
    Mutant(
        "a head's queries exchanged with another's",
        W,
        "nemotron",
        "ort",
        r"self_attn(\.q_proj|\[)",
        layers=(0,),
        graph=values(
            r"layers\.0\.self_attn\.q_proj\.weight$",
            lambda w: np.concatenate([w[:, 16:32], w[:, :16], w[:, 32:]], axis=1),
        ),
        seen="ggml-org/llama.cpp#3364",
    ),
    Mutant(
        "bias of the convolution missing",
        W,
        "lfm2",
        "ort",
        r"conv",
        layers=(0, 2, 3),
        graph=values(r"conv\.conv\.bias$", lambda b: 0 * b),
    ),
)
MIXTURES = (
    Mutant(
        "weights of experts not normalised",
        E,
        "qwen3_moe",
        "ort",
        r"mlp",
        layers=(1, 3),
        fault=in_experts(normalized=False),
        seen="pytorch/torchtitan#1448",
    ),
    Mutant("weights of experts normalised", E, "olmoe", "onnx", r"mlp", fault=in_experts(normalized=True)),
    Mutant("one expert too few", E, "mixtral", "ort", r"mlp", fault=in_experts(chosen=2)),
    Mutant(
        "two experts exchanged",
        E,
        "qwen3_moe",
        "onnx",
        r"mlp",
        layers=(1,),
        graph=values(r"layers\.1\.mlp\.experts\.\w+_proj\.weight$", first_two_exchanged),
        seen="onnxruntime/mobius#324",
    ),
    Mutant(
        "gate and up of experts exchanged",
        E,
        "granitemoe",
        "onnx",
        r"mlp|moe",
        graph=swapped("experts.gate_proj", "experts.up_proj"),
        seen="flashinfer-ai/flashinfer#4130",
    ),
    Mutant(
        "gate of the shared expert lost",
        E,
        "qwen2_moe",
        "onnx",
        r"mlp",
        layers=(0, 2),
        graph=another_type(both(of("Sigmoid"), using(r"shared_expert_gate")), "Identity"),
    ),
    Mutant("gate of the shared expert left out", E, "qwen2_moe", "onnx", r"mlp", layers=(0, 2), graph=ungated),
    Mutant("SwiGLU with alpha of the class", E, "gpt_oss", "ort", r"mlp", fault=in_gating(alpha=1.702)),
    Mutant("SwiGLU with limit of the class", E, "gpt_oss", "onnx", r"mlp", fault=in_gating(limit=7.0)),
)
MORE: tuple[Mutant, ...] = (*ROPES, *ATTENTIONS, *NORMED, *NUMBERS, *WEIGHTS, *MIXTURES)
