"""Cohere's Command R: one LayerNorm without bias for attention and MLP side by side, neighbours rotated, scaled logits.

Source: transformers models/cohere/{configuration,modeling}_cohere.py.
"""

from paritas.config import Config
from paritas.spec import SHARED_NORM, Attention, Decoder, Extent, Layer, LayerNorm, Mlp, Pairing, QkNorm

MODEL_TYPES = ("cohere",)
TOKEN_IDS = {"bos_token_id": 5, "eos_token_id": 255_001, "pad_token_id": 0}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of a Cohere checkpoint."""
    hidden = config.integer("hidden_size", 8192)
    heads, kv_heads = config.heads(64)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 8192)
    bias = config.flag("attention_bias", False)
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-5), bias=False)
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=500_000.0, context=context, pairing=Pairing.NEIGHBOURS),
            qk_norm=QkNorm(norm, Extent.EACH_HEAD) if config.flag("use_qk_norm", False) else None,
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
    return Decoder(
        vocab=config.integer("vocab_size", 256_000),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 40, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", True),
        logits_scale=config.number("logit_scale", 0.0625),
    )
