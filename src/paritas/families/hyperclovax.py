"""HyperCLOVA X: Granite whose logits are multiplied, with norms of what each half of a layer adds.

Source: transformers models/hyperclovax/{configuration,modeling}_hyperclovax.py.
"""

from dataclasses import replace

from paritas.config import Config
from paritas.families import granite
from paritas.spec import PRE_NORMS, Decoder, Layer, Norms

MODEL_TYPES = ("hyperclovax",)
TOKEN_IDS = granite.TOKEN_IDS
RENAMES = granite.RENAMES
DROPPED = granite.DROPPED
_PERI_NORMS = Norms(
    before_attention="input_layernorm",
    after_attention="post_norm1",
    before_mlp="post_attention_layernorm",
    after_mlp="post_norm2",
)


def read(config: Config) -> Decoder:
    """The spec of a HyperCLOVA X checkpoint."""
    spec = granite.read(config)
    norms = _PERI_NORMS if config.flag("use_post_norm", True) else PRE_NORMS

    def own(layer: Layer) -> Layer:
        scale = config.number("attention_multiplier", layer.attention.head_dim**-0.5)
        return replace(layer, norms=norms, mixer=replace(layer.attention, scale=scale))

    return replace(spec, layers=tuple(map(own, spec.layers)), logits_scale=config.number("logits_scaling", 1.0))
