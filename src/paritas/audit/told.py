"""What the checkpoint tells about a model's numbers: everything, where a family reads its configuration; else little.

Without a family only what config.json says in words that all families share is taken: one epsilon, one activation, the
window of each layer, RoPE, the numbers of heads. A key that is not there is not guessed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, cast

from paritas.config import Config
from paritas.errors import ParitasError
from paritas.spec import Activation, Attention, Decoder, Layer, LayerNorm, Mlp, Packing, QkNorm, Rope


class Unknown(Enum):
    """Of a fact that nothing tells. ``None`` says that there is no such thing (no window, no softcap)."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN


@dataclass(frozen=True)
class ToldLayer:
    """Of one layer.

    Attributes:
        attends: it has an attention.
        heads, kv_heads, head_dim: its heads.
        scale: of the scores.
        softcap: of the scaled scores.
        window: keys that a query sees.
        rope: how queries and keys are rotated.
        qk_norm: how they are normalised.
        packing: how one tensor of the checkpoint holds queries, keys and values; None if they are three.
        eps: of the layer's norms.
        activation: of its MLP.
        gated: the activation is multiplied by a second projection.
        sparsity: the share of gates that are zero before the activation.
        residual_scale: multiplies what its two halves add to the residual stream.
    """

    attends: bool | Unknown = UNKNOWN
    heads: int | Unknown = UNKNOWN
    kv_heads: int | Unknown = UNKNOWN
    head_dim: int | Unknown = UNKNOWN
    scale: float | Unknown = UNKNOWN
    softcap: float | Unknown | None = UNKNOWN
    window: int | Unknown | None = UNKNOWN
    rope: Rope | Unknown | None = UNKNOWN
    qk_norm: QkNorm | Unknown | None = UNKNOWN
    packing: Packing | Unknown | None = UNKNOWN
    eps: float | Unknown = UNKNOWN
    activation: Activation | Unknown = UNKNOWN
    gated: bool | Unknown = UNKNOWN
    sparsity: float | Unknown | None = UNKNOWN
    residual_scale: float | Unknown = UNKNOWN


@dataclass(frozen=True)
class Told:
    """Of the whole model.

    Attributes:
        by: who tells it, for messages.
        layers: one each.
        context: positions that the model was made for.
        eps: of the final norm.
        centred: norms subtract the mean (LayerNorm).
        embed_scale: multiplies the embedding.
        logits_scale: multiplies the logits.
        softcap: of the logits.
        tied: the head is the embedding table.
    """

    by: str
    layers: tuple[ToldLayer, ...]
    context: int | Unknown = UNKNOWN
    eps: float | Unknown = UNKNOWN
    centred: bool | Unknown = UNKNOWN
    embed_scale: float | Unknown = UNKNOWN
    logits_scale: float | Unknown = UNKNOWN
    softcap: float | Unknown | None = UNKNOWN
    tied: bool | Unknown = UNKNOWN

    def layer(self, number: int) -> ToldLayer:
        """What is told of a layer; nothing, if there is no such layer."""
        return self.layers[number] if 0 <= number < len(self.layers) else ToldLayer()


def by_spec(spec: Decoder) -> Told:
    """Everything."""
    return Told(
        by="the checkpoint",
        layers=tuple(_of_layer(layer) for layer in spec.layers),
        context=spec.context,
        eps=spec.norm.eps,
        centred=isinstance(spec.norm, LayerNorm),
        embed_scale=spec.embed_scale,
        logits_scale=spec.logits_scale,
        softcap=spec.softcap,
        tied=spec.tied_head,
    )


def _of_layer(layer: Layer) -> ToldLayer:
    activation = getattr(layer.mlp, "activation", UNKNOWN)
    gated = isinstance(layer.mlp, Mlp) if isinstance(activation, Activation) else UNKNOWN
    common = ToldLayer(
        attends=False,
        eps=layer.norm.eps,
        activation=activation if isinstance(activation, Activation) else UNKNOWN,
        gated=gated,
        sparsity=getattr(layer.mlp, "sparsity", None),
        residual_scale=layer.residual_scale,
    )
    if not isinstance(layer.mixer, Attention):  # pyright: ignore[reportUnnecessaryIsInstance] - a convolution, say
        return common
    attention = layer.mixer
    return ToldLayer(
        attends=True,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        scale=attention.scale,
        softcap=attention.softcap,
        window=attention.window,
        rope=attention.rope,
        qk_norm=attention.qk_norm,
        packing=attention.packed.packing if attention.packed else None,
        eps=common.eps,
        activation=common.activation,
        gated=common.gated,
        sparsity=common.sparsity,
        residual_scale=common.residual_scale,
    )


# Without a family.

_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "norm_eps", "layer_norm_epsilon", "norm_epsilon")
_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "relu": Activation.RELU,
    "relu2": Activation.RELU2,
}
# Keys of families that rotate a part of each head, or not every layer.
_PARTIAL = frozenset({"partial_rotary_factor", "rotary_pct", "rotary_dim", "qk_rope_head_dim", "no_rope_layers"})
_INTERLEAVED = ("cohere", "glm", "ernie", "helium", "llama4", "deepseek")  # families that rotate neighbours
# Families whose layers all have the window, in transformers, where layer_types says nothing else.
_ALL_WINDOWED = frozenset({"mistral", "mixtral", "phi3", "starcoder2"})
_KINDS = frozenset({"sliding_attention", "full_attention"})


def by_config(config: Mapping[str, Any], place: str) -> Told:
    """What can be told without knowing the family."""
    depth = _integer(config, "num_hidden_layers") or 0
    eps = [config[key] for key in _EPSILONS if isinstance(config.get(key), float)]
    each = ToldLayer(
        heads=_integer(config, "num_attention_heads") or UNKNOWN,
        kv_heads=_integer(config, "num_key_value_heads") or UNKNOWN,
        head_dim=_integer(config, "head_dim") or UNKNOWN,
        eps=eps[0] if len(eps) == 1 else UNKNOWN,
        activation=_activation(config),
    )
    kinds, windows = _kinds(config, depth), _windows(config, depth)
    ropes = {kind: _rope(config, place, kind) for kind in set(kinds)}
    layers = (replace(each, window=window, rope=ropes[kind]) for kind, window in zip(kinds, windows, strict=True))
    tied = config.get("tie_word_embeddings")
    return Told(
        by="the configuration",
        layers=tuple(layers),
        context=_integer(config, "max_position_embeddings") or UNKNOWN,
        eps=each.eps,
        tied=tied if isinstance(tied, bool) else UNKNOWN,
    )


def _integer(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int and value > 0 else None


def _activation(config: Mapping[str, Any]) -> Activation | Unknown:
    words = [config[key] for key in ("hidden_act", "hidden_activation", "activation_function") if config.get(key)]
    if len(words) != 1 or str(config.get("model_type")).startswith("gemma"):  # Gemma reads hidden_act otherwise
        return UNKNOWN
    return _ACTIVATIONS.get(str(words[0]), UNKNOWN)


def _kinds(config: Mapping[str, Any], depth: int) -> list[str]:
    kinds = config.get("layer_types")
    listed = [str(kind) for kind in cast(list[Any], kinds)] if isinstance(kinds, list) else []
    return listed if len(listed) == depth else [""] * depth


def _windows(config: Mapping[str, Any], depth: int) -> list[int | Unknown | None]:
    window, kinds = _integer(config, "sliding_window"), _kinds(config, depth)
    if window is None or config.get("use_sliding_window") is False:
        told = "sliding_window" in config and config["sliding_window"] is None
        told = told or config.get("use_sliding_window") is False
        return [None if told and kind in ("", "full_attention") else UNKNOWN for kind in kinds]
    if set(kinds) <= _KINDS:
        return [window if kind == "sliding_attention" else None for kind in kinds]
    every: list[int | Unknown | None] = [window if config.get("model_type") in _ALL_WINDOWED else UNKNOWN] * depth
    return every


def _rope(config: Mapping[str, Any], place: str, kind: str) -> Rope | Unknown:
    """A RoPE that is told whole, with its theta, and of a family that rotates whole heads by halves."""
    head_dim = _integer(config, "head_dim")
    values = dict(_objects(config, kind))
    values.setdefault("rope_theta", config.get("rope_theta"))
    if head_dim is None or values["rope_theta"] is None or _PARTIAL & {*values, *config}:
        return UNKNOWN
    if str(config.get("model_type")).startswith(_INTERLEAVED):
        return UNKNOWN
    context, original = (_integer(config, f"{key}max_position_embeddings") for key in ("", "original_"))
    try:
        return Config({"rope_parameters": values}, place).rope(head_dim, 0.0, context or 0, original=original)
    except ParitasError:
        return UNKNOWN


def _objects(config: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Any]]:
    for key in ("rope_parameters", "rope_scaling"):
        value = config.get(key)
        if isinstance(value, dict):
            values = cast(dict[str, Any], value)
            inner = values.get(kind)
            yield from (cast(dict[str, Any], inner) if isinstance(inner, dict) else values).items()
