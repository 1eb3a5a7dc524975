"""Ministral 8B: Mistral that says for each layer whether it slides.

Source: transformers models/ministral/{configuration,modeling}_ministral.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm

MODEL_TYPES = ("ministral",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of a Ministral checkpoint."""
    context = config.integer("max_position_embeddings", 131_072)
    depth = config.integer("num_hidden_layers", 32, most=10_000)
    window = config.optional_integer("sliding_window", 4096)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6))
    kinds = config.layer_kinds(depth, ["full_attention" if window is None else "sliding_attention"] * depth)
    if window is None and "sliding_attention" in kinds:
        raise config.wrong("sliding_window", None, "a number of keys, for layers of sliding_attention")
    return Decoder(
        vocab=config.integer("vocab_size", 32_000),
        hidden=config.integer("hidden_size", 4096),
        context=context,
        layers=tuple(_layer(config, kind, window, norm, context) for kind in kinds),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _layer(config: Config, kind: str, window: int | None, norm: Norm, context: int) -> Layer:
    heads, kv_heads = config.heads(32, default_kv=8)
    head_dim = config.integer("head_dim", config.integer("hidden_size", 4096) // heads)
    return Layer(
        kind=kind,
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context),
            window=window if kind == "sliding_attention" else None,
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 14_336),
            activation=config.activation("hidden_act", "silu"),
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
