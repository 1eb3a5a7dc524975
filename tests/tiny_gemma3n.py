"""Tiny Gemma 3n checkpoints: three layers that own no keys, sparse MLPs of several widths, ids beyond a table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3nTextConfig

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
    rope_by_kind,
    save,
)

SLIDING, FULL = "sliding_attention", "full_attention"
OWNERS = {5: 3, 6: 4, 7: 3}
"""Layer -> the one whose keys and values it takes."""
TEXT = "model.language_model."


def tiny_gemma3n(folder: Path, **changes: Any) -> None:
    """Eight layers, the last three of them after the last that has keys; three streams; a table of fewer tokens."""
    values = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": [104, 88, 104, 120, 88, 104, 136, 88],
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 3e-5,
        "sliding_window": WINDOW,
        "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL, SLIDING, FULL, SLIDING],
        "final_logit_softcapping": 5.0,
        "rope_parameters": rope_by_kind(full=GLOBAL_THETA),
        "vocab_size_per_layer_input": VOCAB - 24,
        "hidden_size_per_layer_input": 20,
        "altup_num_inputs": 3,
        "num_kv_shared_layers": len(OWNERS),
        "laurel_rank": 12,
        "activation_sparsity_pattern": [0.95, 0.6, 0.95, 0.0, 0.0, 0.0, 0.6, 0.0],
        **TOKEN_IDS,
    }
    save(folder, Gemma3nTextConfig(**values | changes), TURNS, [EOS, TURN_END])


def tiny_gemma3n_of_the_hub(folder: Path) -> None:
    """The text half of a multimodal checkpoint as its publisher wrote it: flat keys, every layer's keys and values.

    The other halves are a tensor for each of their modules; transformers needs a library of image models to make them.
    """
    tiny_gemma3n(folder, altup_num_inputs=4, rope_parameters={FULL: _rope(GLOBAL_THETA), SLIDING: _rope(LOCAL_THETA)})
    text = json.loads((folder / "config.json").read_text())
    del text["architectures"], text["tie_word_embeddings"], text["rope_parameters"]
    text |= {"rope_theta": GLOBAL_THETA, "rope_local_base_freq": LOCAL_THETA, "rope_scaling": None}
    text |= {"query_pre_attn_scalar": 24, "altup_lr_multiplier": 1.0, "torch_dtype": text.pop("dtype")}
    config = {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "audio_config": {"model_type": "gemma3n_audio", "hidden_size": 24},
        "eos_token_id": [EOS, TURN_END],
        "model_type": "gemma3n",
        "text_config": text,
        "vision_config": {"model_type": "gemma3n_vision", "hidden_size": 40, "architecture": "mobilenetv5_300m_enc"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(7)
    tensors = {f"{TEXT}{name.removeprefix('model.')}": value for name, value in load_file(folder / WEIGHTS).items()}
    for layer, owner in OWNERS.items():
        for name in ("k_proj", "v_proj", "k_norm"):
            like = tensors[f"{TEXT}layers.{owner}.self_attn.{name}.weight"]
            tensors[f"{TEXT}layers.{layer}.self_attn.{name}.weight"] = _random(like.shape, generator)
    for name in (
        "vision_tower.timm_model.conv_stem.conv",
        "audio_tower.subsample_conv_projection.input_proj_linear",
        "embed_vision.embedding",
        "embed_audio.embedding_projection",
    ):
        tensors[f"model.{name}.weight"] = _random((24, 40), generator)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def _rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


def _random(shape: tuple[int, ...] | torch.Size, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator).to(torch.bfloat16)


CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "gemma3n": tiny_gemma3n,
    "gemma3n-active": lambda folder: tiny_gemma3n(
        folder, altup_active_idx=1, altup_correct_scale=False, attention_bias=True, num_kv_shared_layers=0
    ),
    "gemma3n-multimodal": tiny_gemma3n_of_the_hub,
}
