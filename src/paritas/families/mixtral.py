"""Mixtral: Mistral whose every layer has a mixture of experts, weighed by the softmax over the chosen ones.

Source: transformers models/mixtral/{configuration,modeling}_mixtral.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Experts, Layer, Norm

MODEL_TYPES = ("mixtral",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2}
_PUBLISHED, _HERE = "model.layers.*.block_sparse_moe.", "model.layers.*.mlp."
RENAMES = (
    (f"{_PUBLISHED}experts.*.w1.", f"{_HERE}experts.*.gate_proj."),
    (f"{_PUBLISHED}experts.*.w2.", f"{_HERE}experts.*.down_proj."),
    (f"{_PUBLISHED}experts.*.w3.", f"{_HERE}experts.*.up_proj."),
    (_PUBLISHED, _HERE),
)
DROPPED = (("*.self_attn.rotary_emb.inv_freq", "a buffer of old checkpoints; computed from the configuration"),)
_TRAINING = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")


def read(config: Config) -> Decoder:
    """The spec of a Mixtral checkpoint."""
    hidden = config.integer("hidden_size", 4096)
    heads, kv_heads = config.heads(32, default_kv=8)
    head_dim = config.integer("head_dim", hidden // heads)
    context = config.integer("max_position_embeddings", 131_072)
    window = config.optional_integer("sliding_window", None)
    count, chosen = config.experts(8, default_chosen=2)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-5))
    for key in _TRAINING:
        config.ignore(key, "training only")
    layer = Layer(
        kind="full_attention" if window is None else "sliding_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=config.rope(head_dim, default_theta=1_000_000.0, context=context),
            window=window,
        ),
        mlp=Experts(
            count=count,
            chosen=chosen,
            width=config.integer("intermediate_size", 14_336),
            activation=config.activation("hidden_act", "silu"),
            normalized=True,
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
