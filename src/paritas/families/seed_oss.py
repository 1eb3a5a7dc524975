"""Seed-OSS: Llama with biases of q, k and v, and a switch of its own for the output's.

Source: transformers models/seed_oss/{configuration,modeling}_seed_oss.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm

MODEL_TYPES = ("seed_oss",)
TOKEN_IDS = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of a Seed-OSS checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    heads, kv_heads = config.heads(80, default_kv=8)
    head_dim = config.integer("head_dim", 128)
    context = config.integer("max_position_embeddings", 524_288)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6))
    config.ignore("residual_dropout", "training only")
    config.ignore("pretraining_tp", "how an old trainer split its matrices; transformers does not read it")
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context),
            qkv_bias=config.flag("attention_bias", True),
            output_bias=config.flag("attention_out_bias", False),
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 27_648),
            activation=config.activation("hidden_act", "silu"),
            bias=config.flag("mlp_bias", False),
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 155_136),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 64, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )
