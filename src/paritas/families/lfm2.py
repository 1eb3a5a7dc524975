"""LFM2: most layers mix positions by a short gated convolution, some by attention with norms of queries and keys.

Source: transformers models/lfm2/{configuration,modeling}_lfm2.py.
"""

from collections.abc import Sequence

from paritas.config import Config
from paritas.spec import Activation, Attention, Decoder, Layer, Mixer, Mlp, Norm, Norms, QkNorm, ShortConvolution

MODEL_TYPES = ("lfm2",)
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
RENAMES = (
    ("model.embedding_norm.", "model.norm."),
    ("model.layers.*.self_attn.q_layernorm.", "model.layers.*.self_attn.q_norm."),
    ("model.layers.*.self_attn.k_layernorm.", "model.layers.*.self_attn.k_norm."),
    ("model.layers.*.self_attn.out_proj.", "model.layers.*.self_attn.o_proj."),
    ("model.layers.*.feed_forward.w1.", "model.layers.*.mlp.gate_proj."),
    ("model.layers.*.feed_forward.w2.", "model.layers.*.mlp.down_proj."),
    ("model.layers.*.feed_forward.w3.", "model.layers.*.mlp.up_proj."),
)
DROPPED = ()
_NORMS = Norms(before_attention="operator_norm", before_mlp="ffn_norm")
_UNREAD = (
    "block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu block_use_xavier_init "
    "conv_dim conv_dim_out conv_use_xavier_init num_heads theta use_pos_enc"
)


def read(config: Config) -> Decoder:
    """The spec of an LFM2 checkpoint."""
    hidden = config.integer("hidden_size", 2560)
    context = config.integer("max_position_embeddings", 128_000)
    norm = Norm(eps=config.number("norm_eps", 1e-5))
    for key in _UNREAD.split():
        config.ignore(key, "of the trainer; transformers does not read it")
    kinds = _kinds(config)
    mlp = Mlp(_width(config), Activation.SILU)
    mixers = {kind: _mixer(config, kind, hidden, norm, context) for kind in ("conv", "full_attention")}
    return Decoder(
        vocab=config.integer("vocab_size", 65_536),
        hidden=hidden,
        context=context,
        layers=tuple(Layer(kind, mixers[kind], mlp, norm, _NORMS) for kind in kinds),
        norm=norm,
        tied_head=_tied(config),
    )


def _mixer(config: Config, kind: str, hidden: int, norm: Norm, context: int) -> Mixer:
    heads, kv_heads = config.heads(32, default_kv=8)
    head_dim = config.integer("head_dim", hidden // heads)
    rope = config.rope(head_dim, default_theta=1_000_000.0, context=context)
    kernel = config.integer("conv_L_cache", 3)
    if kernel == 1:
        raise config.wrong("conv_L_cache", kernel, "more than one position: a convolution of one has no state")
    if kind == "conv":
        return ShortConvolution(kernel, config.flag("conv_bias", False))
    return Attention(heads, kv_heads, head_dim, head_dim**-0.5, rope, qk_norm=QkNorm(norm))


def _kinds(config: Config) -> Sequence[str]:
    """``layer_types``, or full attention in the layers that ``full_attn_idxs`` names, or in all."""
    depth = config.integer("num_hidden_layers", 32, most=10_000)
    full = config.layer_numbers("full_attn_idxs")
    default = ["full_attention" if full is None or index in full else "conv" for index in range(depth)]
    kinds = config.layer_kinds(depth, default, ("full_attention", "conv"))
    if "full_attention" not in kinds:
        raise config.wrong("layer_types", kinds, "with an attention layer among them")
    return kinds


def _width(config: Config) -> int:
    """As transformers rounds it; ``block_ff_dim`` goes before ``intermediate_size``."""
    width = config.integer("block_ff_dim", config.integer("intermediate_size", 12_288))
    multiple = config.integer("block_multiple_of", 256)
    factor = config.optional_number("block_ffn_dim_multiplier", 1.0)
    if not config.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    return width if factor is None else -(-int(factor * width) // multiple) * multiple


def _tied(config: Config) -> bool:
    """``tie_embedding`` goes before ``tie_word_embeddings``."""
    return config.flag("tie_embedding", config.flag("tie_word_embeddings", True))
