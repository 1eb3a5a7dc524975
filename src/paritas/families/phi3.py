"""Phi-3, Phi-3.5 and Phi-4-mini: packed projections, LongRoPE over a part of each head, in some a window.

Source: transformers models/phi3/{configuration,modeling}_phi3.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm, Packed

MODEL_TYPES = ("phi3",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 32_000, "pad_token_id": 32_000}
RENAMES = ()
DROPPED = (("*.self_attn.rotary_emb.inv_freq", "a buffer of old checkpoints; computed from the configuration"),)
_OLD_NAMES = {"su": "longrope", "yarn": "longrope"}  # the class takes both for LongRoPE


def read(config: Config) -> Decoder:
    """The spec of a Phi-3 or Phi-4-mini checkpoint."""
    context = config.integer("max_position_embeddings", 4096)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-5))
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        config.must_be(key, (None, False), "transformers' Phi-3 has no such bias")
    for key in ("full_attn_mod", "interpolate_factor", "resid_pdrop", "embd_pdrop"):
        config.ignore(key, "training, or another implementation; transformers computes nothing with it")
    attention = _attention(config, context)
    layer = Layer(
        kind="full_attention" if attention.window is None else "sliding_attention",
        mixer=attention,
        mlp=Mlp(
            width=config.integer("intermediate_size", 8192),
            activation=config.activation("hidden_act", "silu"),
            packed="gate_up_proj",
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 32_064),
        hidden=config.integer("hidden_size", 3072),
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 32, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _attention(config: Config, context: int) -> Attention:
    heads, kv_heads = config.heads(32)
    head_dim = config.integer("head_dim", config.integer("hidden_size", 3072) // heads)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=config.rope(
            head_dim,
            default_theta=10_000.0,
            context=context,
            default_partial=1.0,
            original=config.integer("original_max_position_embeddings", 4096),
            aliases=_OLD_NAMES,
        ),
        window=config.optional_integer("sliding_window", None),
        packed=Packed("qkv_proj"),
    )
