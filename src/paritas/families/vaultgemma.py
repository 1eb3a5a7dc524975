"""VaultGemma: Gemma 2 without the norms after attention and MLP.

Source: transformers models/vaultgemma/{configuration,modeling}_vaultgemma.py.
"""

from dataclasses import replace

from paritas.config import Config
from paritas.families import gemma2
from paritas.spec import Decoder, Norms

MODEL_TYPES = ("vaultgemma",)
TOKEN_IDS = gemma2.TOKEN_IDS
RENAMES = gemma2.RENAMES
DROPPED = gemma2.DROPPED
_NORMS = Norms(before_attention="input_layernorm", before_mlp="pre_feedforward_layernorm")


def read(config: Config) -> Decoder:
    """The spec of a VaultGemma checkpoint."""
    spec = gemma2.read(config)
    return replace(spec, layers=tuple(replace(layer, norms=_NORMS) for layer in spec.layers))
