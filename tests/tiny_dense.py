"""Tiny checkpoints of the dense families, and of every kind of RoPE; the shapes and the weights follow tiny.py.

Where a class derives the width of a head from hidden / heads, hidden is 98 and heads 6: 16 with a remainder, so that
heads * head_dim is not hidden.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from transformers import (
    Gemma2Config,
    GemmaConfig,
    GraniteConfig,
    MistralConfig,
    NemotronConfig,
    Olmo2Config,
    Phi3Config,
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
    TOKEN_IDS,
    TURN_END,
    TURNS,
    VOCAB,
    WINDOW,
    save,
    tiny_llama,
)

THETA = 5_000.0
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 104,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 3e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
    **TOKEN_IDS,
}
UNTIED = {"tie_word_embeddings": False}
PHI3 = {key: value for key, value in COMMON.items() if key != "head_dim"} | {"hidden_size": 98, **UNTIED}
NEMOTRON = {key: value for key, value in COMMON.items() if key != "rms_norm_eps"} | {"norm_eps": 3e-5, **UNTIED}
BIASES = {"attention_bias": True, "mlp_bias": True}
SLIDES = {"use_sliding_window": True, "sliding_window": WINDOW}
ORIGINAL = 32
YARN = {"rope_type": "yarn", "rope_theta": THETA, "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
BETAS = {"beta_fast": 2.5, "beta_slow": 0.5, "mscale": 1.3, "mscale_all_dim": 0.6}
WHOLE = {"truncate": False, "attention_factor": 1.23, "beta_fast": 3.0, "beta_slow": 0.25}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": THETA, "factor": 2.0}
GRANITE = {
    "embedding_multiplier": 3.3,
    "residual_multiplier": 0.27,
    "attention_multiplier": 0.19,
    "logits_scaling": 1.7,
}


def longrope(pairs: int) -> dict[str, Any]:
    """Factors that differ from pair to pair; the attention factor comes from the two contexts."""
    return {
        "rope_type": "longrope",
        "rope_theta": THETA,
        "original_max_position_embeddings": ORIGINAL,
        "short_factor": [1.0 + 0.07 * pair for pair in range(pairs)],
        "long_factor": [1.5 + 0.9 * pair for pair in range(pairs)],
    }


def of(
    config: Callable[..., PreTrainedConfig], template: str = CHATML, end: int = IM_END, **values: Any
) -> Callable[[Path], None]:
    """A writer. transformers writes into the dictionaries that it is given: each checkpoint gets its own."""
    return lambda folder: save(folder, config(**deepcopy(values)), template, [EOS, end])


def llama(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: tiny_llama(folder, **deepcopy(changes))


def without_partial(folder: Path) -> None:
    """Nemotron as published files may be: the part of each head that is rotated is left to the class."""
    of(NemotronConfig, **NEMOTRON)(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]["partial_rotary_factor"]
    assert "partial_rotary_factor" not in config
    (folder / "config.json").write_text(json.dumps(config))


CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "llama-yarn": llama(rope_parameters=YARN | BETAS),
    "llama-dynamic": llama(rope_parameters=DYNAMIC, max_position_embeddings=CONTEXT // 2),
    "llama-longrope": llama(rope_parameters=longrope(HEAD_DIM // 2), tie_word_embeddings=False),
    "llama-heads-of-24": llama(head_dim=24, num_attention_heads=4, num_key_value_heads=1),
    "llama-heads-of-20": llama(head_dim=20, num_attention_heads=4, num_key_value_heads=2),
    "gemma": of(GemmaConfig, TURNS, TURN_END, **COMMON | {"hidden_act": "gelu", "attention_bias": True}),
    "gemma2": of(
        Gemma2Config,
        TURNS,
        TURN_END,
        **COMMON,
        query_pre_attn_scalar=24,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
    ),
    "granite": of(GraniteConfig, **COMMON, **UNTIED, **BIASES, **GRANITE),
    "mistral": of(MistralConfig, **COMMON, **UNTIED, sliding_window=None),
    "mistral-window": of(MistralConfig, **COMMON, sliding_window=WINDOW),
    "nemotron": of(NemotronConfig, **NEMOTRON, **BIASES),
    "nemotron-wide": of(NemotronConfig, **NEMOTRON | {"head_dim": 32, "partial_rotary_factor": 0.5}),
    "nemotron-unsaid": without_partial,
    "olmo2": of(Olmo2Config, **COMMON, **UNTIED, attention_bias=True),
    "phi3": of(Phi3Config, **PHI3, original_max_position_embeddings=CONTEXT),
    "phi3-window": of(Phi3Config, **PHI3 | {"tie_word_embeddings": True}, sliding_window=WINDOW),
    "phi3-longrope": of(
        Phi3Config,
        **PHI3 | {"rope_parameters": longrope(HEAD_DIM * 3 // 8)},
        partial_rotary_factor=0.75,
        original_max_position_embeddings=ORIGINAL,
    ),
    "qwen2": of(Qwen2Config, **COMMON, **UNTIED),
    "qwen2-window": of(Qwen2Config, **COMMON, **SLIDES, max_window_layers=1),
    "qwen3": of(Qwen3Config, **COMMON, **UNTIED, attention_bias=True),
    "qwen3-yarn": of(Qwen3Config, **COMMON | {"rope_parameters": YARN | WHOLE}, **SLIDES, max_window_layers=2),
    "smollm3": of(SmolLM3Config, **COMMON, **BIASES, no_rope_layers=[1, 0, 1]),
    "smollm3-window": of(SmolLM3Config, **COMMON, **UNTIED, **SLIDES, no_rope_layer_interval=2),
}
