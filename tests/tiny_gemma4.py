"""Tiny Gemma 4 checkpoints: heads of two widths, layers that own no keys after layers of either kind that do.

After the first layer without keys of its own there is another one of each kind.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma4Config, Gemma4TextConfig, Gemma4UnifiedConfig

from tiny import (
    CONTEXT,
    EOS,
    GLOBAL_THETA,
    HEAD_DIM,
    HIDDEN,
    LOCAL_THETA,
    TOKEN_IDS,
    TURN_END,
    TURNS,
    VOCAB,
    WEIGHTS,
    WINDOW,
    save,
)

SLIDING, FULL = "sliding_attention", "full_attention"
OWNERS = {4: 2, 5: 2, 6: 3}
"""Layer -> the one whose keys and values it takes; the first ones of either kind are others."""
PLAIN = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 104,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "global_head_dim": 2 * HEAD_DIM,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 3e-5,
    "sliding_window": WINDOW,
    "layer_types": [SLIDING, FULL, SLIDING, FULL],
    "final_logit_softcapping": 5.0,
    **TOKEN_IDS,
}
PER_LAYER = {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 20}
NO_PER_LAYER = {"hidden_size_per_layer_input": 0}
SHARED = {
    "num_hidden_layers": 7,
    "num_kv_shared_layers": 3,
    "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, SLIDING, FULL],
    "use_double_wide_mlp": True,
}
KEYS_AS_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 3}
EXPERTS = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 3, "moe_intermediate_size": 40}
# As the Hub's E2B is; 26B; 31B; and everything at once.
E2B = PER_LAYER | SHARED
A4B = NO_PER_LAYER | KEYS_AS_VALUES | EXPERTS | {"use_bidirectional_attention": "vision"}
DENSE = NO_PER_LAYER | KEYS_AS_VALUES | {"attention_bias": True, "layer_types": [SLIDING, SLIDING, FULL, SLIDING]}
ALL = PER_LAYER | SHARED | KEYS_AS_VALUES | EXPERTS


def values(partial: float = 0.25, **changes: Any) -> dict[str, Any]:
    """Of a text configuration, as the Hub spells it."""
    ropes = {
        SLIDING: {"rope_type": "default", "rope_theta": LOCAL_THETA},
        FULL: {"rope_type": "proportional", "rope_theta": GLOBAL_THETA, "partial_rotary_factor": partial},
    }
    return PLAIN | {"rope_parameters": ropes} | changes


def tiny_gemma4(folder: Path, **changes: Any) -> None:
    save(folder, Gemma4TextConfig(**values(**changes)), TURNS, [EOS, TURN_END])


def tiny_gemma4_of_the_hub(folder: Path, **changes: Any) -> None:
    """The same with the Hub's spelling of what differs between layers, and its words of no effect."""
    tiny_gemma4(folder, **changes)
    config = json.loads((folder / "config.json").read_text())
    del config["per_layer_config"]
    kept = ("global_head_dim", "num_global_key_value_heads", "layer_types")
    config |= {key: value for key, value in values(**changes).items() if key in kept}
    config |= {"expert_intermediate_size": None, "num_global_key_value_heads": config.get("num_global_key_value_heads")}
    (folder / "config.json").write_text(json.dumps(config))


def tiny_gemma4_unified(folder: Path) -> None:
    """With what makes tokens of images and sound, as published; unlike there, layers share keys."""
    vision = {
        "patch_size": 4,
        "pooling_kernel_size": 2,
        "mm_embed_dim": 40,
        "mm_posemb_size": 16,
        "output_proj_dims": 40,
    }
    text, audio = values(**SHARED | KEYS_AS_VALUES), {"audio_embed_dim": 24}
    config = Gemma4UnifiedConfig(text_config=text, vision_config=vision, audio_config=audio)
    save(folder, config, TURNS, [EOS, TURN_END])


def tiny_gemma4_multimodal(folder: Path) -> None:
    """With its image and sound halves, and with keys and values of layers that have no use for them, as published."""
    vision = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "position_embedding_size": 16,
    }
    audio = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "output_proj_dims": 40}
    config = Gemma4Config(text_config=values(**E2B), vision_config=vision, audio_config=audio)
    save(folder, config, TURNS, [EOS, TURN_END])
    generator = torch.Generator().manual_seed(7)
    tensors = load_file(folder / WEIGHTS)
    for layer, owner in OWNERS.items():
        for name in ("k_proj", "v_proj", "k_norm"):
            like = tensors[f"model.language_model.layers.{owner}.self_attn.{name}.weight"]
            stale = torch.randn(like.shape, generator=generator).to(like.dtype)
            tensors[f"model.language_model.layers.{layer}.self_attn.{name}.weight"] = stale
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "gemma4": lambda folder: tiny_gemma4(folder, **E2B),
    "gemma4-hub": lambda folder: tiny_gemma4_of_the_hub(folder, **DENSE),
    "gemma4-experts": lambda folder: tiny_gemma4(folder, **A4B),
    "gemma4-all": lambda folder: tiny_gemma4(folder, partial=0.5, **ALL),
    "gemma4-multimodal": tiny_gemma4_multimodal,
    "gemma4_unified-multimodal": tiny_gemma4_unified,
}
