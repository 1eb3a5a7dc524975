"""Mistral: Llama whose layers all have the same window, if there is one.

Source: transformers models/mistral/{configuration,modeling}_mistral.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm

MODEL_TYPES = ("mistral",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2}
RENAMES = ()
DROPPED = (("*.self_attn.rotary_emb.inv_freq", "a buffer of old checkpoints; computed from the configuration"),)


def read(config: Config) -> Decoder:
    """The spec of a Mistral checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    heads, kv_heads = config.heads(32, default_kv=8)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 131_072)
    window = config.optional_integer("sliding_window", 4096)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6))
    layer = Layer(
        kind="full_attention" if window is None else "sliding_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context),
            window=window,
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 14_336),
            activation=config.activation("hidden_act", "silu"),
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
