"""Two faults in one package, which hide each other from whoever changes one thing at a time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import tiny
from mutants.graphs import attributes, copied, in_turn, of, values
from mutants.known import ATTENTION, MLP, NORMS, ROTATION
from mutants.more import RMS, through_int8
from mutants.mutant import Fault, Mutant, Topic
from paritas.spec import Activation, Attention, Experts, Layer, Yarn
from rounding import swapped
from test_mutants import in_embed_scale, in_layers, in_rope, in_spec, offset_in_bf16

P = Topic.PAIR
Change = Callable[[Layer], Layer]


def faults(*every: Fault) -> Fault:
    """One after the other; at most one of them may be in the spec."""

    def fault(patch: pytest.MonkeyPatch) -> None:
        for each in every:
            each(patch)

    return fault


def layers(*changes: Change) -> Fault:
    """Several changes of each layer."""

    def changed(layer: Layer) -> Layer:
        for change in changes:
            layer = change(layer)
        return layer

    return in_layers(changed)


def attention(**change: Callable[[Attention], Any]) -> Change:
    return lambda layer: replace(
        layer, mixer=replace(layer.attention, **{name: value(layer.attention) for name, value in change.items()})
    )


def rope(**change: Any) -> Change:
    return attention(rope=lambda one: replace(one.rope, **change) if one.rope else None)


def yarn(**change: Any) -> Change:
    def changed(one: Attention) -> Any:
        assert one.rope is not None
        assert isinstance(one.rope.scaling, Yarn)
        return replace(one.rope, scaling=replace(one.rope.scaling, **change))

    return attention(rope=changed)


def mlp(**change: Any) -> Change:
    return lambda layer: replace(layer, mlp=replace(layer.mlp, **change))


def experts(**change: Any) -> Change:
    return lambda layer: mlp(**change)(layer) if isinstance(layer.mlp, Experts) else layer


def norm(**change: Any) -> Change:
    return lambda layer: replace(layer, norm=replace(layer.norm, **change))


def longer_window(one: Attention) -> int | None:
    return one.window and one.window + 1


WRONG_NUMBERS = in_spec(
    lambda spec: replace(
        spec, embed_scale=1.0, layers=tuple(replace(layer, residual_scale=1.0) for layer in spec.layers)
    )
)
UNCAPPED_AND_ERF = in_spec(
    lambda spec: replace(spec, softcap=None, layers=tuple(mlp(activation=Activation.GELU)(x) for x in spec.layers))
)

PAIRS: tuple[Mutant, ...] = (
    Mutant(
        "1 + weight in bf16, embedding scale rounded",
        P,
        "gemma3",
        "ort",
        rf"{NORMS}|embed_tokens",
        fault=faults(offset_in_bf16, in_embed_scale(lambda scale: round(scale, 2))),
        seen="microsoft/onnxruntime-genai#2939",
    ),
    Mutant(
        "theta of the class, window one too long",
        P,
        "gemma2",
        "onnx",
        rf"{ROTATION}|{ATTENTION}",
        fault=layers(rope(theta=10_000.0), attention(window=longer_window)),
    ),
    Mutant(
        "linear scaling lost, epsilon of the class",
        P,
        "llama-linear",
        "ort",
        rf"{ROTATION}|{NORMS}",
        fault=in_rope(scaling=None),
        graph=attributes(of(*RMS), epsilon=1e-6),
    ),
    Mutant(
        "scale from hidden, q_norm and k_norm exchanged",
        P,
        "qwen3",
        "onnx",
        r"self_attn(\.[qk]_norm|\[)",
        fault=layers(attention(scale=lambda _: tiny.HIDDEN**-0.5)),
        graph=swapped("q_norm", "k_norm"),
    ),
    Mutant(
        "embedding and residual multipliers lost",
        P,
        "granite",
        "ort",
        r"embed_tokens|\[residual|\[to|norm|mlp|o_proj",
        fault=WRONG_NUMBERS,
        seen="ggml-org/llama.cpp#9412",
    ),
    Mutant(
        "window one too long, GELU for SiLU",
        P,
        "mistral-window",
        "ort",
        rf"{ATTENTION}|{MLP}",
        fault=layers(attention(window=longer_window), mlp(activation=Activation.GELU)),
    ),
    Mutant(
        "biases of k and v exchanged, theta of the class",
        P,
        "smollm3",
        "onnx",
        rf"self_attn(\.[kv]_proj|\[)|{ROTATION}",
        fault=layers(rope(theta=10_000.0)),
        graph=swapped("k_proj.bias", "v_proj.bias"),
    ),
    Mutant(
        "whole heads rotated, epsilon of the class",
        P,
        "nemotron",
        "ort",
        rf"{ROTATION}|{NORMS}",
        fault=layers(rope(dim=16), norm(eps=1e-5)),
    ),
    Mutant(
        "weights of experts not normalised, theta of the class",
        P,
        "qwen3_moe",
        "ort",
        rf"mlp|{ROTATION}",
        fault=layers(experts(normalized=False), rope(theta=10_000.0)),
    ),
    Mutant(
        "YaRN's attention factor lost, scale from hidden",
        P,
        "llama-yarn",
        "ort",
        rf"{ROTATION}|{ATTENTION}",
        fault=layers(yarn(attention_factor=1.0), attention(scale=lambda _: tiny.HIDDEN**-0.5)),
    ),
    Mutant(
        "one matrix through int8, theta of the class",
        P,
        "olmo2",
        "onnx",
        rf"self_attn\.o_proj|{ROTATION}",
        fault=layers(rope(theta=10_000.0)),
        graph=values(r"layers\.2\.self_attn\.o_proj\.weight$", through_int8),
    ),
    Mutant(
        "logits uncapped, GELU by the error function",
        P,
        "gemma3",
        "onnx",
        rf"lm_head|logits|{MLP}",
        fault=UNCAPPED_AND_ERF,
    ),
    Mutant(
        "two layers' down_proj the same, a norm of another layer",
        P,
        "mistral",
        "onnx",
        r"mlp(\.down_proj|\[)?|input_layernorm",
        layers=(1, 2),
        graph=in_turn(
            copied(r"layers\.2\.mlp\.down_proj\.weight$", "model.layers.1.mlp.down_proj.weight"),
            copied(r"layers\.1\.input_layernorm\.weight$", "model.layers.0.input_layernorm.weight"),
        ),
    ),
)
