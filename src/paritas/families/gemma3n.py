"""Gemma 3n, text: AltUp, Laurel, per-layer inputs, sparse activations, and last layers that share keys and values.

Source: transformers models/gemma3n/{configuration,modeling}_gemma3n.py.
"""

from paritas.config import Config
from paritas.spec import AltUp, Attention, Decoder, Laurel, Layer, Mlp, Norm, PerLayerGate, PerLayerInputs, QkNorm

MODEL_TYPES = ("gemma3n_text",)
TOKEN_IDS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
RENAMES = (("model.language_model.", "model."),)
_IMAGE, _AUDIO = (f"the {half} half of the checkpoint (--text-only)" for half in ("image", "audio"))
DROPPED = (
    ("model.vision_tower.*", _IMAGE),
    ("model.embed_vision.*", _IMAGE),
    ("model.audio_tower.*", _AUDIO),
    ("model.embed_audio.*", _AUDIO),
    ("model.layers.*.altup.correct_output_scale", "altup_correct_scale is false"),
)
_THETAS = {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}


def read(config: Config) -> Decoder:
    """The spec of a Gemma 3n text checkpoint, or of the text part of a multimodal one."""
    hidden = config.integer("hidden_size", 2048)
    norm = Norm(config.number("rms_norm_eps", 1e-6))
    _without_effect(config)
    return Decoder(
        vocab=config.integer("vocab_size", 262_400),
        hidden=hidden,
        context=config.integer("max_position_embeddings", 32_768),
        layers=_layers(config, norm),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", True),
        embed_scale=hidden**0.5,
        softcap=config.optional_number("final_logit_softcapping", 30.0),
        per_layer=_per_layer(config, hidden, norm),
        altup=_altup(config),
    )


def _without_effect(config: Config) -> None:
    config.ignore("query_pre_attn_scalar", "scores are not scaled")
    config.ignore("altup_coef_clip", "training only")
    config.ignore("altup_lr_multiplier", "training only")


def _altup(config: Config) -> AltUp:
    streams, active = config.integer("altup_num_inputs", 4), config.count("altup_active_idx", 0)
    if active >= streams:
        raise config.wrong("altup_active_idx", active, f"below altup_num_inputs, which is {streams}")
    return AltUp(streams, active, config.flag("altup_correct_scale", True))


def _per_layer(config: Config, hidden: int, norm: Norm) -> PerLayerInputs:
    width = config.integer("hidden_size_per_layer_input", 256)
    return PerLayerInputs(
        width=width,
        vocab=config.integer("vocab_size_per_layer_input", 262_144),
        token_scale=width**0.5,
        projection_scale=hidden**-0.5,
        scale=2**-0.5,
        norm=norm,
        outside=0,
    )


def _layers(config: Config, norm: Norm) -> tuple[Layer, ...]:
    depth = config.integer("num_hidden_layers", 35, most=10_000)
    kinds = config.layer_kinds(depth, ["sliding_attention" if (i + 1) % 5 else "full_attention" for i in range(depth)])
    attentions, mlps = _attentions(config, norm, kinds), _mlps(config, depth)
    wiring = Laurel(config.integer("laurel_rank", 64))
    gate = PerLayerGate(config.integer("hidden_size_per_layer_input", 256), mlps[0].activation)
    return tuple(
        Layer(kind, attention, mlp, norm, wiring, per_layer=gate)
        for kind, attention, mlp in zip(kinds, attentions, mlps, strict=True)
    )


def _mlps(config: Config, depth: int) -> list[Mlp]:
    sparse = 10 if depth > 10 else 0
    widths = config.integers("intermediate_size", depth, 16_384)
    shares = config.shares("activation_sparsity_pattern", [0.95] * sparse + [0.0] * (depth - sparse))
    activation = config.activation("hidden_activation", "gelu_pytorch_tanh")
    return [Mlp(width, activation, sparsity=share or None) for width, share in zip(widths, shares, strict=True)]


def _attentions(config: Config, norm: Norm, kinds: tuple[str, ...]) -> list[Attention]:
    heads, kv_heads = config.heads(8, default_kv=2)
    head_dim = config.integer("head_dim", 256)
    bias = config.flag("attention_bias", False)
    windows = {"full_attention": None, "sliding_attention": config.integer("sliding_window", 512)}
    ropes = config.ropes_by_kind(head_dim, _THETAS, config.integer("max_position_embeddings", 32_768))
    return [
        Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=1.0,
            rope=ropes[kind],
            window=windows[kind],
            qk_norm=QkNorm(norm),
            qkv_bias=bias,
            output_bias=bias,
            v_norm=Norm(norm.eps, weight=False),
            keys_of=owner,
        )
        for kind, owner in zip(kinds, config.keys_of(kinds, 15), strict=True)
    ]
