"""StableLM: LayerNorms, a quarter of each head rotated; StableLM 2 12B: one norm for both halves, a norm for each head.

Source: transformers models/stablelm/{configuration,modeling}_stablelm.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, SHARED_NORM, Attention, Decoder, Extent, Layer, LayerNorm, Mlp, QkNorm

MODEL_TYPES = ("stablelm",)
TOKEN_IDS = {"bos_token_id": 0, "eos_token_id": 0}
RENAMES = (
    ("model.layers.*.self_attn.q_layernorm.", "model.layers.*.self_attn.q_norm."),
    ("model.layers.*.self_attn.k_layernorm.", "model.layers.*.self_attn.k_norm."),
)
DROPPED = (("*.self_attn.rotary_emb.inv_freq", "a buffer of old checkpoints; computed from the configuration"),)


def read(config: Config) -> Decoder:
    """The spec of a StableLM checkpoint."""
    hidden = config.integer("hidden_size", 2560)
    heads, kv_heads = config.heads(32, default_kv=32)
    head_dim = hidden // heads
    context = config.integer("max_position_embeddings", 4096)
    eps = config.number("layer_norm_eps", 1e-5)
    norm = LayerNorm(eps)
    config.ignore("hidden_dropout", "training only")
    config.ignore("rotary_scaling_factor", "transformers does not read it")
    qk_norm = QkNorm(LayerNorm(eps, bias=False), Extent.HEAD_BY_HEAD)
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context, default_partial=0.25),
            qk_norm=qk_norm if config.flag("qk_layernorm", False) else None,
            qkv_bias=config.flag("use_qkv_bias", False),
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 6912),
            activation=config.activation("hidden_act", "silu"),
        ),
        norm=norm,
        norms=SHARED_NORM if config.flag("use_parallel_residual", False) else PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 50_304),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 32, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )
