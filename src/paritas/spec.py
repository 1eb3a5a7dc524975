"""What a model computes, layer by layer, in plain frozen values. Knows no ONNX and no weights.

Everything that can differ between layers is in the layer. A fact that two layers share is written twice, so that
no layer can inherit another one's by accident. Tensor names are the ones that a family gives with its ``RENAMES``:
``self_attn.q_proj``, ``mlp.gate_proj`` and so on; only norms, which families place differently, carry names here.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class Linear:
    """Linear RoPE scaling: every frequency divided by ``factor``."""

    factor: float


@dataclass(frozen=True)
class Dynamic:
    """NTK scaling: theta grows with the length of the call, from ``original_context`` positions on."""

    factor: float
    original_context: int


@dataclass(frozen=True)
class Llama3:
    """Llama 3's RoPE scaling: low frequencies divided by ``factor``, high ones kept, a ramp between the two bands."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class Yarn:
    """YaRN: a ramp over the pairs, from frequencies that are kept to frequencies divided by ``factor``.

    Attributes:
        factor: of the slow pairs.
        original_context: positions of the training before.
        beta_fast, beta_slow: turns within the original context at which the ramp begins and ends.
        truncate: the ramp's ends are whole pairs.
        attention_factor: multiplies cosines and sines.
    """

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float


@dataclass(frozen=True)
class LongRope:
    """LongRoPE: frequencies divided one by one, by ``long`` in a call that reaches beyond ``original_context``.

    The switch concerns every position of the call; cached keys stay as they were rotated. ``attention_factor``
    multiplies cosines and sines on both sides of it.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int
    attention_factor: float


Scaling = Linear | Dynamic | Llama3 | Yarn | LongRope


class Pairing(StrEnum):
    """Which two numbers of a head are rotated as a pair."""

    HALVES = "halves"  # i and i + dim / 2: rotate_half
    NEIGHBOURS = "neighbours"  # 2 i and 2 i + 1


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding over the first ``dim`` of a head; what lies behind them is not rotated."""

    theta: float
    dim: int
    scaling: Scaling | None = None
    pairing: Pairing = Pairing.HALVES

    @property
    def attention_factor(self) -> float:
        """What multiplies cosines and sines."""
        return self.scaling.attention_factor if isinstance(self.scaling, Yarn | LongRope) else 1.0


class Activation(StrEnum):
    """The MLP's activation."""

    SILU = "silu"
    GELU = "gelu"  # exact, by the error function
    GELU_TANH = "gelu_pytorch_tanh"
    RELU = "relu"
    RELU2 = "relu2"  # the square of relu
    XIELU = "xielu"  # with two numbers of each layer's own, act_fn.alpha_p and act_fn.alpha_n


@dataclass(frozen=True)
class Norm:
    """RMSNorm in fp32: ``x * rsqrt(mean(x^2) + eps) * (weight + offset)``."""

    eps: float
    offset: float = 0.0


@dataclass(frozen=True)
class LayerNorm:
    """``(x - mean(x)) * rsqrt(var(x) + eps) (* (weight + offset)) (+ bias)``, in fp32."""

    eps: float
    offset: float = 0.0
    bias: bool = True
    weight: bool = True


AnyNorm = Norm | LayerNorm


class Extent(StrEnum):
    """What a norm of queries and keys is taken over, and the shape of its weight."""

    HEAD = "head"  # each head; one weight [head_dim] for all of them
    EACH_HEAD = "each head"  # each head; a weight of its own: [heads, head_dim]
    HEAD_BY_HEAD = "head by head"  # the same, as one tensor a head: norms.N, [head_dim]
    PROJECTION = "projection"  # all heads together: [heads * head_dim]


class Place(StrEnum):
    """Where queries and keys are normalised."""

    BEFORE_ROPE = "before RoPE"
    AFTER_ROPE = "after RoPE"


@dataclass(frozen=True)
class QkNorm:
    """The norms ``q_norm`` and ``k_norm`` of queries and keys."""

    norm: AnyNorm
    extent: Extent = Extent.HEAD
    place: Place = Place.BEFORE_ROPE

    @property
    def eps(self) -> float:
        """Of both."""
        return self.norm.eps

    @property
    def offset(self) -> float:
        """Of both."""
        return self.norm.offset


class Packing(StrEnum):
    """How one tensor of the checkpoint holds the rows of several projections."""

    BLOCKS = "blocks"  # all queries, then all keys, then all values
    BY_HEAD = "by head"  # queries, key and value of the first key-value head, then those of the second


@dataclass(frozen=True)
class Packed:
    """``q_proj``, ``k_proj`` and ``v_proj`` are rows of the module ``name``."""

    name: str
    packing: Packing = Packing.BLOCKS


@dataclass(frozen=True)
class Attention:
    """Causal self-attention.

    Attributes:
        heads, kv_heads, head_dim: of queries; of keys and values; of both.
        scale: multiplies scores.
        rope: None if positions are not told (NoPE).
        window: visible keys, the query's own included; None if all earlier ones are.
        qk_norm: of queries and keys.
        qkv_bias, output_bias: biases of the projections.
        softcap: caps the scaled scores before the mask, ``cap * tanh(x / cap)``.
        clip: queries, keys and values are clipped to ``[-clip, clip]`` before RoPE, and after a norm that is before it.
        packed: the tensor that holds the three projections, if they are not three.
        sinks: each head has a score of its own, ``sinks`` [heads], that takes its share of the softmax and gives no
            value.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    window: int | None = None
    qk_norm: QkNorm | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    softcap: float | None = None
    clip: float | None = None
    packed: Packed | None = None
    sinks: bool = False


@dataclass(frozen=True)
class ShortConvolution:
    """A gated causal convolution of each channel by itself, under ``conv``: ``out(c * convolution(b * u))``.

    ``b``, ``c`` and ``u`` are the three blocks of rows of ``in_proj``. Padding counts as nothing: its input is zero.

    Attributes:
        kernel: positions that it sees, its own included.
        bias: of both projections and of the convolution.
    """

    kernel: int
    bias: bool = False


Mixer = Attention | ShortConvolution
"""What mixes the positions of a layer; attention is under ``self_attn``."""


@dataclass(frozen=True)
class Mlp:
    """Gated MLP: ``down(activation(gate(x)) * up(x))``; ``packed`` names the module that holds gate, then up."""

    width: int
    activation: Activation
    bias: bool = False
    packed: str | None = None


@dataclass(frozen=True)
class PlainMlp:
    """MLP without a gate: ``down(activation(up(x)))``."""

    width: int
    activation: Activation
    bias: bool = False


@dataclass(frozen=True)
class ClampedSwiglu:
    """``g * sigmoid(alpha * g) * (clip(up, -limit, limit) + 1)``, where ``g`` is ``min(gate, limit)``."""

    alpha: float
    limit: float


class Stacking(StrEnum):
    """How one tensor of the checkpoint holds gate and up of all experts, where it holds them."""

    ROWS = "rows"  # [experts, 2 * width, hidden]: of each expert the rows of gate, then those of up
    COLUMNS = "columns"  # [experts, hidden, 2 * width]: of each expert the columns of gate and up in turn


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: each token goes to the gated MLPs that the router ``gate`` scores best.

    What they give is summed, each times its weight: the softmax of the scores.

    Attributes:
        count: experts.
        chosen: experts for each token.
        width: of each.
        activation: ``activation(gate(x)) * up(x)``, or the clamped form of it.
        normalized: the softmax is taken over the chosen experts (so that weights sum to 1), not over all.
        bias: of the router and of every expert.
        stacking: of tensors that hold all experts.
        shared: an MLP for every token beside them, times ``sigmoid(shared_expert_gate(x))``, one number a token.
    """

    count: int
    chosen: int
    width: int
    activation: Activation | ClampedSwiglu
    normalized: bool
    bias: bool = False
    stacking: Stacking = Stacking.ROWS
    shared: Mlp | None = None


FeedForward = Mlp | PlainMlp | Experts
"""What works on each position of a layer alone, under ``mlp``."""


@dataclass(frozen=True)
class Norms:
    """One after the other: ``x += after(mixer(before(x)))``, then the same with the MLP.

    The checkpoint's names of the layer's norms, by place; families reuse one name for different places. None: no norm.
    """

    before_attention: str | None = None
    before_mlp: str | None = None
    after_attention: str | None = None
    after_mlp: str | None = None


@dataclass(frozen=True)
class ParallelNorms:
    """Both at once: ``x += mixer(before_attention(x)) + mlp(before_mlp(x))``. One name twice is one norm for both."""

    before_attention: str
    before_mlp: str


PRE_NORMS = Norms(before_attention="input_layernorm", before_mlp="post_attention_layernorm")
POST_NORMS = Norms(after_attention="post_attention_layernorm", after_mlp="post_feedforward_layernorm")
SANDWICH_NORMS = Norms(
    before_attention="input_layernorm",
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
SHARED_NORM = ParallelNorms(before_attention="input_layernorm", before_mlp="input_layernorm")


@dataclass(frozen=True)
class Layer:
    """One decoder layer.

    Attributes:
        kind: transformers' word (``full_attention``, ``sliding_attention``), for people.
        mixer: what mixes positions.
        mlp: what follows it, or stands beside it.
        norm: the kind of all norms of the layer.
        norms: their names and places, which are also the layer's wiring.
        residual_scale: multiplies what is added to the residual stream.
    """

    kind: str
    mixer: Mixer
    mlp: FeedForward
    norm: AnyNorm
    norms: Norms | ParallelNorms
    residual_scale: float = 1.0

    @property
    def attention(self) -> Attention:
        """The mixer of a layer that attends.

        Raises:
            TypeError: it is another one.
        """
        if not isinstance(self.mixer, Attention):
            raise TypeError(f"a layer of kind {self.kind} has no attention")
        return self.mixer


@dataclass(frozen=True)
class Decoder:
    """A decoder-only language model.

    Attributes:
        vocab: rows of the embedding table.
        hidden: width of the residual stream.
        context: number of positions the model was made for (``max_position_embeddings``).
        norm: the final norm.
        embed_scale: multiplies the embedding; exact, rounded once, in the export's dtype.
        logits_scale: multiplies the logits.
        softcap: cap of the final logits, ``cap * tanh(x / cap)``.
        tied_head: the head is the embedding table.
        head_bias: the head has a bias.
    """

    vocab: int
    hidden: int
    context: int
    layers: tuple[Layer, ...]
    norm: AnyNorm
    tied_head: bool
    embed_scale: float = 1.0
    softcap: float | None = None
    logits_scale: float = 1.0
    head_bias: bool = False

    @property
    def reach(self) -> int:
        """Positions that can be exported: ``context``, or as far as dynamic RoPE scaling is made to stretch it."""
        ropes = [layer.mixer.rope for layer in self.layers if isinstance(layer.mixer, Attention)]
        scalings = [rope.scaling for rope in ropes if rope is not None]
        factors = [scaling.factor for scaling in scalings if isinstance(scaling, Dynamic)]
        return int(self.context * max(factors, default=1.0))
