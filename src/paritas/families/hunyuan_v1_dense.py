"""Hunyuan, dense: norms of queries and keys after RoPE, whose theta is stretched once and for all by ``alpha``.

Source: transformers models/hunyuan_v1_dense/{configuration,modeling}_hunyuan_v1_dense.py.
"""

from typing import Any, cast

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm, Place, QkNorm, Rope

MODEL_TYPES = ("hunyuan_v1_dense",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
RENAMES = (
    ("model.layers.*.self_attn.query_layernorm.", "model.layers.*.self_attn.q_norm."),
    ("model.layers.*.self_attn.key_layernorm.", "model.layers.*.self_attn.k_norm."),
)
DROPPED = ()
_UNREAD = (
    "add_classification_head",
    "attention_head_dim",
    "cla_share_factor",
    "class_num",
    "dense_list",
    "eod_token_id",
    "im_end_id",
    "im_newline_id",
    "im_start_id",
    "mask_init_id",
    "norm_type",
    "org_vocab_size",
    "pad_id",
    "pool_type",
    "pretraining_tp",
    "sep_token_id",
    "text_end_id",
    "text_start_id",
)
_OF_DYNAMIC = ("type", "rope_type", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


def read(config: Config) -> Decoder:
    """The spec of a Hunyuan checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    heads, kv_heads = config.heads(32)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 2048)
    bias = config.flag("attention_bias", False)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-5))
    config.must_be("use_qk_norm", (None, True), "transformers' Hunyuan always has norms of queries and keys")
    for key in ("use_cla", "mlp_bias"):
        config.must_be(key, (None, False), "transformers' Hunyuan does not have it")
    for key in _UNREAD:
        config.ignore(key, "training, or another implementation; transformers computes nothing with it")
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=_rope(config, head_dim, context),
            qk_norm=QkNorm(norm, place=Place.AFTER_ROPE),
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 11_008),
            activation=config.activation("hidden_act", "silu"),
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 290_943),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 32, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _rope(config: Config, head_dim: int, context: int) -> Rope:
    """``dynamic`` with an ``alpha`` is not dynamic: the class takes theta * alpha ** (d / (d - 2)) at every length."""
    given = config.optional("rope_scaling") or config.optional("rope_parameters")
    values = cast(dict[str, Any], given) if isinstance(given, dict) else dict[str, Any]()
    if (values.get("rope_type") or values.get("type")) != "dynamic" or not values.get("alpha"):
        return config.rope(head_dim, default_theta=10_000.0, context=context)
    inner = Config(values, f"{config.place}, RoPE")
    for key in _OF_DYNAMIC:
        inner.ignore(key, "alpha alone counts")
    alpha = inner.number("alpha", None)
    theta = inner.number("rope_theta", config.number("rope_theta", 10_000.0))
    inner.finish()
    if head_dim == 2:
        raise config.wrong("head_dim", head_dim, "more than 2, for RoPE with an alpha")
    return Rope(theta=theta * alpha ** (head_dim / (head_dim - 2)), dim=head_dim)
