"""What a model computes, layer by layer, in plain frozen values. Knows no ONNX and no weights.

Everything that can differ between layers is in the layer. A fact that two layers share is written twice, so that
no layer can inherit another one's by accident. Tensor names are the ones that a family gives with its ``RENAMES``:
``self_attn.q_proj``, ``mlp.gate_proj`` and so on; only norms, which families place differently, carry names here.
"""

from dataclasses import dataclass
from enum import StrEnum

from paritas.ropes import Dynamic as Dynamic
from paritas.ropes import Linear as Linear
from paritas.ropes import Llama3 as Llama3
from paritas.ropes import LongRope as LongRope
from paritas.ropes import Pairing as Pairing
from paritas.ropes import Proportional as Proportional
from paritas.ropes import Rope as Rope
from paritas.ropes import Scaling as Scaling
from paritas.ropes import Yarn as Yarn


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
    """RMSNorm in fp32: ``x * rsqrt(mean(x^2) + eps) (* (weight + offset))``."""

    eps: float
    offset: float = 0.0
    weight: bool = True


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
        values_are_keys: values are what ``k_proj`` gives, before any norm and RoPE; there is no ``v_proj``.
        v_norm: of each head of the values.
        keys_of: the earlier layer whose keys and values, as they are cached, this one attends to. Such a layer has
            queries alone, and no cache.
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
    values_are_keys: bool = False
    v_norm: Norm | None = None
    keys_of: int | None = None


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
    """Gated MLP: ``down(activation(gate(x)) * up(x))``; ``packed`` names the module that holds gate, then up.

    With a ``sparsity``, gates that do not stand out come to zero before the activation: each token's own less the
    ``sparsity`` quantile of a normal distribution with their mean and (population) standard deviation.
    """

    width: int
    activation: Activation
    bias: bool = False
    packed: str | None = None
    sparsity: float | None = None


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
        scaled: ``per_expert_scale`` [experts] multiplies what each gives.
    """

    count: int
    chosen: int
    width: int
    activation: Activation | ClampedSwiglu
    normalized: bool
    bias: bool = False
    stacking: Stacking = Stacking.ROWS
    shared: Mlp | None = None
    scaled: bool = False


@dataclass(frozen=True)
class MlpAndExperts:
    """A gated MLP and experts of the same stream, each with norms of its own, added up: under ``mlp`` and ``experts``.

    ``after_mlp(mlp(x)) + after_experts(experts(before_experts(stream)))``, where ``x`` is what the layer's norm before
    the MLP makes of the stream. ``router`` scores experts: ``proj(norm(stream) * router_scale)``, where the norm is an
    RMSNorm whose weight is ``scale``.

    Attributes:
        mlp, experts: the two.
        router_scale: as above.
        after_mlp, before_experts, after_experts: names of the norms.
    """

    mlp: Mlp
    experts: Experts
    router_scale: float
    after_mlp: str = "post_feedforward_layernorm_1"
    before_experts: str = "pre_feedforward_layernorm_2"
    after_experts: str = "post_feedforward_layernorm_2"

    @property
    def width(self) -> int:
        """Of the MLP."""
        return self.mlp.width

    @property
    def activation(self) -> Activation:
        """Of the MLP."""
        return self.mlp.activation


MlpModule = Mlp | PlainMlp | Experts
"""What the module ``mlp`` of a layer may be."""

FeedForward = MlpModule | MlpAndExperts
"""What works on each position of a layer alone."""


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


@dataclass(frozen=True)
class Laurel:
    """Sandwich norms with a learned augmented residual, under ``laurel``, beside the mixer, of the same normed ``n``.

    ``x = (x + after(mixer(n)) + n + post_laurel_norm(linear_right(linear_left(n)))) / sqrt(2)``; the MLP as in
    :class:`Norms`.

    Attributes:
        rank: numbers between its two linear layers.
        before_attention, after_attention, before_mlp, after_mlp: names of the norms.
    """

    rank: int
    before_attention: str = "input_layernorm"
    after_attention: str = "post_attention_layernorm"
    before_mlp: str = "pre_feedforward_layernorm"
    after_mlp: str = "post_feedforward_layernorm"


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
class PerLayerInputs:
    """An input of each token to each layer, of the token's id and of its embedding.

    ``(norm(projection(embedding) * projection_scale) + table[id] * token_scale) * scale``, where ``table`` is
    ``embed_tokens_per_layer`` and holds the rows of all layers one after the other, ``projection`` is
    ``per_layer_model_projection`` and ``norm`` is ``per_layer_projection_norm``, of each layer's input by itself.

    Attributes:
        width: of the input to one layer.
        vocab: rows of the table.
        token_scale, projection_scale, scale: as above.
        norm: as above.
        outside: the id that is looked up for ids without a row; None if every id has one.
    """

    width: int
    vocab: int
    token_scale: float
    projection_scale: float
    scale: float
    norm: Norm
    outside: int | None = None


@dataclass(frozen=True)
class PerLayerGate:
    """What a layer makes of its :class:`PerLayerInputs`: ``norm(projection(activation(gate(x)) * input))``.

    ``per_layer_input_gate`` and ``per_layer_projection``, then ``post_per_layer_input_norm``, of the layer's kind.
    """

    width: int
    activation: Activation


@dataclass(frozen=True)
class AltUp:
    """Alternating updates: the model has several residual streams, and each layer computes with one of them.

    Under ``altup``, a layer predicts its streams, ``s_j + sum_k c_jk s_k``, computes with the active one, and corrects
    each by its share of what came of that, ``p_j + (1 + d_j) (computed - p_active)``. ``c`` and ``d`` are
    ``prediction_coefs`` and ``correction_coefs`` of ``tanh(modality_router(router_norm(x) / hidden))``, where ``x`` is
    the active stream before and the computed one after. What a layer makes of its per-layer input is added to all
    streams but the first. ``altup_projections`` make streams of the embedding, and ``altup_unembed_projections`` one
    stream of them for the final norm.

    Attributes:
        streams: how many.
        active: which of them layers compute with.
        correct_scale: ``correct_output_scale`` [hidden] multiplies the active stream that gates the per-layer input.
    """

    streams: int
    active: int = 0
    correct_scale: bool = True


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
        per_layer: how the layer takes its per-layer input, if it has one.
        scalar: ``layer_scalar`` [1] multiplies the stream behind the layer.
    """

    kind: str
    mixer: Mixer
    mlp: FeedForward
    norm: AnyNorm
    norms: Norms | ParallelNorms | Laurel
    residual_scale: float = 1.0
    per_layer: PerLayerGate | None = None
    scalar: bool = False

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
        per_layer: what layers are given beside the residual stream.
        altup: how layers are wired to several residual streams; None if there is one.
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
    per_layer: PerLayerInputs | None = None
    altup: AltUp | None = None

    @property
    def reach(self) -> int:
        """Positions that can be exported: ``context``, or as far as dynamic RoPE scaling is made to stretch it."""
        ropes = [layer.mixer.rope for layer in self.layers if isinstance(layer.mixer, Attention)]
        scalings = [rope.scaling for rope in ropes if rope is not None]
        factors = [scaling.factor for scaling in scalings if isinstance(scaling, Dynamic)]
        return int(self.context * max(factors, default=1.0))


@dataclass(frozen=True)
class Clusters:
    """Logits of the tokens of the likeliest clusters alone; all others lie one below the least of those.

    Attributes:
        count: clusters, of equal size; ``token_ordering`` [vocab] lists the tokens of the first, then of the second.
        chosen: clusters whose tokens are scored, by ``centroids`` [count, hidden].
    """

    count: int
    chosen: int


@dataclass(frozen=True)
class Drafter:
    """A small decoder that guesses ahead of a target, with the target's keys and values and no cache of its own.

    It is given the target's (scaled) embedding of the last token beside the target's last hidden state, then beside its
    own: ``post_projection`` of its normed state; ``pre_projection`` makes one of the two. Its position does not move
    while it guesses.

    Attributes:
        target_hidden: width of the target's residual stream.
        decoder: its layers; ``keys_of`` counts in ``borrowed``.
        borrowed: the kinds of the target's layers whose keys and values it reads, those of the last of each kind.
        clusters: None if every token is scored.
    """

    target_hidden: int
    decoder: Decoder
    borrowed: tuple[str, ...]
    clusters: Clusters | None
