"""Nemotron and Minitron: LayerNorm of weight + 1, an MLP without a gate, half of each head rotated.

Source: transformers models/nemotron/{configuration,modeling}_nemotron.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, LayerNorm, PlainMlp

MODEL_TYPES = ("nemotron",)
TOKEN_IDS = {"bos_token_id": 2, "eos_token_id": 3}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of a Nemotron checkpoint."""
    hidden = config.integer("hidden_size", 6144)
    heads, kv_heads = config.heads(48)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 4096)
    bias = config.flag("attention_bias", False)
    norm = LayerNorm(eps=config.number("norm_eps", 1e-5), offset=1.0)  # the checkpoint stores weight - 1
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context, default_partial=0.5),
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=PlainMlp(
            width=config.integer("intermediate_size", 24_576),
            activation=config.activation("hidden_act", "relu2"),
            bias=config.flag("mlp_bias", False),
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 256_000),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 32, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )
