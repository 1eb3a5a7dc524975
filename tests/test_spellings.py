"""However a configuration says it, in the words of transformers 4 or 5: the spec is that of what the class resolves."""

from copy import deepcopy
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from paritas.config import Config
from paritas.errors import ParitasError
from paritas.families import families, family_of
from paritas.spec import Decoder

# 160 heads: every class's default number of key-value heads divides them.
SMALL = {"num_hidden_layers": 4, "hidden_size": 2560, "num_attention_heads": 160, "max_position_embeddings": 96}
OTHERWISE = {
    "gptj": {"n_layer": 4, "n_embd": 2560, "n_head": 160, "n_positions": 96, "rotary_dim": 16},
    "helium": SMALL | {"head_dim": 16},
    "gemma3n_text": SMALL | {"num_kv_shared_layers": 0},  # of 35 by default
}
DEFAULT = {"rope_type": "default", "rope_theta": 99.0}
LINEAR = {"rope_type": "linear", "factor": 3.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
SAID: tuple[dict[str, Any], ...] = (
    {},
    {"rope_theta": 1234.5},
    {"rope_theta": 77.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_scaling": LINEAR},
    {"rope_scaling": LINEAR | {"rope_theta": 5.0}, "rope_theta": 7.0},
    {"rope_scaling": YARN},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    {"rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 50.0}},
    {"rope_parameters": DEFAULT},
    {"rope_parameters": DEFAULT, "rope_theta": 5.0},
    {"rope_parameters": {"rope_type": "default"}, "rope_theta": 5.0},
    {"rope_parameters": {"full_attention": YARN, "sliding_attention": DEFAULT}},
    {"partial_rotary_factor": 0.75},
    {"rope_parameters": DEFAULT, "partial_rotary_factor": 0.75},
    {"rope_parameters": DEFAULT | {"partial_rotary_factor": 0.25}, "partial_rotary_factor": 0.75},
    {"rope_scaling": LINEAR | {"partial_rotary_factor": 0.25}},
    {"rotary_emb_base": 55.0, "rotary_pct": 0.5},
    {"head_dim": 48},
    {"num_key_value_heads": 5},
    {"num_key_value_heads": None},
    {"sliding_window": 17},
    {"sliding_window": None},
    {"use_sliding_window": True, "sliding_window": 9},
    {"sliding_window_pattern": 2},
    {"layer_types": ["full_attention"] * 4},
    {"layer_types": ["sliding_attention", "full_attention"] * 2},
)


@pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning")  # of classes without RoPE parameters
@pytest.mark.parametrize("model_type", families())
def test_a_spec_is_that_of_the_resolved_configuration(model_type: str) -> None:
    alike = 0
    for said in SAID:
        values = {**OTHERWISE.get(model_type, SMALL), **said}
        resolved = resolve(model_type, values)
        wanted = None if resolved is None else spec(model_type, resolved)
        if wanted is not None:
            assert spec(model_type, values) == wanted, said
            alike += 1
    assert alike > 1 or model_type == "gptj"  # which has one spelling


def resolve(model_type: str, values: dict[str, Any]) -> dict[str, Any] | None:
    """What the class makes of ``values``, less what every class has; None if it refuses them."""
    try:
        resolved = CONFIG_MAPPING[model_type](**deepcopy(values)).to_dict()
    except (StrictDataclassError, ArithmeticError, AttributeError, KeyError):
        return None
    every = set(PreTrainedConfig().to_dict()) - {"tie_word_embeddings"}
    return {key: value for key, value in resolved.items() if key not in every}


def spec(model_type: str, values: dict[str, Any]) -> Decoder | None:
    """None if it is refused, in words."""
    config = Config(values | {"model_type": model_type})
    try:
        found = family_of(config).read(config)
        config.finish()
    except ParitasError:
        return None
    return found
