"""HyperCLOVA X: Granite whose logits are multiplied, with norms of what each half of a layer adds.

Source: transformers models/hyperclovax/{configuration,modeling}_hyperclovax.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm, Norms

MODEL_TYPES = ("hyperclovax",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2}
RENAMES = ()
DROPPED = ()
_PERI_NORMS = Norms(
    before_attention="input_layernorm",
    after_attention="post_norm1",
    before_mlp="post_attention_layernorm",
    after_mlp="post_norm2",
)


def read(config: Config) -> Decoder:
    """The spec of a HyperCLOVA X checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    heads, kv_heads = config.heads(32)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 2048)
    bias = config.flag("attention_bias", False)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6))
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=config.number("attention_multiplier", head_dim**-0.5),
            rope=config.rope(head_dim, default_theta=10_000.0, context=context),
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 11_008),
            activation=config.activation("hidden_act", "silu"),
            bias=config.flag("mlp_bias", False),
        ),
        norm=norm,
        norms=_PERI_NORMS if config.flag("use_post_norm", True) else PRE_NORMS,
        residual_scale=config.number("residual_multiplier", 1.0),
    )
    return Decoder(
        vocab=config.integer("vocab_size", 32_000),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 32, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
        embed_scale=config.number("embedding_multiplier", 1.0),
        logits_scale=config.number("logits_scaling", 1.0),
    )
