"""Gemma 4 unified, text (12B): heads that differ between sliding and full layers, shared keys and values.

Source: transformers models/gemma4_unified/{configuration,modeling}_gemma4_unified.py.
"""

from collections.abc import Sequence
from dataclasses import replace

from paritas.config import Config
from paritas.spec import SANDWICH_NORMS, Attention, Decoder, Layer, Mlp, Norm, QkNorm

MODEL_TYPES = ("gemma4_unified_text",)
TOKEN_IDS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
RENAMES = (("model.language_model.", "model."),)
_OTHERS = "the image and sound halves of the checkpoint (--text-only)"
_PARTS = ("vision_tower", "audio_tower", "embed_vision", "embed_audio", "vision_embedder")
DROPPED = tuple((f"{where}{part}.*", _OTHERS) for part in _PARTS for where in ("model.", ""))
_FULL, _SLIDING = "full_attention", "sliding_attention"
_ROPES = {
    _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


def read(config: Config) -> Decoder:
    """The spec of the text half of a Gemma 4 unified checkpoint."""
    return decoder(config, context=262_144, window=1024)


def decoder(config: Config, context: int, window: int) -> Decoder:
    """What both have; ``context`` and ``window`` are the class's defaults."""
    hidden, context = config.integer("hidden_size", 2304), config.integer("max_position_embeddings", context)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6))
    kinds = _kinds(config)
    owners = config.keys_of(kinds, default=0)
    attentions = _attentions(config, kinds, norm, context, config.integer("sliding_window", window))
    mlp = Mlp(config.integer("intermediate_size", 9216), config.activation("hidden_activation", "gelu_pytorch_tanh"))
    wide = replace(mlp, width=2 * mlp.width) if config.flag("use_double_wide_mlp", False) else mlp

    def layer(kind: str, owner: int | None) -> Layer:
        if owner is None:
            return Layer(kind, attentions[kind], mlp, norm, SANDWICH_NORMS, scalar=True)
        shared = replace(attentions[kind], keys_of=owner, v_norm=None, values_are_keys=False)
        return Layer(kind, shared, wide, norm, SANDWICH_NORMS, scalar=True)

    config.must_be("use_bidirectional_attention", (None, "vision"), "attention over later tokens is not a decoder's")
    return Decoder(
        vocab=config.integer("vocab_size", 262_144),
        hidden=hidden,
        context=context,
        layers=tuple(layer(kind, owner) for kind, owner in zip(kinds, owners, strict=True)),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", True),
        embed_scale=hidden**0.5,
        softcap=config.optional_number("final_logit_softcapping", None),
    )


def _kinds(config: Config) -> tuple[str, ...]:
    """The last layer is full, whatever the configuration says of it."""
    depth = config.integer("num_hidden_layers", 30, most=10_000)
    kinds = config.layer_kinds(depth, [_SLIDING if (i + 1) % 6 else _FULL for i in range(depth)])
    return (*kinds[:-1], _FULL)


def _attentions(config: Config, kinds: Sequence[str], norm: Norm, context: int, window: int) -> dict[str, Attention]:
    """Of the layers that own their keys, by kind; transformers has one RoPE a kind, and so one head_dim."""
    heads, kv_heads = config.heads(8, default_kv=4)
    head_dim, bias = config.integer("head_dim", 256), config.flag("attention_bias", False)
    values_are_keys = config.flag("attention_k_eq_v", False)
    given = config.overrides("per_layer_config", len(kinds), ("head_dim", "num_key_value_heads"))
    if given is None:
        of_full = {"head_dim": config.integer("global_head_dim", 512)}
        wanted = config.optional_integer("num_global_key_value_heads", None)
        of_full |= {"num_key_value_heads": wanted} if values_are_keys and wanted is not None else {}
        given = {layer: of_full for layer, kind in enumerate(kinds) if kind == _FULL}
    shapes: dict[str, tuple[int, int]] = {}
    for layer, kind in enumerate(kinds):
        own = given.get(layer, {})
        shape = own.get("num_key_value_heads", kv_heads), own.get("head_dim", head_dim)
        if shapes.setdefault(kind, shape) != shape or heads % shape[0]:
            raise config.wrong("per_layer_config", own, f"the same in all layers of {kind}, with kv heads for {heads}")
    ropes = config.ropes_of_kinds({kind: dim for kind, (_, dim) in shapes.items()}, context, _ROPES)
    return {
        kind: Attention(
            heads=heads,
            kv_heads=kv,
            head_dim=dim,
            scale=1.0,
            rope=ropes[kind],
            window=window if kind == _SLIDING else None,
            qk_norm=QkNorm(norm),
            qkv_bias=bias,
            output_bias=bias,
            values_are_keys=values_are_keys and kind == _FULL,
            v_norm=replace(norm, weight=False),
        )
        for kind, (kv, dim) in shapes.items()
    }
