"""The ``gemma3`` architecture of GGUF: the text model of Gemma 3, all sizes."""

from typing import Any

from paritas.checkpoint.gguf_file import GgufFile
from paritas.checkpoint.gguf_layout import BLOCK, OUTER, Layout, linear_scaling, sizes
from paritas.checkpoint.gguf_metadata import Metadata

_NORMS = {
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
}


def gemma3(file: GgufFile, meta: Metadata) -> Layout:
    """Read a file of the ``gemma3`` architecture. Its norms are stored as 1 + weight."""
    config = sizes(file, meta, "gemma3")
    window = meta.find("gemma3.attention.sliding_window", int) or None  # 0 is none for llama.cpp
    config |= {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": meta.find("gemma3.final_logit_softcapping", float),
        "query_pre_attn_scalar": _query_scalar(config),
        "sliding_window": window or 4096,  # transformers wants a number, even of no layer
        "layer_types": _layer_types(meta, config["num_hidden_layers"], window),
        "rope_theta": meta.need("gemma3.rope.freq_base", float),
        "rope_local_base_freq": _local_base(meta),
        "rope_scaling": linear_scaling(meta, "gemma3"),  # of the global layers; local layers are never scaled
        "use_bidirectional_attention": False,
    }
    return Layout(
        config=config,
        outer=OUTER,
        block=BLOCK | _NORMS,
        shifted=lambda name: name.endswith("norm.weight"),
    )


def _query_scalar(config: dict[str, Any]) -> int:
    """``query_pre_attn_scalar``, which GGUF does not store.

    It is the head size in every published Gemma 3 but the 27B, where it is hidden size / heads. llama.cpp does
    the same: it recognises the 27B by its 62 layers.
    """
    if (config["hidden_size"], config["num_hidden_layers"]) == (5376, 62):
        return config["hidden_size"] // config["num_attention_heads"]
    return config["head_dim"]


def _layer_types(meta: Metadata, layers: int, window: int | None) -> list[str]:
    """Five local layers, then a global one, unless the file says otherwise; all global without a window."""
    key = "gemma3.attention.sliding_window_pattern"
    local: list[bool] | None = None
    if meta.is_list(key):
        local = meta.list_of(key, bool)
    else:
        period = meta.find(key, int) or 6
        local = [(layer + 1) % period != 0 for layer in range(layers)]
    if local is None or len(local) != layers:
        raise meta.wrong_value(key, f"one value for each of the {layers} layers")
    return ["sliding_attention" if window and one else "full_attention" for one in local]


def _local_base(meta: Metadata) -> float:
    """Theta of the local layers: 10,000 in every Gemma 3, and what llama.cpp takes if the file is silent."""
    for key in ("gemma3.rope.freq_base_swa", "gemma3.rope.local.freq_base"):
        if (value := meta.find(key, float)) is not None:
            return value
    return 10000.0
