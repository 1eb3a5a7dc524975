"""OLMo 3: OLMo 2 with three sliding-window layers to each full one, and RoPE scaling on the full ones alone.

Source: transformers models/olmo3/{configuration,modeling}_olmo3.py.
"""

from paritas.config import Config
from paritas.spec import POST_NORMS, Attention, Decoder, Extent, Layer, Mlp, Norm, QkNorm, Rope

MODEL_TYPES = ("olmo3",)
TOKEN_IDS = {"eos_token_id": 50_279, "pad_token_id": 1}
RENAMES = ()
DROPPED = ()
_THETAS = {"full_attention": 500_000.0, "sliding_attention": 500_000.0}
_FLAT = {"full_attention": "rope_theta"}  # the class gives it to the full layers and keeps its default for the others


def read(config: Config) -> Decoder:
    """The spec of an OLMo 3 checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    context = config.integer("max_position_embeddings", 2048)
    depth = config.integer("num_hidden_layers", 32, most=10_000)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-5))
    kinds = config.layer_kinds(depth, ["sliding_attention" if (i + 1) % 4 else "full_attention" for i in range(depth)])
    head_dim = config.integer("head_dim", hidden // config.heads(32)[0])
    ropes = config.ropes_by_kind(head_dim, _THETAS, context, _FLAT)
    layers = {kind: _layer(config, kind, head_dim, rope, norm) for kind, rope in ropes.items()}
    return Decoder(
        vocab=config.integer("vocab_size", 50_304),
        hidden=hidden,
        context=context,
        layers=tuple(layers[kind] for kind in kinds),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _layer(config: Config, kind: str, head_dim: int, rope: Rope, norm: Norm) -> Layer:
    heads, kv_heads = config.heads(32)
    bias = config.flag("attention_bias", False)
    window = config.integer("sliding_window", 4096)
    return Layer(
        kind=kind,
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=rope,
            window=window if kind == "sliding_attention" else None,
            qk_norm=QkNorm(norm, Extent.PROJECTION),
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 11_008),
            activation=config.activation("hidden_act", "silu"),
        ),
        norm=norm,
        norms=POST_NORMS,
    )
