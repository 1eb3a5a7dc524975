"""Arcee's AFM: Llama with an MLP without a gate, of squared relu.

Source: transformers models/arcee/{configuration,modeling}_arcee.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Norm, PlainMlp

MODEL_TYPES = ("arcee",)
TOKEN_IDS = {"bos_token_id": 128_000, "eos_token_id": 128_001}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of an Arcee checkpoint."""
    hidden = config.integer("hidden_size", 2560)
    heads, kv_heads = config.heads(32)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 4096)
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
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=PlainMlp(
            width=config.integer("intermediate_size", 18_432),
            activation=config.activation("hidden_act", "relu2"),
            bias=config.flag("mlp_bias", False),
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 32_000),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 32, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )
