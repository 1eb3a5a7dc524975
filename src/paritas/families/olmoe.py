"""OLMoE: Llama with norms of whole queries and keys, all three clipped in some checkpoints, and a mixture of experts.

Source: transformers models/olmoe/{configuration,modeling}_olmoe.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Experts, Extent, Layer, Norm, QkNorm

MODEL_TYPES = ("olmoe",)
TOKEN_IDS = {"eos_token_id": 50_279, "pad_token_id": 1}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of an OLMoE checkpoint."""
    hidden = config.integer("hidden_size", 2048)
    heads, kv_heads = config.heads(16)
    head_dim = hidden // heads
    config.must_be("head_dim", (None, head_dim), "OLMoE's norms are made for hidden_size // num_attention_heads")
    context = config.integer("max_position_embeddings", 4096)
    bias = config.flag("attention_bias", False)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-5))
    for key in ("output_router_logits", "router_aux_loss_coef"):
        config.ignore(key, "training only")
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=10_000.0, context=context),
            qk_norm=QkNorm(norm, Extent.PROJECTION),
            qkv_bias=bias,
            output_bias=bias,
            clip=config.optional_number("clip_qkv", None),
        ),
        mlp=_experts(config),
        norm=norm,
        norms=PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 50_304),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 16, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _experts(config: Config) -> Experts:
    count, chosen = config.experts(64, default_chosen=8)
    return Experts(
        count=count,
        chosen=chosen,
        width=config.integer("intermediate_size", 2048),
        activation=config.activation("hidden_act", "silu"),
        normalized=config.flag("norm_topk_prob", False),
    )
