"""Persimmon: a LayerNorm with a bias on every query and key head, a plain MLP of relu2, biases everywhere.

Source: transformers models/persimmon/{configuration,modeling}_persimmon.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, LayerNorm, Packed, Packing, PlainMlp, QkNorm

MODEL_TYPES = ("persimmon",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2}
RENAMES = (
    ("model.layers.*.self_attn.dense.", "model.layers.*.self_attn.o_proj."),
    ("model.layers.*.self_attn.q_layernorm.", "model.layers.*.self_attn.q_norm."),
    ("model.layers.*.self_attn.k_layernorm.", "model.layers.*.self_attn.k_norm."),
    ("model.layers.*.mlp.dense_h_to_4h.", "model.layers.*.mlp.up_proj."),
    ("model.layers.*.mlp.dense_4h_to_h.", "model.layers.*.mlp.down_proj."),
    ("model.final_layernorm.", "model.norm."),
)
DROPPED = (("*.self_attn.rotary_emb.inv_freq", "a buffer of old checkpoints; computed from the configuration"),)


def read(config: Config) -> Decoder:
    """The spec of a Persimmon checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    heads = config.integer("num_attention_heads", 64)
    config.ignore("num_key_value_heads", "the class has as many as queries")
    config.ignore("hidden_dropout", "training only")
    head_dim = hidden // heads
    context = config.integer("max_position_embeddings", 16_384)
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-5))
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context, default_partial=0.5),
            qk_norm=QkNorm(norm) if config.flag("qk_layernorm", True) else None,
            qkv_bias=True,
            output_bias=True,
            packed=Packed("query_key_value", Packing.BY_HEAD),
        ),
        mlp=PlainMlp(
            width=config.integer("intermediate_size", 16_384),
            activation=config.activation("hidden_act", "relu2"),
            bias=True,
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 262_144),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 36, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )
