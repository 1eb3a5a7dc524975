"""Gemma 3, text: five sliding-window layers to each full one, four offset norms a layer, QK-norm, two RoPEs.

Source: transformers models/gemma3/{configuration,modeling}_gemma3.py.
"""

from paritas.config import Config
from paritas.spec import SANDWICH_NORMS, Attention, Decoder, Layer, Mlp, Norm, QkNorm, Rope

MODEL_TYPES = ("gemma3_text",)
TOKEN_IDS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
RENAMES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
_VISION = "the image half of the checkpoint (--text-only)"
DROPPED = (
    ("vision_tower.*", _VISION),
    ("model.vision_tower.*", _VISION),
    ("multi_modal_projector.*", _VISION),
    ("model.multi_modal_projector.*", _VISION),
)


def read(config: Config) -> Decoder:
    """The spec of a Gemma 3 text checkpoint, or of the text half of a multimodal one."""
    hidden = config.integer("hidden_size", 2304)
    context = config.integer("max_position_embeddings", 131_072)
    norm = Norm(eps=config.number("rms_norm_eps", 1e-6), offset=1.0)  # the checkpoint stores weight - 1
    layers = _layers_by_kind(config, norm, context)
    softcap = config.optional("final_logit_softcapping")
    config.must_be("use_bidirectional_attention", (None, False), "attention over later tokens is not a decoder's")
    config.ignore("attn_logit_softcapping", "Gemma 3 never passes it to its attention")
    return Decoder(
        vocab=config.integer("vocab_size", 262_208),
        hidden=hidden,
        context=context,
        layers=tuple(layers[kind] for kind in _kinds(config)),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", True),
        embed_scale=hidden**0.5,
        softcap=None if softcap is None else config.number("final_logit_softcapping", None),
    )


def _layers_by_kind(config: Config, norm: Norm, context: int) -> dict[str, Layer]:
    heads, kv_heads = config.heads(8, default_kv=4)
    head_dim = config.integer("head_dim", 256)
    bias = config.flag("attention_bias", False)
    thetas = {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}
    windows = {"full_attention": None, "sliding_attention": config.integer("sliding_window", 4096)}
    mlp = Mlp(
        width=config.integer("intermediate_size", 9216),
        activation=config.activation("hidden_activation", "gelu_pytorch_tanh"),
    )

    def attention(kind: str, rope: Rope) -> Attention:
        return Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=config.number("query_pre_attn_scalar", 256) ** -0.5,
            rope=rope,
            window=windows[kind],
            qk_norm=QkNorm(norm),
            qkv_bias=bias,
            output_bias=bias,
        )

    ropes = config.ropes_by_kind(head_dim, thetas, context)
    return {kind: Layer(kind, attention(kind, rope), mlp, norm, SANDWICH_NORMS) for kind, rope in ropes.items()}


def _kinds(config: Config) -> tuple[str, ...]:
    depth = config.integer("num_hidden_layers", 26, most=10_000)
    pattern = config.integer("sliding_window_pattern", 6)
    config.ignore("_sliding_window_pattern", "transformers reads layer_types or sliding_window_pattern")
    default = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(depth)]
    return config.layer_kinds(depth, default)
