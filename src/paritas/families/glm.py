"""GLM-4 and GLM-4-0414: half of each head rotated, by neighbours; gate and up in one matrix; the latter sandwiched.

Source: transformers models/glm and models/glm4, {configuration,modeling}_*.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm, Norms, Pairing

MODEL_TYPES = ("glm", "glm4")
TOKEN_IDS = {"eos_token_id": [151_329, 151_336, 151_338], "pad_token_id": 151_329}
RENAMES = ()
DROPPED = ()
_GLM4_NORMS = Norms(
    before_attention="input_layernorm",
    after_attention="post_self_attn_layernorm",
    before_mlp="post_attention_layernorm",
    after_mlp="post_mlp_layernorm",
)


def read(config: Config) -> Decoder:
    """The spec of a GLM checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    heads, kv_heads = config.heads(32, default_kv=2)
    head_dim = config.integer("head_dim", 128)
    context = config.integer("max_position_embeddings", 131_072)
    norm = Norm(eps=config.number("rms_norm_eps", 1.5625e-7))
    rope = config.rope(
        head_dim, default_theta=10_000.0, context=context, default_partial=0.5, pairing=Pairing.NEIGHBOURS
    )
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=rope,
            qkv_bias=config.flag("attention_bias", True),
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 13_696),
            activation=config.activation("hidden_act", "silu"),
            packed="gate_up_proj",
        ),
        norm=norm,
        norms=_GLM4_NORMS if config.optional("model_type") == "glm4" else PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 151_552),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 40, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )
