"""The ``llama`` architecture of GGUF: Llama 2 and 3, SmolLM2 and what else is a Llama by another name."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.gguf_file import GgufFile
from paritas.checkpoint.gguf_layout import BLOCK, OUTER, Layout, linear_scaling, sizes, small_tensor
from paritas.checkpoint.gguf_metadata import Metadata
from paritas.errors import Unsupported

_FACTORS = "rope_freqs.weight"
_ATTENTION_BIASES = {
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_output.bias": "self_attn.o_proj.bias",
}
_MLP_BIASES = {
    "ffn_gate.bias": "mlp.gate_proj.bias",
    "ffn_up.bias": "mlp.up_proj.bias",
    "ffn_down.bias": "mlp.down_proj.bias",
}


def llama(file: GgufFile, meta: Metadata) -> Layout:
    """Read a file of the ``llama`` architecture."""
    config = sizes(file, meta, "llama")
    _no_experts(meta)
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_theta": meta.find("llama.rope.freq_base", float) or 10000.0,  # llama.cpp's default
        "attention_bias": _all_or_none(file, _ATTENTION_BIASES, config["num_hidden_layers"]),
        "mlp_bias": _all_or_none(file, _MLP_BIASES, config["num_hidden_layers"]),
    }
    config["rope_scaling"] = _rope_scaling(file, meta, config)
    q, k = config["num_attention_heads"], config["num_key_value_heads"]
    return Layout(
        config=config,
        outer=OUTER,
        block=BLOCK | {"ffn_norm.weight": "post_attention_layernorm.weight"} | _ATTENTION_BIASES | _MLP_BIASES,
        consumed=frozenset({_FACTORS}),
        heads_of={"attn_q.weight": q, "attn_q.bias": q, "attn_k.weight": k, "attn_k.bias": k},
    )


def llama3_factors(theta: float, head_dim: int, factor: float) -> NDArray[np.float64]:
    """By how much Llama 3's scaling lengthens the wave of each frequency.

    From the definition in the Llama 3.1 release (low 1, high 4, original context 8192): waves shorter than
    8192/4 positions are kept, waves longer than 8192 are stretched by ``factor``, and in between the frequency
    is a blend of both.
    """
    low, high, original = 1.0, 4.0, 8192.0
    wave = 2 * np.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    blend = np.clip((original / wave - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - blend) / factor + blend)


def _rope_scaling(file: GgufFile, meta: Metadata, config: dict[str, Any]) -> dict[str, Any] | None:
    """Llama 3's scaling is stored as a tensor of factors: its parameters are found again and checked."""
    linear = linear_scaling(meta, "llama")
    if _FACTORS not in file.entries:
        return linear
    stored = small_tensor(file, _FACTORS).astype(np.float64)
    factor = float(str(np.float32(stored.max())))
    if linear is None and np.array_equal(stored, np.ones(config["head_dim"] // 2)):
        return None
    if linear is None and factor > 0 and len(stored) == config["head_dim"] // 2:
        computed = llama3_factors(config["rope_theta"], config["head_dim"], factor)
        # Converters blend in fp32: the blend, linear in 1 / factor, is off by some 2**-24 times log(theta).
        if stored.min() > 0 and np.abs(1 / stored - 1 / computed).max() <= 4e-6:
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
    raise Unsupported(
        "gguf-rope-factors",
        f"the {len(stored)} RoPE factors (largest {factor:g}) are not those of Llama 3's scaling (low 1, "
        f"high 4, original context 8192) at theta {config['rope_theta']:g}, head size {config['head_dim']}",
        place=f"{meta.path}: {_FACTORS}",
        hint="Export from the original Hugging Face checkpoint.",
    )


def _no_experts(meta: Metadata) -> None:
    for key in ("llama.expert_count", "llama.expert_used_count"):
        if meta.find(key, int):
            raise Unsupported("gguf-experts", f"{key} is not 0: a mixture of experts", place=str(meta.path))


def _all_or_none(file: GgufFile, names: dict[str, str], layers: int) -> bool:
    """Whether the layers have these biases. transformers' Llama has all of them, or none."""
    present = sum(f"blk.{layer}.{name}" in file.entries for layer in range(layers) for name in names)
    if present not in (0, layers * len(names)):
        raise Unsupported(
            "gguf-partial-biases",
            f"{present} of {layers * len(names)} biases are present (of {', '.join(names)}); "
            "transformers' Llama has all of them or none",
            place=str(file.path),
        )
    return present > 0
