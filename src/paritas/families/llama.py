"""Llama: pre-norm decoder, one RoPE for all layers. Llama 2 and 3.x, SmolLM2, TinyLlama and their like.

Source: transformers models/llama/{configuration,modeling}_llama.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, Mlp, Norm

MODEL_TYPES = ("llama",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2}
RENAMES = ()
DROPPED = (("*.self_attn.rotary_emb.inv_freq", "a buffer of old checkpoints; computed from the configuration"),)


def read(config: Config) -> Decoder:
    """The spec of a Llama checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    heads, kv_heads = config.heads(32)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 2048)
    bias = config.flag("attention_bias", False)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6))
    config.must_be("rope_interleaved", (None, False), "only half-split rotary pairs are implemented for Llama")
    config.ignore("pretraining_tp", "how an old trainer split its matrices; transformers does not read it")
    config.ignore("is_llama_config", "who wrote the file")
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
            width=config.integer("intermediate_size", 11_008),
            activation=config.activation("hidden_act", "silu"),
            bias=config.flag("mlp_bias", False),
        ),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 32_000),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 32, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )
