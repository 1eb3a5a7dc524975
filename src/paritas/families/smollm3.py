"""SmolLM3: Llama whose every fourth layer has no RoPE, and may slide.

Source: transformers models/smollm3/{configuration,modeling}_smollm3.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm

MODEL_TYPES = ("smollm3",)
TOKEN_IDS = {"bos_token_id": 128_000, "eos_token_id": 128_001, "pad_token_id": 128_004}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of a SmolLM3 checkpoint."""
    context = config.integer("max_position_embeddings", 32_768)
    depth = config.integer("num_hidden_layers", 36, most=10_000)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6))
    config.ignore("max_window_layers", "transformers does not read it")
    config.ignore("pretraining_tp", "how an old trainer split its matrices; transformers does not read it")
    interval = config.integer("no_rope_layer_interval", 4)
    rotated = config.marks("no_rope_layers", [(i + 1) % interval != 0 for i in range(depth)])  # 1 is with RoPE
    window = config.optional_integer("sliding_window", None)
    slides = config.flag("use_sliding_window", False) and window is not None
    default = ["sliding_attention" if slides and not each else "full_attention" for each in rotated]
    kinds = config.layer_kinds(depth, default)
    return Decoder(
        vocab=config.integer("vocab_size", 128_256),
        hidden=config.integer("hidden_size", 2048),
        context=context,
        layers=tuple(_layer(config, kind, each, norm, context) for kind, each in zip(kinds, rotated, strict=True)),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", True),
    )


def _layer(config: Config, kind: str, rotated: bool, norm: Norm, context: int) -> Layer:
    heads, kv_heads = config.heads(16, default_kv=4)
    head_dim = config.integer("head_dim", config.integer("hidden_size", 2048) // heads)
    bias = config.flag("attention_bias", False)
    rope = config.rope(head_dim, default_theta=2_000_000.0, context=context)
    return Layer(
        kind=kind,
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=rope if rotated else None,
            window=config.integer("sliding_window", None) if kind == "sliding_attention" else None,
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 11_008),
            activation=config.activation("hidden_act", "silu"),
            bias=config.flag("mlp_bias", False),
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
