"""Tiny checkpoints of the near relatives of the dense families; shapes and weights follow tiny.py and tiny_dense.py.

Where a class makes hidden of heads * head_dim, hidden is 72 of three heads of 24, or 96 of six heads of 16.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    ApertusConfig,
    ArceeConfig,
    Cohere2Config,
    CohereConfig,
    CwmConfig,
    Ernie4_5Config,
    Exaone4Config,
    ExaoneConfig,
    FalconConfig,
    Glm4Config,
    GlmConfig,
    GPTJConfig,
    GPTNeoXConfig,
    HeliumConfig,
    HunYuanDenseV1Config,
    HyperCLOVAXConfig,
    InternLM3Config,
    Jais2Config,
    MinistralConfig,
    Olmo3Config,
    OlmoConfig,
    PersimmonConfig,
    PhiConfig,
    SeedOssConfig,
    StableLmConfig,
    Starcoder2Config,
    VaultGemmaConfig,
)

from tiny import CONTEXT, HIDDEN, LINEAR, LLAMA3, TOKEN_IDS, TURN_END, TURNS, VOCAB, WEIGHTS, WINDOW
from tiny_dense import BIASES, COMMON, DYNAMIC, GRANITE, THETA, UNTIED, YARN, of


def changed(values: Mapping[str, Any], *without: str, **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in without} | changes


def partial(factor: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": factor}


LAYER_NORM = changed(COMMON, "rms_norm_eps", layer_norm_eps=3e-5)
BARE = changed(COMMON, "rms_norm_eps")
WINDOWS = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
COHERE = changed(LAYER_NORM, logit_scale=0.37)
OLMO3_ROPES = {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}}
NEOX = changed(LAYER_NORM, "head_dim", "num_key_value_heads", num_attention_heads=3, **UNTIED)
PERSIMMON = changed(NEOX, "tie_word_embeddings")
STABLE = changed(LAYER_NORM, "head_dim", hidden_size=96, use_qkv_bias=True)
STARCODER = changed(COMMON, "rms_norm_eps", norm_epsilon=3e-5)
FALCON = changed(
    BARE, "head_dim", "num_key_value_heads", "intermediate_size", layer_norm_epsilon=3e-5, ffn_hidden_size=104
)
NEW_FALCON = {"new_decoder_architecture": True, "bias": True}
ALPHA = {"rope_type": "dynamic", "rope_theta": THETA, "alpha": 3.7, "factor": 1.0, "mscale": 1.0}
GPTJ = {
    "vocab_size": VOCAB,
    "n_embd": HIDDEN,
    "n_head": 3,
    "n_layer": 3,
    "n_inner": 104,
    "n_positions": CONTEXT,
    "layer_norm_epsilon": 3e-5,
    **TOKEN_IDS,
}


def rewritten(
    write: Callable[[Path], None],
    names: Callable[[str], str] = lambda name: name,
    buffers: Mapping[str, torch.Tensor] | None = None,
    config: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: values,
) -> Callable[[Path], None]:
    """The same checkpoint as another version of transformers wrote it."""

    def again(folder: Path) -> None:
        write(folder)
        tensors = {names(name): value for name, value in load_file(folder / WEIGHTS).items()}
        save_file(tensors | dict(buffers or {}), folder / WEIGHTS, {"format": "pt"})
        path = folder / "config.json"
        path.write_text(json.dumps(config(json.loads(path.read_text()))))

    return again


def flat_rope(theta: str, partial: str | None = None) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """transformers 4's spelling; without a key for the rotated part it is left to the class (as published GLMs do)."""

    def spell(values: dict[str, Any]) -> dict[str, Any]:
        rope = values.pop("rope_parameters")
        return values | {theta: rope["rope_theta"]} | ({partial: rope["partial_rotary_factor"]} if partial else {})

    return spell


def pythia(name: str) -> str:
    return name.replace("lm_head.", "embed_out.")


