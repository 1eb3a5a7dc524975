"""OLMo: Llama with LayerNorms that have no parameters; some clip queries, keys and values.

Source: transformers models/olmo/{configuration,modeling}_olmo.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, LayerNorm, Mlp

MODEL_TYPES = ("olmo",)
TOKEN_IDS = {"eos_token_id": 50_279, "pad_token_id": 1}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of an OLMo checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    heads, kv_heads = config.heads(32)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 2048)
    bias = config.flag("attention_bias", False)
    norm = LayerNorm(eps=1e-5, weight=False, bias=False)  # a number of the modeling code
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context),
            qkv_bias=bias,
            output_bias=bias,
            clip=config.optional_number("clip_qkv", None),
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 11_008),
            activation=config.activation("hidden_act", "silu"),
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 50_304),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 32, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )
