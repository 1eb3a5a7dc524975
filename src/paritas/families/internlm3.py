"""InternLM 3: Llama with one switch for every bias, which older files call by two other names.

Source: transformers models/internlm3/configuration_internlm3.py, and models/llama/modeling_llama.py, which runs it.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm

MODEL_TYPES = ("internlm3",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of an InternLM 3 checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    heads, kv_heads = config.heads(32, default_kv=2)
    head_dim = config.integer("head_dim", 128)
    context = config.integer("max_position_embeddings", 32_768)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-5))
    bias = config.flag("qkv_bias", config.flag("attention_bias", False))
    mlp_bias = config.flag("bias", config.flag("mlp_bias", False))
    if bias != mlp_bias:
        raise config.wrong("bias", mlp_bias, f"what qkv_bias is, {bias}; transformers refuses it otherwise")
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context),
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 10_240),
            activation=config.activation("hidden_act", "silu"),
            bias=bias,
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 128_512),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 48, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )
