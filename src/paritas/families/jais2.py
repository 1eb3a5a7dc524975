"""Jais 2: Llama with LayerNorms, biases, and an MLP without a gate, of squared relu.

Source: transformers models/jais2/{configuration,modeling}_jais2.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, LayerNorm, PlainMlp

MODEL_TYPES = ("jais2",)
TOKEN_IDS = {"bos_token_id": 0, "eos_token_id": 150_024}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of a Jais 2 checkpoint."""
    hidden = config.integer("hidden_size", 3328)
    heads, kv_heads = config.heads(26)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 8192)
    bias = config.flag("attention_bias", True)
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-5))
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
            width=config.integer("intermediate_size", 26_624),
            activation=config.activation("hidden_act", "relu2"),
            bias=config.flag("mlp_bias", True),
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 150_272),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 32, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )
