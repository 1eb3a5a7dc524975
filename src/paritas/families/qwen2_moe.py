"""Qwen2-MoE and Qwen1.5-MoE: Qwen2 with a mixture of experts, and one expert more for every token, behind a gate.

Some layers may have a dense MLP instead. Source: transformers models/qwen2_moe/{configuration,modeling}_qwen2_moe.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Experts, FeedForward, Layer, Mlp, Norm

MODEL_TYPES = ("qwen2_moe",)
TOKEN_IDS: dict[str, int] = {}
RENAMES = ()
DROPPED = ()


def read(config: Config) -> Decoder:
    """The spec of a Qwen2-MoE checkpoint."""
    context = config.integer("max_position_embeddings", 32_768)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6))
    config.ignore("output_router_logits", "what transformers returns")
    config.ignore("router_aux_loss_coef", "training only")
    kinds = _kinds(config)
    sparse = _sparse(config, len(kinds))
    mixers = {kind: _attention(config, kind, context) for kind in dict.fromkeys(kinds)}
    layers = zip(kinds, sparse, strict=True)
    return Decoder(
        vocab=config.integer("vocab_size", 151_936),
        hidden=config.integer("hidden_size", 2048),
        context=context,
        layers=tuple(Layer(kind, mixers[kind], _mlp(config, experts), norm, PRE_NORMS) for kind, experts in layers),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _attention(config: Config, kind: str, context: int) -> Attention:
    heads, kv_heads = config.heads(16, default_kv=16)
    head_dim = config.integer("head_dim", config.integer("hidden_size", 2048) // heads)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=config.rope(head_dim, default_theta=10_000.0, context=context),
        window=config.integer("sliding_window", 4096) if kind == "sliding_attention" else None,
        qkv_bias=config.flag("qkv_bias", True),
    )


def _mlp(config: Config, sparse: bool) -> FeedForward:
    activation = config.activation("hidden_act", "silu")
    count, chosen = config.experts(60, default_chosen=4)
    width = config.integer("moe_intermediate_size", 1408)
    normalized = config.flag("norm_topk_prob", False)
    shared = Mlp(config.integer("shared_expert_intermediate_size", 5632), activation)
    dense = Mlp(config.integer("intermediate_size", 5632), activation)
    return Experts(count, chosen, width, activation, normalized, shared=shared) if sparse else dense


def _sparse(config: Config, depth: int) -> list[bool]:
    """Which layers have experts: the last of each ``decoder_sparse_step``, but for ``mlp_only_layers``."""
    step = config.integer("decoder_sparse_step", 1)
    dense = config.layer_numbers("mlp_only_layers") or frozenset()
    count, _ = config.experts(60, default_chosen=4)
    return [count > 0 and index not in dense and (index + 1) % step == 0 for index in range(depth)]


def _kinds(config: Config) -> tuple[str, ...]:
    """Of the first ``max_window_layers``, every other one slides, if ``use_sliding_window`` says so."""
    depth = config.integer("num_hidden_layers", 24, most=10_000)
    last = config.count("max_window_layers", 28)
    sliding = config.flag("use_sliding_window", False)
    config.ignore("sliding_window", "without effect unless use_sliding_window is true")
    default = ["sliding_attention" if sliding and not i % 2 and i < last else "full_attention" for i in range(depth)]
    kinds = config.layer_kinds(depth, default)
    if not sliding and "sliding_attention" in kinds:
        raise config.wrong("layer_types", kinds, "without sliding_attention: use_sliding_window gives no window")
    return kinds
