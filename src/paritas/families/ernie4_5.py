"""ERNIE 4.5, dense: Llama that rotates neighbours, with one switch for every bias.

Source: transformers models/ernie4_5/{configuration,modeling}_ernie4_5.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm, Pairing

MODEL_TYPES = ("ernie4_5",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of an ERNIE 4.5 checkpoint."""
    hidden = config.integer("hidden_size", 1024)
    heads, kv_heads = config.heads(16, default_kv=2)
    head_dim = config.integer("head_dim", 128)
    context = config.integer("max_position_embeddings", 131_072)
    bias = config.flag("use_bias", False)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-5))
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=500_000.0, context=context, pairing=Pairing.NEIGHBOURS),
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 3072),
            activation=config.activation("hidden_act", "silu"),
            bias=bias,
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 103_424),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 18, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", True),
    )
