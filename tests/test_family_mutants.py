"""Faults that one family makes possible, put into our own export one at a time: each must turn the verdict red.

The faults that any model can have are in test_mutants.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from paritas.export import export
from paritas.graph import attention as attention_part
from paritas.graph.linear import Part
from paritas.plan import Options
from paritas.spec import (
    Activation,
    Attention,
    Decoder,
    Dynamic,
    Layer,
    LongRope,
    Norms,
    Packed,
    Place,
    QkNorm,
    Rope,
    Yarn,
)
from paritas.targets import TARGETS
from paritas.verify.evidence import Evidence
from paritas.verify.verdict import Verdict
from test_mutants import (
    ONNX,
    RAW,
    Fault,
    Mutant,
    first_bad,
    in_attention,
    in_layers,
    in_mlp,
    in_rope,
    in_spec,
    in_words,
)
from tiny import CONTEXT

LONE = "a scale, a norm, the embedding, the MLP or the head"
SECOND = "RoPE, or the attention's scale, softcap or q/k norm"
MASK = "the sliding-window mask"


def in_yarn(**change: object) -> Fault:
    def changed(attention: Attention) -> Rope:
        assert attention.rope is not None
        assert isinstance(attention.rope.scaling, Yarn)
        return replace(attention.rope, scaling=replace(attention.rope.scaling, **change))  # type: ignore[arg-type]

    return in_attention(rope=changed)


def in_longrope(change: Callable[[LongRope], LongRope]) -> Fault:
    def changed(attention: Attention) -> Rope:
        assert attention.rope is not None
        assert isinstance(attention.rope.scaling, LongRope)
        return replace(attention.rope, scaling=change(attention.rope.scaling))

    return in_attention(rope=changed)


def in_all_norms(**change: object) -> Fault:
    def changed(layer: Layer) -> Layer:
        return replace(layer, norm=replace(layer.norm, **change))  # type: ignore[arg-type]

    return in_layers(changed)


def after_norms_swapped(layer: Layer) -> Layer:
    norms = layer.norms
    assert isinstance(norms, Norms)
    return replace(layer, norms=replace(norms, after_attention=norms.after_mlp, after_mlp=norms.after_attention))


def nope_the_wrong_way_round(patch: pytest.MonkeyPatch) -> None:
    """SmolLM3's no_rope_layers says where RoPE is, against its name."""
    ropes: set[Rope] = set()

    def changed(layer: Layer) -> Layer:
        ropes.update([layer.attention.rope] if layer.attention.rope else [])
        (rope,) = ropes
        return replace(layer, mixer=replace(layer.attention, rope=None if layer.attention.rope else rope))

    in_layers(changed)(patch)


def keys_and_values_swapped(patch: pytest.MonkeyPatch) -> None:
    parts = attention_part._parts

    def wrong(*given: object) -> list[Part]:
        q, k, v = parts(*given)  # type: ignore[arg-type]
        return [q, v, k]

    patch.setattr(attention_part, "_parts", wrong)


def query_and_key_norms_swapped(patch: pytest.MonkeyPatch) -> None:
    norm, other = attention_part._qk_norm, {"q_norm": "k_norm", "k_norm": "q_norm"}
    patch.setattr(
        attention_part, "_qk_norm", lambda graph, target, qk, name, *a: norm(graph, target, qk, other[name], *a)
    )


def full_last(spec: Decoder) -> Decoder:
    """As most families have it that mix windows; CWM's is the other way round."""
    return replace(spec, layers=tuple(reversed(spec.layers[:4])) + spec.layers[4:])


def after_rope(attention: Attention) -> QkNorm:
    assert attention.qk_norm is not None
    return replace(attention.qk_norm, place=Place.AFTER_ROPE)


BLOCKS = in_attention(packed=lambda _: Packed("query_key_value"))
SHORT_ONLY = in_longrope(lambda scaling: replace(scaling, long=scaling.short))
LONG_ONLY = in_longrope(lambda scaling: replace(scaling, short=scaling.long))
NO_FACTOR = in_longrope(lambda scaling: replace(scaling, attention_factor=1.0))
LATE = Dynamic(factor=2.0, original_context=CONTEXT)
CAP = in_attention(softcap=lambda _: None)

MUTANTS: Mapping[str, Mutant] = {
    "YaRN: attention factor lost": Mutant("llama-yarn", in_yarn(attention_factor=1.0), SECOND, 1),
    "YaRN: range not rounded to whole pairs": Mutant("llama-yarn", in_yarn(truncate=False), SECOND, 1),
    "YaRN: betas of the class": Mutant("llama-yarn", in_yarn(beta_fast=32.0, beta_slow=1.0), SECOND, 1, ONNX),
    "YaRN ignored": Mutant("qwen3-yarn", in_rope(scaling=None), SECOND, 1),
    "LongRoPE: short factors alone": Mutant("phi3-longrope", SHORT_ONLY, SECOND, None),
    "LongRoPE: long factors alone": Mutant("phi3-longrope", LONG_ONLY, SECOND, 1, ONNX),
    "LongRoPE: factor lost within the original context": Mutant("phi3-longrope", NO_FACTOR, SECOND, 1),
    "dynamic scaling ignored": Mutant("llama-dynamic", in_rope(scaling=LATE), SECOND, None),
    "partial rotary over the whole head": Mutant("nemotron", in_rope(dim=16), SECOND, 1),
    "partial rotary over a quarter": Mutant("nemotron-wide", in_rope(dim=8), SECOND, 1, ONNX),
    "RoPE where there is none": Mutant("smollm3", nope_the_wrong_way_round, SECOND, 1),
    "scores not capped": Mutant("gemma2", CAP, SECOND, 1),
    "scores capped at another value": Mutant("gemma2", in_attention(softcap=lambda _: 2.01), SECOND, 1, ONNX),
    "window on the other layers": Mutant(
        "gemma2", in_attention(window=lambda a: None if a.window else 8), MASK, 8, ONNX
    ),
    "uniform window ignored": Mutant("mistral-window", in_attention(window=lambda _: None), MASK, 8),
    "last layer of four full, not the first": Mutant("cwm-pattern", in_spec(full_last), MASK, 8),
    "packed window ignored": Mutant("phi3-window", in_attention(window=lambda _: None), MASK, 8, ONNX),
    "window from the first layer on": Mutant("qwen2-window", in_attention(window=lambda _: 8), MASK, 8),
    "keys and values swapped": Mutant("phi3", keys_and_values_swapped, LONE, 0),
    "rows by head read as blocks": Mutant("persimmon", BLOCKS, LONE, 0),
    "LayerNorms of queries and keys swapped": Mutant("persimmon", query_and_key_norms_swapped, SECOND, 1, ONNX),
    "LayerNorm of heads after RoPE": Mutant("persimmon", in_attention(qk_norm=after_rope), SECOND, 1),
    "residual multiplier lost": Mutant("granite", in_layers(lambda layer: replace(layer, residual_scale=1.0)), LONE, 0),
    "logits scale lost": Mutant("granite", in_spec(lambda spec: replace(spec, logits_scale=1.0)), LONE, 0, ONNX),
    "embedding multiplier lost": Mutant("granite", in_spec(lambda spec: replace(spec, embed_scale=1.0)), LONE, 0),
    "attention multiplier lost": Mutant("granite", in_attention(scale=lambda a: a.head_dim**-0.5), SECOND, 1),
    "logits divided, as Granite's are": Mutant(
        "hyperclovax", in_spec(lambda spec: replace(spec, logits_scale=1 / spec.logits_scale)), LONE, 0
    ),
    "norm of the other half's sum": Mutant("hyperclovax", in_layers(after_norms_swapped), LONE, 0, ONNX),
    "LayerNorm of weight without the 1": Mutant("nemotron", in_all_norms(offset=0.0), LONE, 0),
    "LayerNorm with another epsilon": Mutant("nemotron", in_all_norms(eps=1e-6), LONE, 0, ONNX),
    "relu without the square": Mutant("nemotron", in_mlp(activation=Activation.RELU), LONE, 0),
    "GELU as published, by the error function": Mutant("gemma", in_mlp(activation=Activation.GELU), LONE, 0, ONNX),
    "embedding not scaled": Mutant("gemma", in_spec(lambda spec: replace(spec, embed_scale=1.0)), LONE, 0),
}
"""Position None: in one pass, nothing is wrong with sequences that end before the length at which RoPE changes."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_of_a_family_is_red_at_its_place(
    name: str,
    judge: Callable[..., Evidence],
    checkpoint: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    mutant = MUTANTS[name]
    with monkeypatch.context() as patch:
        mutant.fault(patch)
        export(checkpoint(mutant.checkpoint), tmp_path / "package", TARGETS[mutant.target], Options(drop=mutant.drop))
    evidence = judge(mutant.checkpoint, tmp_path / "package", RAW)
    record_property("measured", in_words(evidence))
    assert evidence.verdict is Verdict.DIVERGES, evidence.worst_floors
    assert mutant.signature in evidence.signatures[RAW]
    assert first_bad(evidence) == mutant.first_bad
