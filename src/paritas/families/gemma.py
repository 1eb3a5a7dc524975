"""Gemma 1: Llama with offset norms, a scaled embedding and GELU's tanh approximation.

Source: transformers models/gemma/{configuration,modeling}_gemma.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Activation, Attention, Decoder, Layer, Mlp, Norm

MODEL_TYPES = ("gemma",)
TOKEN_IDS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
RENAMES = ()
DROPPED = (("*.self_attn.rotary_emb.inv_freq", "a buffer of old checkpoints; computed from the configuration"),)


def read(config: Config) -> Decoder:
    """The spec of a Gemma 1 checkpoint."""
    hidden = config.integer("hidden_size", 3072)
    heads, kv_heads = config.heads(16, default_kv=16)
    head_dim = config.integer("head_dim", 256)
    context = config.integer("max_position_embeddings", 8192)
    bias = config.flag("attention_bias", False)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6), offset=1.0)  # the checkpoint stores weight - 1
    config.must_be("use_bidirectional_attention", (None, False), "attention over later tokens is not a decoder's")
    config.ignore("hidden_activation", "transformers 5 reads hidden_act alone")
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
        mlp=Mlp(width=config.integer("intermediate_size", 24_576), activation=_activation(config)),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 256_000),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 28, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", True),
        embed_scale=hidden**0.5,
    )


def _activation(config: Config) -> Activation:
    """Published files say gelu and mean its tanh approximation; the class puts that right."""
    activation = config.activation("hidden_act", "gelu_pytorch_tanh")
    return Activation.GELU_TANH if activation is Activation.GELU else activation
