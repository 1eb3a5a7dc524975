"""OLMo 2: norms after attention and MLP instead of before, and norms over all queries and all keys.

Source: transformers models/olmo2/{configuration,modeling}_olmo2.py.
"""

from paritas.config import Config
from paritas.spec import POST_NORMS, Attention, Decoder, Extent, Layer, Mlp, Norm, QkNorm

MODEL_TYPES = ("olmo2",)
TOKEN_IDS = {"eos_token_id": 50_279, "pad_token_id": 1}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of an OLMo 2 checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    heads, kv_heads = config.heads(32)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 2048)
    bias = config.flag("attention_bias", False)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-5))
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context),
            qk_norm=QkNorm(norm, Extent.PROJECTION),
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 11_008),
            activation=config.activation("hidden_act", "silu"),
        ),
        norm=norm,
        norms=POST_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 50_304),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 32, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )
