"""EXAONE 4: norms after attention and MLP, norms of queries and keys; where some layers slide, the full ones lack RoPE.

Source: transformers models/exaone4/{configuration,modeling}_exaone4.py.
"""

from paritas.config import Config
from paritas.spec import POST_NORMS, Attention, Decoder, Layer, Mlp, Norm, QkNorm

MODEL_TYPES = ("exaone4",)
TOKEN_IDS = {"bos_token_id": 0, "eos_token_id": 2}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of an EXAONE 4 checkpoint."""
    context = config.integer("max_position_embeddings", 2048)
    window = config.optional_integer("sliding_window", 4096)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-5))
    return Decoder(
        vocab=config.integer("vocab_size", 102_400),
        hidden=config.integer("hidden_size", 4096),
        context=context,
        layers=tuple(_layer(config, kind, window, norm, context) for kind in _kinds(config, window)),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _kinds(config: Config, window: int | None) -> tuple[str, ...]:
    """A pattern counts where there are no layer types. Of letters (LLLG), the class reads it with layer types alone."""
    depth = config.integer("num_hidden_layers", 32, most=10_000)
    if window is None or config.optional("layer_types") is not None:
        config.ignore("sliding_window_pattern", "layer_types says the same, or no layer slides")
        return config.layer_kinds(depth, ("full_attention",) * depth)
    pattern = config.integer("sliding_window_pattern", 4)
    return tuple("sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(depth))


def _layer(config: Config, kind: str, window: int | None, norm: Norm, context: int) -> Layer:
    heads, kv_heads = config.heads(32, default_kv=32)
    head_dim = config.integer("head_dim", config.integer("hidden_size", 4096) // heads)
    rope = config.rope(head_dim, default_theta=10_000.0, context=context)
    slides = kind == "sliding_attention"
    if slides and window is None:
        raise config.wrong("sliding_window", None, "a number of keys, for layers of sliding_attention")
    return Layer(
        kind=kind,
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=rope if slides or window is None else None,
            window=window if slides else None,
            qk_norm=QkNorm(norm),
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 16_384),
            activation=config.activation("hidden_act", "silu"),
        ),
        norm=norm,
        norms=POST_NORMS,
    )
