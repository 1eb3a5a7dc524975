"""GPT-NeoX and Pythia: q, k and v packed head by head, attention and MLP side by side, LayerNorms, biases.

Source: transformers models/gpt_neox/{configuration,modeling}_gpt_neox.py.
"""

from paritas.config import Config
from paritas.spec import PRE_NORMS, Attention, Decoder, Layer, LayerNorm, Packed, Packing, ParallelNorms, PlainMlp, Rope

MODEL_TYPES = ("gpt_neox",)
TOKEN_IDS = {"bos_token_id": 0, "eos_token_id": 2}
RENAMES = (
    ("gpt_neox.layers.*.attention.dense.", "model.layers.*.self_attn.o_proj."),
    ("gpt_neox.layers.*.attention.", "model.layers.*.self_attn."),
    ("gpt_neox.layers.*.mlp.dense_h_to_4h.", "model.layers.*.mlp.up_proj."),
    ("gpt_neox.layers.*.mlp.dense_4h_to_h.", "model.layers.*.mlp.down_proj."),
    ("gpt_neox.layers.", "model.layers."),
    ("gpt_neox.embed_in.", "model.embed_tokens."),
    ("gpt_neox.final_layer_norm.", "model.norm."),
    ("embed_out.", "lm_head."),
)
_BUFFER = "a buffer of old checkpoints; computed from the configuration"
DROPPED = (("*.attention.rotary_emb.inv_freq", _BUFFER), ("*.attention.bias", _BUFFER), ("*.masked_bias", _BUFFER))
_PARALLEL = ParallelNorms(before_attention="input_layernorm", before_mlp="post_attention_layernorm")


def read(config: Config) -> Decoder:
    """The spec of a GPT-NeoX checkpoint."""
    hidden = config.integer("hidden_size", 6144)
    heads = config.integer("num_attention_heads", 64)
    head_dim = hidden // heads
    context = config.integer("max_position_embeddings", 2048)
    bias = config.flag("attention_bias", True)
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-5))
    for key in ("hidden_dropout", "classifier_dropout"):
        config.ignore(key, "training only")
    config.ignore("is_decoder", "transformers computes nothing with it")
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=_rope(config, head_dim, context),
            qkv_bias=bias,
            output_bias=bias,
            packed=Packed("query_key_value", Packing.BY_HEAD),
        ),
        mlp=PlainMlp(
            width=config.integer("intermediate_size", 24_576),
            activation=config.activation("hidden_act", "gelu"),
            bias=True,
        ),
        norm=norm,
        norms=_PARALLEL if config.flag("use_parallel_residual", True) else PRE_NORMS,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 50_432),
        hidden=hidden,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers", 44, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _rope(config: Config, head_dim: int, context: int) -> Rope:
    for key in ("rope_theta", "partial_rotary_factor"):
        config.ignore(key, "the class reads rotary_emb_base and rotary_pct")
    names = ("rotary_emb_base", "rotary_pct")
    return config.rope(head_dim, default_theta=10_000.0, context=context, default_partial=0.25, flat=names)
