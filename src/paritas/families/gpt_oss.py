"""gpt-oss: every other layer slides, each head has a sink, experts have biases and a clamped SwiGLU; YaRN.

Source: transformers models/gpt_oss/{configuration,modeling}_gpt_oss.py. Checkpoints in MXFP4 are quantised, and refused
as such.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, ClampedSwiglu, Decoder, Experts, Layer, Norm, Stacking

MODEL_TYPES = ("gpt_oss",)
TOKEN_IDS: dict[str, int] = {}
RENAMES = (("model.layers.*.mlp.router.", "model.layers.*.mlp.gate."),)
DROPPED = ()
_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def read(config: Config) -> Decoder:
    """The spec of a gpt-oss checkpoint."""
    depth = config.integer("num_hidden_layers", 36, most=10_000)
    context = config.integer("max_position_embeddings", 131_072)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-5))
    config.ignore("hidden_act", "the experts' activation is gpt-oss's own")
    config.ignore("experts_per_token", "num_experts_per_tok; transformers does not read it")
    config.ignore("initial_context_length", "the RoPE has its own; transformers does not read it")
    config.ignore("output_router_logits", "what transformers returns")
    config.ignore("router_aux_loss_coef", "training only")
    default = ["full_attention" if index % 2 else "sliding_attention" for index in range(depth)]
    kinds = config.layer_kinds(depth, default)
    layers = {
        kind: Layer(kind, _attention(config, kind, context), _experts(config), norm, PRE_NORMS)
        for kind in dict.fromkeys(kinds)
    }
    return Decoder(
        vocab=config.integer("vocab_size", 201_088),
        hidden=config.integer("hidden_size", 2880),
        context=context,
        layers=tuple(layers[kind] for kind in kinds),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _attention(config: Config, kind: str, context: int) -> Attention:
    heads, kv_heads = config.heads(64, default_kv=8)
    head_dim = config.integer("head_dim", 64)
    bias = config.flag("attention_bias", True)
    window = config.integer("sliding_window", 128)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=config.rope(head_dim, default_theta=150_000.0, context=context, default=_ROPE),
        window=window if kind == "sliding_attention" else None,
        qkv_bias=bias,
        output_bias=bias,
        sinks=True,
    )


def _experts(config: Config) -> Experts:
    count, chosen = config.experts(128, default_chosen=4)
    return Experts(
        count=count,
        chosen=chosen,
        width=config.integer("intermediate_size", 2880),
        activation=ClampedSwiglu(config.number("swiglu_alpha", 1.702), config.number("swiglu_limit", 7.0)),
        normalized=True,
        bias=True,
        stacking=Stacking.COLUMNS,
    )
