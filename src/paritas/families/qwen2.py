"""Qwen2 and Qwen2.5: Llama with biases of q, k and v; some let their later layers slide.

Source: transformers models/qwen2/{configuration,modeling}_qwen2.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm

MODEL_TYPES = ("qwen2",)
TOKEN_IDS: dict[str, int] = {}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of a Qwen2 checkpoint."""
    context = config.integer("max_position_embeddings", 32_768)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6))
    kinds = _kinds(config)
    layers = {kind: _layer(config, kind, norm, context) for kind in dict.fromkeys(kinds)}
    return Decoder(
        vocab=config.integer("vocab_size", 151_936),
        hidden=config.integer("hidden_size", 4096),
        context=context,
        layers=tuple(layers[kind] for kind in kinds),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _layer(config: Config, kind: str, norm: Norm, context: int) -> Layer:
    heads, kv_heads = config.heads(32, default_kv=32)
    head_dim = config.integer("head_dim", config.integer("hidden_size", 4096) // heads)
    return Layer(
        kind=kind,
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context),
            window=config.integer("sliding_window", 4096) if kind == "sliding_attention" else None,
            qkv_bias=True,
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 22_016),
            activation=config.activation("hidden_act", "silu"),
        ),
        norm=norm,
        norms=PRE_NORMS,
    )


def _kinds(config: Config) -> tuple[str, ...]:
    """Layers from max_window_layers on slide, if use_sliding_window says so; sliding_window means nothing otherwise."""
    depth = config.integer("num_hidden_layers", 32, most=10_000)
    first = config.count("max_window_layers", 28)
    window = config.optional_integer("sliding_window", 4096) if config.flag("use_sliding_window", False) else None
    config.ignore("sliding_window", "without effect unless use_sliding_window is true")
    default = ["full_attention" if window is None or i < first else "sliding_attention" for i in range(depth)]
    kinds = config.layer_kinds(depth, default)
    if window is None and "sliding_attention" in kinds:
        raise config.wrong("layer_types", kinds, "without sliding_attention: use_sliding_window gives no window")
    return kinds
