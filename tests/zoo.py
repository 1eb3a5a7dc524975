"""Tiny checkpoints of the families that other exporters are asked for; the shapes and the weights follow tiny.py.

Where a family takes its head's width from hidden / heads, hidden is 96 and heads 6 (3 for Phi, whose operator wants
8 numbers or a multiple in half the rotated part), so that the vocabulary is still no projection's width.
"""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from transformers import (
    Gemma2Config,
    GemmaConfig,
    GraniteConfig,
    HeliumConfig,
    Lfm2Config,
    MistralConfig,
    NemotronConfig,
    Olmo2Config,
    OlmoConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from tiny import (
    CHATML,
    CONTEXT,
    EOS,
    HEAD_DIM,
    HIDDEN,
    IM_END,
    LINEAR,
    LLAMA3,
    TOKEN_IDS,
    TURN_END,
    TURNS,
    VOCAB,
    WINDOW,
    save,
    tiny_gemma3,
    tiny_llama,
)

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 104,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": CONTEXT,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5_000.0},
    **TOKEN_IDS,
}
SPLIT = {key: value for key, value in COMMON.items() if key != "head_dim"} | {"hidden_size": 96}
RMS = {"rms_norm_eps": 3e-5, "tie_word_embeddings": False}
PHI3 = {**SPLIT, **RMS, "original_max_position_embeddings": CONTEXT}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 5_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 2.5,
    "beta_slow": 0.5,
}
MIXED = ["sliding_attention", "full_attention"] * 2
GRANITE = {
    "embedding_multiplier": 3.3,
    "residual_multiplier": 0.27,
    "attention_multiplier": 0.19,
    "logits_scaling": 1.7,
}


def _of(
    config: Callable[..., PreTrainedConfig], template: str = CHATML, end: int = IM_END, **values: Any
) -> Callable[[Path], None]:
    # transformers writes into the dictionaries that it is given: each checkpoint gets its own
    return lambda folder: save(folder, config(**deepcopy(values)), template, [EOS, end])


def _gemma2(folder: Path, **changes: Any) -> None:
    """Local and global layers in turn, both softcaps, an attention scale that is not the head's."""
    values = COMMON | {
        "num_hidden_layers": 4,
        "query_pre_attn_scalar": 24,
        "rms_norm_eps": 3e-5,
        "sliding_window": WINDOW,
        "layer_types": MIXED,
        "attn_logit_softcapping": 9.0,
        "final_logit_softcapping": 5.0,
    }
    _of(Gemma2Config, TURNS, TURN_END, **values | changes)(folder)


def _smollm3(no_rope: list[int]) -> Callable[[Path], None]:
    return _of(
        SmolLM3Config, **SPLIT, **RMS, no_rope_layers=no_rope, no_rope_layer_interval=3, use_sliding_window=False
    )


# Small enough to be kept in the repository with what exporters made of them.
SMALL = {
    "hidden_size": 42,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
}
IN_TURN = {"layer_types": MIXED[:2]}
KEPT: dict[str, Callable[[Path], None]] = {
    "kept-llama": lambda folder: tiny_llama(folder, **SMALL),
    "kept-gemma2": lambda folder: _gemma2(folder, **SMALL, **IN_TURN),
    "kept-gemma3": lambda folder: tiny_gemma3(folder, **SMALL, **IN_TURN),
    "kept-yarn": lambda folder: tiny_llama(folder, **SMALL, rope_parameters=dict(YARN)),
    "kept-mistral": _of(MistralConfig, **COMMON | SMALL, **RMS, sliding_window=WINDOW),
    "kept-phi": _of(
        PhiConfig,
        **{key: value for key, value in (COMMON | SMALL).items() if key != "head_dim"}
        | {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "partial_rotary_factor": 1.0},
    ),
}

CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    **KEPT,
    "helium": _of(HeliumConfig, **SPLIT | {"head_dim": HEAD_DIM}, **RMS),
    "lfm2": _of(
        Lfm2Config,
        **SPLIT,
        norm_eps=3e-5,
        block_auto_adjust_ff_dim=False,
        conv_L_cache=3,
        layer_types=["conv", "full_attention", "conv"],
    ),
    "llama": tiny_llama,
    "llama-llama3": lambda folder: tiny_llama(folder, rope_parameters=dict(LLAMA3), tie_word_embeddings=False),
    "llama-biased": lambda folder: tiny_llama(folder, attention_bias=True, mlp_bias=True),
    "llama-attention-bias": lambda folder: tiny_llama(folder, attention_bias=True),
    "llama-linear": lambda folder: tiny_llama(folder, rope_parameters=dict(LINEAR)),
    "llama-yarn": lambda folder: tiny_llama(folder, rope_parameters=dict(YARN)),
    "gemma": _of(GemmaConfig, TURNS, TURN_END, **COMMON),
    "gemma-144": _of(GemmaConfig, TURNS, TURN_END, **COMMON | {"hidden_size": 144}),
    "gemma2": _gemma2,
    "gemma2-wide": lambda folder: _gemma2(folder, hidden_size=144, sliding_window=4096, query_pre_attn_scalar=HEAD_DIM),
    "gemma2-144": lambda folder: _gemma2(folder, hidden_size=144, query_pre_attn_scalar=HEAD_DIM),
    "gemma3": tiny_gemma3,
    "gemma3-144": lambda folder: tiny_gemma3(
        folder, hidden_size=144, query_pre_attn_scalar=HEAD_DIM, final_logit_softcapping=None
    ),
    "gemma3-144-scale": lambda folder: tiny_gemma3(folder, hidden_size=144, final_logit_softcapping=None),
    "mistral": _of(MistralConfig, **COMMON, **RMS, sliding_window=None),
    "mistral-window": _of(MistralConfig, **COMMON, **RMS, sliding_window=WINDOW),
    "phi": _of(
        PhiConfig,
        **SPLIT | {"num_attention_heads": 3, "num_key_value_heads": 3, "partial_rotary_factor": 0.5},
    ),
    "phi3": _of(Phi3Config, **PHI3, sliding_window=None),
    "phi3-window": _of(Phi3Config, **PHI3, sliding_window=WINDOW),
    "qwen2": _of(Qwen2Config, **SPLIT, **RMS),
    "qwen2-window": _of(
        Qwen2Config, **SPLIT, **RMS, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": _of(Qwen3Config, **COMMON, **RMS),
    "qwen3-yarn": _of(Qwen3Config, **COMMON | {"rope_parameters": YARN}, **RMS),
    "granite": _of(GraniteConfig, **SPLIT, **RMS, **GRANITE),
    "nemotron": _of(NemotronConfig, **COMMON | {"head_dim": 32, "partial_rotary_factor": 0.5}, norm_eps=3e-5),
    "olmo": _of(OlmoConfig, **SPLIT),
    "olmo2": _of(Olmo2Config, **SPLIT, **RMS),
    "smollm3": _smollm3([1, 1, 0]),
    "smollm3-rope": _smollm3([1, 1, 1]),
}
"""Case -> writes its checkpoint into a folder, in bf16."""
