"""GraniteMoE: Granite with a mixture of experts whose weights lie in one tensor for all of them.

Source: transformers models/granitemoe/{configuration,modeling}_granitemoe.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Experts, Layer, Norm

MODEL_TYPES = ("granitemoe",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2}
_PUBLISHED, _HERE = "model.layers.*.block_sparse_moe.", "model.layers.*.mlp."
RENAMES = (
    (f"{_PUBLISHED}input_linear.weight", f"{_HERE}experts.gate_up_proj"),
    (f"{_PUBLISHED}output_linear.weight", f"{_HERE}experts.down_proj"),
    (f"{_PUBLISHED}router.layer.", f"{_HERE}gate."),
    (f"{_PUBLISHED}router.", f"{_HERE}gate."),
    (_PUBLISHED, _HERE),
)
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of a GraniteMoE checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    heads, kv_heads = config.heads(32)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 2048)
    bias = config.flag("attention_bias", False)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6))
    for key in ("output_router_logits", "router_aux_loss_coef"):
        config.ignore(key, "training only")
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=config.number("attention_multiplier", 1.0),
            rope=config.rope(head_dim, default_theta=10_000.0, context=context),
            qkv_bias=bias,
            output_bias=bias,
        ),
        mlp=_experts(config),
        norm=norm,
        norms=PRE_NORMS,
        residual_scale=config.number("residual_multiplier", 1.0),
    )
    return Decoder(
        vocab=config.integer("vocab_size", 32_000),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 32, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
        embed_scale=config.number("embedding_multiplier", 1.0),
        logits_scale=1 / config.number("logits_scaling", 1.0),
    )


def _experts(config: Config) -> Experts:
    count, chosen = config.experts(8, default_chosen=2)
    return Experts(
        count=count,
        chosen=chosen,
        width=config.integer("intermediate_size", 11_008),
        activation=config.activation("hidden_act", "silu"),
        normalized=True,
    )
