"""Cohere's Command R7B and Command A: Cohere with three sliding-window layers to each full one; those have no RoPE.

Source: transformers models/cohere2/{configuration,modeling}_cohere2.py.
"""

from paritas.config import Config
from paritas.spec import SHARED_NORM, Attention, Decoder, Layer, LayerNorm, Mlp, Pairing

MODEL_TYPES = ("cohere2",)
TOKEN_IDS = {"bos_token_id": 5, "eos_token_id": 255_001, "pad_token_id": 0}
RENAMES = ()
DROPPED = ()
_UNREAD = (
    "layer_switch",
    "order_of_interleaved_layers",
    "position_embedding_type",
    "rotary_pct",
    "use_embedding_sharing",
    "use_gated_activation",
    "use_parallel_block",
    "use_parallel_embedding",
    "use_qk_norm",
)


def read(config: Config) -> Decoder:
    """The spec of a Cohere 2 checkpoint."""
    context = config.integer("max_position_embeddings", 8192)
    depth = config.integer("num_hidden_layers", 40, most=10_000)
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-5), bias=False)
    pattern = config.integer("sliding_window_pattern", 4)
    default = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(depth)]
    for key in _UNREAD:
        config.ignore(key, "what the class does anyway; transformers does not read it")
    return Decoder(
        vocab=config.integer("vocab_size", 256_000),
        hidden=config.integer("hidden_size", 8192),
        context=context,
        layers=tuple(_layer(config, kind, norm, context) for kind in config.layer_kinds(depth, default)),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", True),
        logits_scale=config.number("logit_scale", 0.0625),
    )


def _layer(config: Config, kind: str, norm: LayerNorm, context: int) -> Layer:
    heads, kv_heads = config.heads(64)
    head_dim = config.integer("head_dim", config.integer("hidden_size", 8192) // heads)
    bias = config.flag("attention_bias", False)
    rope = config.rope(head_dim, default_theta=10_000.0, context=context, pairing=Pairing.NEIGHBOURS)
    window = config.integer("sliding_window", 4096)
    return Layer(
        kind=kind,
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=rope if kind == "sliding_attention" else None,
            window=window if kind == "sliding_attention" else None,
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 22_528),
            activation=config.activation("hidden_act", "silu"),
        ),
        norm=norm,
        norms=SHARED_NORM,
    )
