"""Apertus: Llama with an MLP without a gate, of xIELU, norms of queries and keys, and its own names of norms.

Source: transformers models/apertus/{configuration,modeling}_apertus.py, activations.py.
"""

from paritas.config import Config
from paritas.spec import Attention, Decoder, Layer, Llama3, Norm, Norms, PlainMlp, QkNorm, Rope

MODEL_TYPES = ("apertus",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
RENAMES = ()
DROPPED = ()
_NORMS = Norms(before_attention="attention_layernorm", before_mlp="feedforward_layernorm")
_THETA = 12_000_000.0


def read(config: Config) -> Decoder:
    """The spec of an Apertus checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    heads, kv_heads = config.heads(32)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 65_536)
    bias = config.flag("attention_bias", False)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-5))
    config.must_be("qk_norm", (None, True), "transformers' Apertus always has norms of queries and keys")
    for key in ("mlp_bias", "post_norm"):
        config.must_be(key, (None, False), "transformers' Apertus does not have it")
    config.ignore("hidden_dropout", "training only")
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=_rope(config, head_dim, context),
            qk_norm=QkNorm(norm),
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=PlainMlp(
            width=config.integer("intermediate_size", 14_336),
            activation=config.activation("hidden_act", "xielu"),
        ),
        norm=norm,
        norms=_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 131_072),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 32, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _rope(config: Config, head_dim: int, context: int) -> Rope:
    if config.optional("rope_scaling") or config.optional("rope_parameters") is not None:
        return config.rope(head_dim, default_theta=_THETA, context=context)
    config.ignore("rope_theta", "without rope_scaling the class takes its own RoPE whole")
    return Rope(_THETA, head_dim, Llama3(8.0, 1.0, 4.0, 8192))
