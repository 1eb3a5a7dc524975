"""Falcon: LayerNorms, packed projections; attention and MLP side by side, behind one norm (7B) or two (40B, 11B).

Source: transformers models/falcon/{configuration,modeling}_falcon.py.
"""

import math

from paritas.config import Config
from paritas.spec import (
    PRE_NORMS,
    SHARED_NORM,
    Attention,
    Decoder,
    Layer,
    LayerNorm,
    Norms,
    Packed,
    Packing,
    ParallelNorms,
    PlainMlp,
)

MODEL_TYPES = ("falcon",)
TOKEN_IDS = {"bos_token_id": 11, "eos_token_id": 11}
RENAMES = (
    ("transformer.h.*.self_attention.dense.", "model.layers.*.self_attn.o_proj."),
    ("transformer.h.*.self_attention.", "model.layers.*.self_attn."),
    ("transformer.h.*.mlp.dense_h_to_4h.", "model.layers.*.mlp.up_proj."),
    ("transformer.h.*.mlp.dense_4h_to_h.", "model.layers.*.mlp.down_proj."),
    ("transformer.h.", "model.layers."),
    ("transformer.word_embeddings.", "model.embed_tokens."),
    ("transformer.ln_f.", "model.norm."),
)
DROPPED = ()
_TWO_NORMS = ParallelNorms(before_attention="ln_attn", before_mlp="ln_mlp")


def read(config: Config) -> Decoder:
    """The spec of a Falcon checkpoint."""
    hidden = config.integer("n_embed", config.integer("hidden_size", 4544))
    heads = config.integer("num_attention_heads", 71)
    head_dim = hidden // heads
    context = config.integer("max_position_embeddings", 2048)
    bias = config.flag("bias", False)
    norm = LayerNorm(eps=config.number("layer_norm_epsilon", 1e-5))
    config.must_be("alibi", (None, False), "attention biased by distance is not implemented")
    config.must_be("apply_residual_connection_post_layernorm", (None, False), "transformers' Falcon does not do it")
    config.ignore("hidden_dropout", "training only")
    grouped = config.flag("new_decoder_architecture", False)
    kv_heads, packing = _projections(config, heads, grouped)
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=1 / math.sqrt(head_dim),
            rope=config.rope(head_dim, default_theta=10_000.0, context=context),
            qkv_bias=bias,
            output_bias=bias,
            packed=Packed("query_key_value", packing),
        ),
        mlp=PlainMlp(
            width=config.integer("ffn_hidden_size", 4 * hidden),
            activation=config.activation("activation", "gelu"),
            bias=bias,
        ),
        norm=norm,
        norms=_norms(config, grouped),
    )
    return Decoder(
        vocab=config.integer("vocab_size", 65_024),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 32, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", True),
    )


def _projections(config: Config, heads: int, grouped: bool) -> tuple[int, Packing]:
    kv_heads = config.integer("num_kv_heads", heads)
    if heads % kv_heads:
        raise config.wrong("num_kv_heads", kv_heads, f"a divisor of num_attention_heads, which is {heads}")
    multi_query = config.flag("multi_query", True)
    if grouped or not multi_query:
        return kv_heads if grouped else heads, Packing.BY_HEAD
    return 1, Packing.BLOCKS


def _norms(config: Config, grouped: bool) -> Norms | ParallelNorms:
    parallel = config.flag("parallel_attn", True)
    if grouped:
        config.must_be("parallel_attn", (None, True), "transformers' new decoder has no norms for it")
        return _TWO_NORMS if config.integer("num_ln_in_parallel_attn", 2, most=2) == 2 else SHARED_NORM
    config.must_be("num_ln_in_parallel_attn", (None, 1), "transformers' old decoder reads one norm alone")
    return SHARED_NORM if parallel else PRE_NORMS
