"""EXAONE 3 and 3.5: Llama by other names.

Source: transformers models/exaone/configuration_exaone.py, and models/llama/modeling_llama.py, which runs it.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm

MODEL_TYPES = ("exaone",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 361, "pad_token_id": 0}
RENAMES = (
    ("transformer.h.*.attn.attention.out_proj.", "model.layers.*.self_attn.o_proj."),
    ("transformer.h.*.attn.attention.", "model.layers.*.self_attn."),
    ("transformer.h.*.ln_1.", "model.layers.*.input_layernorm."),
    ("transformer.h.*.ln_2.", "model.layers.*.post_attention_layernorm."),
    ("transformer.h.*.mlp.c_fc_0.", "model.layers.*.mlp.gate_proj."),
    ("transformer.h.*.mlp.c_fc_1.", "model.layers.*.mlp.up_proj."),
    ("transformer.h.*.mlp.c_proj.", "model.layers.*.mlp.down_proj."),
    ("transformer.wte.", "model.embed_tokens."),
    ("transformer.ln_f.", "model.norm."),
)
DROPPED = (("*.rotary.inv_freq", "a buffer of old checkpoints; computed from the configuration"),)


def read(config: Config) -> Decoder:
    """The spec of an EXAONE 3 checkpoint; the first spelling of a key is the original code's."""
    hidden = config.integer("hidden_size", 4096)
    heads, kv_heads = config.heads(32, default_kv=8)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 4096)
    bias = config.flag("attention_bias", False)
    norm = Norm(eps=config.number("layer_norm_epsilon", config.number("rms_norm_eps", 1e-5)))
    config.ignore("embed_dropout", "training only")
    old, new = config.activation("activation_function", "silu"), config.activation("hidden_act", "silu")
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=500_000.0, context=context),
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 14_336),
            activation=new if config.optional("activation_function") is None else old,
            bias=config.flag("mlp_bias", False),
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    depth = config.integer("num_layers", config.integer("num_hidden_layers", 32, most=10_000), most=10_000)
    return Decoder(
        vocab=config.integer("vocab_size", 102_400),
        hidden=hidden,
        context=context,
        layers=(layer,) * depth,
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )
