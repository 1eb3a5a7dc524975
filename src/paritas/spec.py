"""What a model computes, layer by layer, in plain frozen values. Knows no ONNX and no weights.

Everything that can differ between layers is in the layer. A fact that two layers share is written twice, so that
no layer can inherit another one's by accident.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class Linear:
    """Linear RoPE scaling: every frequency divided by ``factor``."""

    factor: float


@dataclass(frozen=True)
class Llama3:
    """Llama 3's RoPE scaling: low frequencies divided by ``factor``, high ones kept, a ramp between the two bands."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding over the first ``dim`` of a head, half-split pairing (``rotate_half``)."""

    theta: float
    dim: int
    scaling: Linear | Llama3 | None = None


class Activation(StrEnum):
    """The MLP's activation, in transformers' words."""

    SILU = "silu"
    GELU = "gelu"  # exact, by the error function
    GELU_TANH = "gelu_pytorch_tanh"
    RELU = "relu"


@dataclass(frozen=True)
class Norm:
    """RMSNorm in fp32: ``x * rsqrt(mean(x^2) + eps) * (weight + offset)``."""

    eps: float
    offset: float = 0.0


@dataclass(frozen=True)
class Attention:
    """Causal self-attention. ``scale`` multiplies scores; ``window`` counts visible keys, the query's own included."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope
    window: int | None = None
    qk_norm: Norm | None = None
    qkv_bias: bool = False
    output_bias: bool = False


@dataclass(frozen=True)
class Mlp:
    """Gated MLP: ``down(activation(gate(x)) * up(x))``."""

    width: int
    activation: Activation
    bias: bool = False


@dataclass(frozen=True)
class Norms:
    """The checkpoint's names of a layer's norms, by place. Families reuse one name for different places."""

    before_attention: str
    before_mlp: str
    after_attention: str | None = None
    after_mlp: str | None = None


PRE_NORMS = Norms(before_attention="input_layernorm", before_mlp="post_attention_layernorm")
SANDWICH_NORMS = Norms(
    before_attention="input_layernorm",
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)


@dataclass(frozen=True)
class Layer:
    """One decoder layer. ``kind`` is transformers' word (``full_attention``, ``sliding_attention``), for people."""

    kind: str
    attention: Attention
    mlp: Mlp
    norm: Norm
    norms: Norms


@dataclass(frozen=True)
class Decoder:
    """A decoder-only language model.

    Attributes:
        vocab: rows of the embedding table.
        hidden: width of the residual stream.
        context: number of positions the model was made for (``max_position_embeddings``).
        norm: the final norm.
        embed_scale: multiplies the embedding; exact, rounded once, in the export's dtype.
        softcap: cap of the final logits, ``cap * tanh(x / cap)``.
        tied_head: the head is the embedding table.
    """

    vocab: int
    hidden: int
    context: int
    layers: tuple[Layer, ...]
    norm: Norm
    tied_head: bool
    embed_scale: float = 1.0
    softcap: float | None = None
