"""Helium: Llama that rotates neighbours.

Source: transformers models/helium/{configuration,modeling}_helium.py.
"""

import math

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm, Pairing

MODEL_TYPES = ("helium",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of a Helium checkpoint."""
    hidden = config.integer("hidden_size", 2560)
    heads, kv_heads = config.heads(20, default_kv=20)
    head_dim = config.integer("head_dim", 128)
    context = config.integer("max_position_embeddings", 4096)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-8))
    config.ignore("pretraining_tp", "how an old trainer split its matrices; transformers does not read it")
    if heads * head_dim != hidden:  # its output projection is square
        raise config.wrong("head_dim", head_dim, f"hidden_size / num_attention_heads, {hidden} / {heads}")
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=1 / math.sqrt(head_dim),
            rope=config.rope(head_dim, default_theta=100_000.0, context=context, pairing=Pairing.NEIGHBOURS),
            qkv_bias=config.flag("attention_bias", False),
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 7040),
            activation=config.activation("hidden_act", "silu"),
            bias=config.flag("mlp_bias", False),
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 48_000),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 24, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )
