"""Tiny mixtures of experts: as many experts as are all chosen by some token, each of its own random weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import (
    GptOssConfig,
    GraniteMoeConfig,
    MixtralConfig,
    OlmoeConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from tiny import CHATML, CONTEXT, EOS, HEAD_DIM, HIDDEN, IM_END, TOKEN_IDS, VOCAB, WINDOW, save

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 3e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5_000.0},
    "num_experts_per_tok": 3,
    "intermediate_size": 56,
    **TOKEN_IDS,
}
WIDE_HEADS = {"head_dim": HEAD_DIM}
SPARSE = {"moe_intermediate_size": 40, "num_experts": 5}
SLIDING = {"use_sliding_window": True, "sliding_window": WINDOW}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 5_000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": CONTEXT // 4,
}


def written(config: type[PreTrainedConfig], values: dict[str, Any]) -> Callable[[Path], None]:
    return lambda folder: save(folder, config(**COMMON | values), CHATML, [EOS, IM_END])


MIXTRAL = WIDE_HEADS | {"num_local_experts": 5, "sliding_window": WINDOW}
# A window in one layer of the two, and in a third a dense MLP.
QWEN2_MOE = SPARSE | SLIDING | {"num_hidden_layers": 3, "shared_expert_intermediate_size": 24, "max_window_layers": 1}
QWEN2_MOE |= {"mlp_only_layers": [1], "decoder_sparse_step": 1, "head_dim": HEAD_DIM}
QWEN3_MOE = WIDE_HEADS | SPARSE | {"num_hidden_layers": 4, "decoder_sparse_step": 2, "tie_word_embeddings": True}
OLMOE = {"num_experts": 5, "hidden_size": 6 * HEAD_DIM}  # it has no head_dim of its own
GRANITE_MOE = WIDE_HEADS | {
    "num_local_experts": 5,
    "embedding_multiplier": 7.0,
    "attention_multiplier": 0.19,
    "residual_multiplier": 0.27,
    "logits_scaling": 3.0,
    "attention_bias": True,
}
GPT_OSS = {"num_local_experts": 5, "head_dim": HEAD_DIM, "sliding_window": WINDOW, "rope_parameters": YARN}

CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "mixtral": written(MixtralConfig, MIXTRAL),
    "mixtral-gelu": written(MixtralConfig, MIXTRAL | {"hidden_act": "gelu", "sliding_window": None}),
    "qwen2_moe": written(Qwen2MoeConfig, QWEN2_MOE),
    "qwen2_moe-normalized": written(Qwen2MoeConfig, QWEN2_MOE | {"norm_topk_prob": True, "qkv_bias": False}),
    "qwen3_moe": written(Qwen3MoeConfig, QWEN3_MOE | {"norm_topk_prob": True}),
    "qwen3_moe-sliding": written(Qwen3MoeConfig, QWEN3_MOE | SLIDING | {"attention_bias": True}),
    "olmoe": written(OlmoeConfig, OLMOE | {"clip_qkv": 1.1}),
    "olmoe-normalized": written(OlmoeConfig, OLMOE | {"norm_topk_prob": True, "attention_bias": True}),
    "granitemoe": written(GraniteMoeConfig, GRANITE_MOE),
    "gpt_oss": written(GptOssConfig, GPT_OSS | {"swiglu_alpha": 1.3, "swiglu_limit": 0.9}),
}
