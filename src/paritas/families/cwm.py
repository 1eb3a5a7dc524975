"""CWM: Llama with llama3 RoPE on every layer, of which the first is full and the three after it slide, and so on.

Source: transformers models/cwm/{configuration,modeling}_cwm.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm

MODEL_TYPES = ("cwm",)
TOKEN_IDS = {"bos_token_id": 128_000, "eos_token_id": [128_001, 128_008, 128_009]}
RENAMES = ()
DROPPED = ()
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(config: Config) -> Decoder:
    """The spec of a CWM checkpoint."""
    depth = config.integer("num_hidden_layers", 64, most=10_000)
    kinds = config.layer_kinds(
        depth, ["full_attention" if index % 4 == 0 else "sliding_attention" for index in range(depth)]
    )
    context = config.integer("max_position_embeddings", 131_072)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-5))
    config.ignore("pretraining_tp", "transformers computes nothing with it")
    layers = {kind: _layer(config, kind, norm, context) for kind in dict.fromkeys(kinds)}
    return Decoder(
        vocab=config.integer("vocab_size", 128_256),
        hidden=config.integer("hidden_size", 6144),
        context=context,
        layers=tuple(layers[kind] for kind in kinds),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _layer(config: Config, kind: str, norm: Norm, context: int) -> Layer:
    heads, kv_heads = config.heads(48, default_kv=8)
    head_dim = config.integer("head_dim", 128)
    window = config.integer("sliding_window", 8192)
    return Layer(
        kind=kind,
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=1_000_000.0, context=context, default=_ROPE),
            window=window if kind == "sliding_attention" else None,
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 21_504),
            activation=config.activation("hidden_act", "silu"),
            bias=config.flag("mlp_bias", False),
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
