"""Phi-1, Phi-1.5 and Phi-2: one LayerNorm for attention and MLP side by side, biases everywhere, the head's too.

Source: transformers models/phi/{configuration,modeling}_phi.py.
"""

from paritas.config import Config
from paritas.spec import SHARED_NORM, Attention, Decoder, Layer, LayerNorm, PlainMlp, QkNorm

MODEL_TYPES = ("phi",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2}
RENAMES = (
    ("model.layers.*.self_attn.dense.", "model.layers.*.self_attn.o_proj."),
    ("model.layers.*.self_attn.q_layernorm.", "model.layers.*.self_attn.q_norm."),
    ("model.layers.*.self_attn.k_layernorm.", "model.layers.*.self_attn.k_norm."),
    ("model.layers.*.mlp.fc1.", "model.layers.*.mlp.up_proj."),
    ("model.layers.*.mlp.fc2.", "model.layers.*.mlp.down_proj."),
    ("model.final_layernorm.", "model.norm."),
)
DROPPED = (("*.self_attn.rotary_emb.inv_freq", "a buffer of old checkpoints; computed from the configuration"),)


def read(config: Config) -> Decoder:
    """The spec of a Phi checkpoint."""
    hidden = config.integer("hidden_size", 2048)
    heads, kv_heads = config.heads(32)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 2048)
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-5))
    for key in ("resid_pdrop", "embd_pdrop"):
        config.ignore(key, "training only")
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context, default_partial=0.5),
            qk_norm=QkNorm(norm) if config.flag("qk_layernorm", False) else None,
            qkv_bias=True,
            output_bias=True,
        ),
        mlp=PlainMlp(
            width=config.integer("intermediate_size", 8192),
            activation=config.activation("hidden_act", "gelu_new"),
            bias=True,
        ),
        norm=norm,
        norms=SHARED_NORM,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 51_200),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 24, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
        head_bias=True,
    )
