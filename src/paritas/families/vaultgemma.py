"""VaultGemma: Gemma 2 without the norms after attention and MLP.

Source: transformers models/vaultgemma/{configuration,modeling}_vaultgemma.py.
"""

from paritas.config import Config
from paritas.spec import Attention, Decoder, Layer, Mlp, Norm, Norms

MODEL_TYPES = ("vaultgemma",)
TOKEN_IDS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
RENAMES = ()
DROPPED = ()
_NORMS = Norms(before_attention="input_layernorm", before_mlp="pre_feedforward_layernorm")


def read(config: Config) -> Decoder:
    """The spec of a VaultGemma checkpoint."""
    hidden = config.integer("hidden_size", 2304)
    context = config.integer("max_position_embeddings", 8192)
    depth = config.integer("num_hidden_layers", 26, most=10_000)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6), offset=1.0)  # the checkpoint stores weight - 1
    config.ignore("hidden_act", "the class reads hidden_activation")
    kinds = config.layer_kinds(depth, [("sliding_attention", "full_attention")[i % 2] for i in range(depth)])
    layers = {kind: _layer(config, kind, norm, context) for kind in dict.fromkeys(kinds)}
    return Decoder(
        vocab=config.integer("vocab_size", 256_000),
        hidden=hidden,
        context=context,
        layers=tuple(layers[kind] for kind in kinds),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", True),
        embed_scale=hidden**0.5,
        softcap=config.optional_number("final_logit_softcapping", 30.0),
    )


def _layer(config: Config, kind: str, norm: Norm, context: int) -> Layer:
    heads, kv_heads = config.heads(8, default_kv=4)
    head_dim = config.integer("head_dim", 256)
    bias = config.flag("attention_bias", False)
    window = config.integer("sliding_window", 4096)
    return Layer(
        kind=kind,
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=config.number("query_pre_attn_scalar", 256) ** -0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context),
            window=window if kind == "sliding_attention" else None,
            qkv_bias=bias,
            output_bias=bias,
            softcap=config.optional_number("attn_logit_softcapping", 50.0),
        ),
        mlp=Mlp(
            width=config.integer("intermediate_size", 9216),
            activation=config.activation("hidden_activation", "gelu_pytorch_tanh"),
        ),
        norm=norm,
        norms=_NORMS,
    )
