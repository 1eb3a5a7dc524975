"""Tiny LFM2 checkpoints: convolutions and attention in turn, and the Hub's words for the configuration."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import Lfm2Config

from tiny import CHATML, CONTEXT, EOS, HEAD_DIM, IM_END, TOKEN_IDS, VOCAB, save

HIDDEN = 96  # heads times head_dim: LFM2 has no head_dim of its own


def tiny_lfm2(folder: Path, **changes: Any) -> None:
    """Four layers, the second of them attention, kernels of four positions."""
    values = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 160,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "norm_eps": 3e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5_000.0},
        "conv_L_cache": 4,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.1,
        "layer_types": ["conv", "full_attention", "conv", "conv"],
        **TOKEN_IDS,
    }
    save(folder, Lfm2Config(**values | changes), CHATML, [EOS, IM_END])


def tiny_lfm2_of_the_hub(folder: Path) -> None:
    """The same with config.json as LFM2's publisher writes it."""
    tiny_lfm2(folder, conv_bias=False, tie_word_embeddings=False)
    config = json.loads((folder / "config.json").read_text())
    config["full_attn_idxs"] = [i for i, kind in enumerate(config.pop("layer_types")) if kind == "full_attention"]
    config["tie_embedding"] = config.pop("tie_word_embeddings")
    config["block_ff_dim"] = config.pop("intermediate_size")
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config |= {"num_heads": 6, "conv_dim": HIDDEN, "use_pos_enc": True, "torch_dtype": config.pop("dtype")}
    (folder / "config.json").write_text(json.dumps(config))


CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "lfm2": lambda folder: tiny_lfm2(folder, conv_bias=True),
    "lfm2-hub": tiny_lfm2_of_the_hub,
}
assert HIDDEN == 6 * HEAD_DIM
