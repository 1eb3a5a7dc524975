"""StarCoder 2: LayerNorms, an MLP without a gate, one switch for every bias, and in most a window.

Source: transformers models/starcoder2/{configuration,modeling}_starcoder2.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, LayerNorm, PlainMlp

MODEL_TYPES = ("starcoder2",)
TOKEN_IDS = {"bos_token_id": 50_256, "eos_token_id": 50_256}
RENAMES = (
    ("model.layers.*.mlp.c_fc.", "model.layers.*.mlp.up_proj."),
    ("model.layers.*.mlp.c_proj.", "model.layers.*.mlp.down_proj."),
)
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of a StarCoder 2 checkpoint."""
    hidden = config.integer("hidden_size", 3072)
    heads, kv_heads = config.heads(24, default_kv=2)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 4096)
    window = config.optional_integer("sliding_window", None)
    bias = config.flag("use_bias", True)
    norm = LayerNorm(eps=config.number("norm_epsilon", 1e-5))
    config.must_be("mlp_type", (None, "default"), "only the MLP without a gate is implemented for StarCoder 2")
    config.must_be("norm_type", (None, "layer_norm"), "transformers' StarCoder 2 has LayerNorms alone")
    for key in ("residual_dropout", "embedding_dropout"):
        config.ignore(key, "training only")
    layer = Layer(
        kind="full_attention" if window is None else "sliding_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context),
            window=window,
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=PlainMlp(
            width=config.integer("intermediate_size", 12_288),
            activation=config.activation("hidden_act", "gelu_pytorch_tanh"),
            bias=bias,
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 49_152),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 30, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", True),
    )
