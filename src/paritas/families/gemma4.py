"""Gemma 4, text: what the unified one has, and per-layer inputs, and experts beside the MLP.

Source: transformers models/gemma4/{configuration,modeling}_gemma4.py.
"""

from dataclasses import replace

from paritas.config import Config
from paritas.families import gemma4_unified
from paritas.spec import Activation, Decoder, Experts, Layer, Mlp, MlpAndExperts, Norm, PerLayerGate, PerLayerInputs

MODEL_TYPES = ("gemma4_text",)
TOKEN_IDS = gemma4_unified.TOKEN_IDS
RENAMES = gemma4_unified.RENAMES
DROPPED = gemma4_unified.DROPPED


def read(config: Config) -> Decoder:
    """The spec of a Gemma 4 text checkpoint, or of the text half of a multimodal one."""
    spec = gemma4_unified.decoder(config, context=131_072, window=512)
    per_layer = _per_layer_inputs(config, spec.hidden)
    activation = config.activation("hidden_activation", "gelu_pytorch_tanh")
    gate = None if per_layer is None else PerLayerGate(per_layer.width, activation)
    experts = _experts(config, activation)

    def whole(layer: Layer) -> Layer:
        assert isinstance(layer.mlp, Mlp)
        mlp = layer.mlp if experts is None else MlpAndExperts(layer.mlp, experts, router_scale=spec.hidden**-0.5)
        return replace(layer, mlp=mlp, per_layer=gate)

    return replace(spec, layers=tuple(map(whole, spec.layers)), per_layer=per_layer)


def _per_layer_inputs(config: Config, hidden: int) -> PerLayerInputs | None:
    width = config.count("hidden_size_per_layer_input", 256)
    vocab = config.integer("vocab_size_per_layer_input", 262_144)
    if width == 0:
        return None
    return PerLayerInputs(
        width=width,
        vocab=vocab,
        token_scale=width**0.5,
        projection_scale=hidden**-0.5,
        scale=2.0**-0.5,
        norm=Norm(eps=config.number("rms_norm_eps", 1e-6)),
    )


def _experts(config: Config, activation: Activation) -> Experts | None:
    config.ignore("expert_intermediate_size", "transformers reads moe_intermediate_size")
    if not config.flag("enable_moe_block", False):
        for key in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            config.ignore(key, "enable_moe_block is false")
        return None
    count, chosen = config.integer("num_experts", None), config.integer("top_k_experts", None)
    if chosen > count:
        raise config.wrong("top_k_experts", chosen, f"at most num_experts, which is {count}")
    return Experts(
        count=count,
        chosen=chosen,
        width=config.integer("moe_intermediate_size", None),
        activation=activation,
        normalized=True,
        scaled=True,
    )
