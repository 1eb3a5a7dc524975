"""Qwen3-MoE: Qwen3 with a mixture of experts, in some layers a dense MLP instead.

Source: transformers models/qwen3_moe/{configuration,modeling}_qwen3_moe.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Experts, FeedForward, Layer, Mlp, Norm, QkNorm

MODEL_TYPES = ("qwen3_moe",)
TOKEN_IDS: dict[str, int] = {}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of a Qwen3-MoE checkpoint."""
    depth = config.integer("num_hidden_layers", 24, most=10_000)
    context = config.integer("max_position_embeddings", 32_768)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6))
    config.ignore("output_router_logits", "what transformers returns")
    config.ignore("router_aux_loss_coef", "training only")
    config.ignore("max_window_layers", "all layers slide, or none; transformers does not read it")
    mixer = _attention(config, norm, context)
    kind = "full_attention" if mixer.window is None else "sliding_attention"
    return Decoder(
        vocab=config.integer("vocab_size", 151_936),
        hidden=config.integer("hidden_size", 2048),
        context=context,
        layers=tuple(Layer(kind, mixer, _mlp(config, sparse), norm, PRE_NORMS) for sparse in _sparse(config, depth)),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _attention(config: Config, norm: Norm, context: int) -> Attention:
    heads, kv_heads = config.heads(32, default_kv=4)
    head_dim = config.integer("head_dim", config.integer("hidden_size", 2048) // heads)
    bias = config.flag("attention_bias", False)
    window = config.optional_integer("sliding_window", 4096) if config.flag("use_sliding_window", False) else None
    config.ignore("sliding_window", "without effect unless use_sliding_window is true")
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=config.rope(head_dim, default_theta=10_000.0, context=context),
        window=window,
        qk_norm=QkNorm(norm),
        qkv_bias=bias,
        output_bias=bias,
    )


def _mlp(config: Config, sparse: bool) -> FeedForward:
    activation = config.activation("hidden_act", "silu")
    count, chosen = config.experts(128, default_chosen=8)
    width = config.integer("moe_intermediate_size", 768)
    normalized = config.flag("norm_topk_prob", False)
    dense = Mlp(config.integer("intermediate_size", 6144), activation)
    return Experts(count, chosen, width, activation, normalized) if sparse else dense


def _sparse(config: Config, depth: int) -> list[bool]:
    """Which layers have experts: the last of each ``decoder_sparse_step``, but for ``mlp_only_layers``."""
    step = config.integer("decoder_sparse_step", 1)
    dense = config.layer_numbers("mlp_only_layers") or frozenset()
    count, _ = config.experts(128, default_chosen=8)
    return [count > 0 and index not in dense and (index + 1) % step == 0 for index in range(depth)]