EXAONE_NAMES = {
    "model.layers.": "transformer.h.",
    "model.embed_tokens.": "transformer.wte.",
    "model.norm.": "transformer.ln_f.",
    ".self_attn.": ".attn.attention.",
    ".o_proj.": ".out_proj.",
    ".input_layernorm.": ".ln_1.",
    ".post_attention_layernorm.": ".ln_2.",
    ".gate_proj.": ".c_fc_0.",
    ".up_proj.": ".c_fc_1.",
    ".down_proj.": ".c_proj.",
}


def old_exaone(name: str) -> str:
    for new, old in EXAONE_NAMES.items():
        name = name.replace(new, old)
    return name


def renamed_keys(values: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in values.items()}


PYTHIA_BUFFERS = {
    f"gpt_neox.layers.{layer}.attention.{name}": value
    for layer in range(3)
    for name, value in {
        "bias": torch.ones(1, 1, 8, 8, dtype=torch.bool),
        "masked_bias": torch.tensor(-1e9),
        "rotary_emb.inv_freq": torch.ones(3),
    }.items()
}

CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "phi": of(PhiConfig, **changed(LAYER_NORM, "head_dim", hidden_size=98, **UNTIED)),
    "phi-qk": of(
        PhiConfig,
        **changed(LAYER_NORM, "head_dim", hidden_size=194, qk_layernorm=True, rope_parameters=partial(0.5)),
    ),
    "olmo": of(OlmoConfig, **BARE, **UNTIED, attention_bias=True),
    "olmo-clip": of(OlmoConfig, **changed(BARE, rope_parameters=LINEAR), clip_qkv=0.4),
    "olmo3": of(Olmo3Config, **changed(COMMON, rope_parameters=OLMO3_ROPES), **UNTIED, **WINDOWS, attention_bias=True),
    "helium": of(HeliumConfig, **changed(COMMON, hidden_size=96), **UNTIED, attention_bias=True, mlp_bias=True),
    "helium-dynamic": of(
        HeliumConfig,
        **changed(COMMON, num_attention_heads=3, num_key_value_heads=1, head_dim=24, rope_parameters=DYNAMIC),
    ),
    "cohere": of(CohereConfig, **COHERE, attention_bias=True, use_qk_norm=True),
    "cohere-plain": of(CohereConfig, **changed(COHERE, rope_parameters=LLAMA3), **UNTIED),
    "cohere2": of(Cohere2Config, **COHERE, **WINDOWS, attention_bias=True),
    "cwm": of(
        CwmConfig, **changed(COMMON, hidden_size=102, rope_parameters=LLAMA3), **UNTIED, **WINDOWS, mlp_bias=True
    ),
    "cwm-pattern": of(
        CwmConfig, **changed(COMMON, hidden_size=96, num_hidden_layers=5), **UNTIED, sliding_window=WINDOW
    ),
    "glm": of(GlmConfig, **changed(COMMON, head_dim=32, rope_parameters=partial(0.5)), **UNTIED),
    "glm-transformers-4": rewritten(
        of(GlmConfig, **changed(COMMON, rope_parameters=partial(0.5)), **UNTIED), config=flat_rope("rope_theta")
    ),
    "glm4": of(Glm4Config, **changed(COMMON, rope_parameters=partial(0.75)), attention_bias=False),
    "gpt_neox": of(GPTNeoXConfig, **changed(NEOX, rope_parameters=partial(0.25))),
    "gpt_neox-sequential": of(
        GPTNeoXConfig,
        **changed(NEOX, hidden_size=96, rope_parameters=partial(0.5)),
        use_parallel_residual=False,
        attention_bias=False,
    ),
    "gpt_neox-pythia": rewritten(
        of(GPTNeoXConfig, **changed(NEOX, rope_parameters=partial(0.5))),
        pythia,
        PYTHIA_BUFFERS,
        flat_rope("rotary_emb_base", "rotary_pct"),
    ),
    "persimmon": of(PersimmonConfig, **changed(PERSIMMON, rope_parameters=partial(0.5))),
    "persimmon-plain": of(
        PersimmonConfig,
        **changed(PERSIMMON, hidden_size=96, rope_parameters=LLAMA3 | {"partial_rotary_factor": 0.25}),
        tie_word_embeddings=True,
        qk_layernorm=False,
        hidden_act="gelu",
    ),
    "stablelm": of(StableLmConfig, **changed(STABLE, rope_parameters=partial(0.25)), **UNTIED),
    "stablelm-12b": of(
        StableLmConfig,
        **changed(STABLE, hidden_size=72, num_attention_heads=3, num_key_value_heads=1, rope_parameters=partial(0.5)),
        use_parallel_residual=True,
        qk_layernorm=True,
    ),
    "starcoder2": of(Starcoder2Config, **STARCODER, sliding_window=WINDOW),
    "starcoder2-unbiased": of(Starcoder2Config, **STARCODER, **UNTIED, use_bias=False),
    "ernie4_5": of(Ernie4_5Config, **COMMON, **UNTIED, use_bias=True),
    "exaone4": of(Exaone4Config, **COMMON, **UNTIED, **WINDOWS),
    "exaone4-full": of(
        Exaone4Config,
        **changed(COMMON, rope_parameters=LLAMA3),
        sliding_window=None,
        layer_types=["full_attention"] * 3,
    ),
    "hunyuan_v1_dense": of(
        HunYuanDenseV1Config, **changed(COMMON, rope_parameters=ALPHA), **UNTIED, attention_bias=True
    ),
    "hunyuan_v1_dense-plain": of(HunYuanDenseV1Config, **COMMON),
    "gptj": of(GPTJConfig, **GPTJ, **UNTIED, rotary_dim=8),
    "gptj-96": of(GPTJConfig, **changed(GPTJ, n_embd=96), rotary_dim=16, activation_function="gelu"),
    "seed_oss": of(SeedOssConfig, **COMMON, **UNTIED, attention_out_bias=True, mlp_bias=True),
    "seed_oss-default-biases": of(SeedOssConfig, **COMMON),
    "arcee": of(ArceeConfig, **changed(COMMON, hidden_size=102, rope_parameters=YARN), **UNTIED, mlp_bias=True),
    "ministral": of(MinistralConfig, **COMMON, **UNTIED, **WINDOWS),
    "falcon": of(FalconConfig, **changed(FALCON, num_attention_heads=3)),
    "falcon-new": of(FalconConfig, **changed(FALCON, hidden_size=96), **UNTIED, **NEW_FALCON, num_kv_heads=2),
    "falcon-new-one-norm": of(
        FalconConfig,
        **changed(FALCON, hidden_size=96),
        **NEW_FALCON,
        num_kv_heads=6,
        num_ln_in_parallel_attn=1,
    ),
    "falcon-sequential": of(
        FalconConfig, **changed(FALCON, hidden_size=96), multi_query=False, parallel_attn=False, bias=True
    ),
    "exaone": of(ExaoneConfig, **changed(COMMON, hidden_size=102), **UNTIED, attention_bias=True, mlp_bias=True),
    "exaone-original": rewritten(
        of(ExaoneConfig, **changed(COMMON, hidden_size=102, rope_parameters=LLAMA3, hidden_act="gelu")),
        old_exaone,
        config=lambda values: renamed_keys(
            values, rms_norm_eps="layer_norm_epsilon", hidden_act="activation_function", num_hidden_layers="num_layers"
        ),
    ),
    "internlm3": of(InternLM3Config, **changed(COMMON, hidden_size=102), **UNTIED, qkv_bias=True, bias=True),
    "jais2": of(Jais2Config, **changed(LAYER_NORM, hidden_size=102), **UNTIED),
    "vaultgemma": of(
        VaultGemmaConfig,
        TURNS,
        TURN_END,
        **changed(COMMON, hidden_size=102),
        **WINDOWS,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
    ),
    "hyperclovax": of(HyperCLOVAXConfig, **changed(COMMON, hidden_size=102), **UNTIED, **BIASES, **GRANITE),
    "hyperclovax-no-post-norm": of(HyperCLOVAXConfig, **changed(COMMON, hidden_size=102), use_post_norm=False),
    "apertus": of(ApertusConfig, **changed(COMMON, rope_parameters=LLAMA3), **UNTIED, attention_bias=True),
    "apertus-silu": of(ApertusConfig, **COMMON, hidden_act="silu"),
}
