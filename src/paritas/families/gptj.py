"""GPT-J: one LayerNorm for attention and MLP side by side, neighbours rotated in a part of each head, a head with bias.

Source: transformers models/gptj/{configuration,modeling}_gptj.py.
"""

from paritas.config import Config
from paritas.spec import SHARED_NORM, Attention, Decoder, Layer, LayerNorm, Pairing, PlainMlp, Rope

MODEL_TYPES = ("gptj",)
TOKEN_IDS = {"bos_token_id": 50_256, "eos_token_id": 50_256}
RENAMES = (
    ("transformer.h.*.attn.out_proj.", "model.layers.*.self_attn.o_proj."),
    ("transformer.h.*.attn.", "model.layers.*.self_attn."),
    ("transformer.h.*.mlp.fc_in.", "model.layers.*.mlp.up_proj."),
    ("transformer.h.*.mlp.fc_out.", "model.layers.*.mlp.down_proj."),
    ("transformer.h.*.ln_1.", "model.layers.*.input_layernorm."),
    ("transformer.wte.", "model.embed_tokens."),
    ("transformer.ln_f.", "model.norm."),
)
_BUFFER = "a buffer of old checkpoints; computed from the configuration"
DROPPED = (("*.attn.bias", _BUFFER), ("*.attn.masked_bias", _BUFFER), ("*.attn.embed_positions", _BUFFER))
_UNREAD = (
    "gradient_checkpointing",
    "rotary",
    "scale_attn_weights",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tokenizer_class",
)


def read(config: Config) -> Decoder:
    """The spec of a GPT-J checkpoint."""
    hidden = config.integer("n_embd", 4096)
    heads = config.integer("n_head", 16)
    head_dim = hidden // heads
    norm = LayerNorm(eps=config.number("layer_norm_epsilon", 1e-5))
    for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        config.ignore(key, "training only")
    for key in _UNREAD:
        config.ignore(key, "transformers computes no logits with it")
    rotated = config.integer("rotary_dim", 64)
    if rotated % 2 or rotated > head_dim:
        raise config.wrong("rotary_dim", rotated, f"an even number up to a head's {head_dim} elements")
    layer = Layer(
        kind="full_attention",
        mixer=Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=Rope(theta=10_000.0, dim=rotated, pairing=Pairing.NEIGHBOURS),
        ),
        mlp=PlainMlp(
            width=config.integer("n_inner", 4 * hidden),
            activation=config.activation("activation_function", "gelu_new"),
            bias=True,
        ),
        norm=norm,
        norms=SHARED_NORM,
    )
    return Decoder(
        vocab=config.integer("vocab_size", 50_400),
        hidden=hidden,
        context=config.integer("n_positions", 2048),
        layers=(layer,) * config.integer("n_layer", 28, most=10_000),
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
        head_bias=True,
    )
