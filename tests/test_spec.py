"""Configurations of published models, read as specs: held against transformers' own modules, and kept as snapshots.

After a change that is meant: ``pytest tests/test_spec.py --snapshot-update``, and read the diff.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PreTrainedConfig
from transformers.activations import ACT2FN

from paritas.checkpoint import Checkpoint
from paritas.checkpoint.opening import text_only
from paritas.config import Config
from paritas.errors import ParitasError
from paritas.families import families, family_of
from paritas.spec import Decoder, Layer, Linear, Llama3, Norm, Rope

PUBLISHED = sorted(path.parent for path in Path(__file__).parent.glob("configs/*/config.json"))
CLASSES: dict[str, type[PreTrainedConfig]] = {"llama": LlamaConfig, "gemma3_text": Gemma3TextConfig}

published = pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
every_class = pytest.mark.parametrize("model_type", CLASSES)


def read(values: dict[str, Any]) -> Decoder:
    """As an export does: the text half, and every key accounted for."""
    text = text_only(Checkpoint(Path(), "", values, "config.json", {}, {}, {}))
    config = Config(text.config, text.config_place)
    spec = family_of(config).read(config)
    config.finish()
    return spec


def read_file(folder: Path) -> Decoder:
    return read(json.loads((folder / "config.json").read_text()))


@published
def test_a_published_configuration_gives_the_spec_that_was_reviewed(folder: Path, snapshot: SnapshotAssertion) -> None:
    assert table(read_file(folder)) == snapshot


@published
def test_a_spec_is_what_transformers_builds(folder: Path) -> None:
    assert_built(read_file(folder), AutoConfig.from_pretrained(folder).get_text_config())


@published
def test_both_spellings_give_one_spec(folder: Path, tmp_path: Path) -> None:
    AutoConfig.from_pretrained(folder).save_pretrained(tmp_path)
    again = json.loads((tmp_path / "config.json").read_text())
    assert "rope_parameters" in again.get("text_config", again)
    assert read(again) == read_file(folder)


@every_class
def test_what_a_configuration_does_not_say_is_the_class_default(model_type: str) -> None:
    assert read({"model_type": model_type}) == read(said(model_type))
    assert_built(read({"model_type": model_type}), CLASSES[model_type]())


@every_class
def test_token_ids_that_a_configuration_does_not_say_are_the_class_default(model_type: str) -> None:
    values = {key: getattr(CLASSES[model_type](), key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    assert {key: value for key, value in values.items() if value is not None} == families()[model_type].TOKEN_IDS


def test_every_family_is_tested_here() -> None:
    assert set(families()) == set(CLASSES)


def said(model_type: str) -> dict[str, Any]:
    """Every key that the configuration class has and not only its base class, with its default."""
    base = set(PreTrainedConfig().to_dict()) - {"tie_word_embeddings"}
    return {key: value for key, value in CLASSES[model_type]().to_dict().items() if key not in base} | {
        "model_type": model_type
    }


def assert_built(spec: Decoder, config: PreTrainedConfig) -> None:
    """Hold a spec against the modules that transformers builds for ``config`` (without memory for their weights)."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    inner = model.model
    assert (spec.vocab, spec.hidden) == tuple(inner.embed_tokens.weight.shape)
    assert (spec.context, spec.tied_head) == (config.max_position_embeddings, config.tie_word_embeddings)
    assert spec.embed_scale == getattr(inner.embed_tokens, "scalar_embed_scale", 1.0)
    assert spec.softcap == getattr(config, "final_logit_softcapping", None)
    assert spec.norm == norm_of(inner.norm)
    assert len(spec.layers) == len(inner.layers)
    for layer, module in zip(spec.layers, inner.layers, strict=True):
        assert_layer_built(layer, module, config)


def assert_layer_built(layer: Layer, module: Any, config: PreTrainedConfig) -> None:
    attention, theirs, mlp = layer.attention, module.self_attn, module.mlp
    widths = (attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim)
    assert widths == (theirs.q_proj.out_features, theirs.k_proj.out_features)
    assert (attention.head_dim, attention.scale) == (theirs.head_dim, theirs.scaling)
    assert attention.window == getattr(theirs, "sliding_window", None)
    assert attention.qk_norm == (norm_of(theirs.q_norm) if hasattr(theirs, "q_norm") else None)
    biases = [getattr(theirs, name).bias is not None for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    assert biases == [attention.qkv_bias] * 3 + [attention.output_bias]
    assert attention.rope == rope_of(config, layer.kind, attention.head_dim)
    assert layer.kind == getattr(theirs, "layer_type", "full_attention")
    assert (layer.mlp.width, layer.mlp.bias) == (mlp.gate_proj.out_features, mlp.gate_proj.bias is not None)
    assert type(ACT2FN[layer.mlp.activation.value]) is type(mlp.act_fn)
    assert ACT2FN[layer.mlp.activation.value].__dict__.get("approximate") == mlp.act_fn.__dict__.get("approximate")
    places = {name for name in dataclasses.astuple(layer.norms) if name is not None}
    assert places == {name for name, _ in module.named_children() if "layernorm" in name}
    assert {layer.norm} == {norm_of(getattr(module, name)) for name in places}


def norm_of(module: Any) -> Norm:
    """Gemma's class adds 1 to its weight and calls its epsilon eps."""
    return Norm(module.eps, 1.0) if hasattr(module, "eps") else Norm(module.variance_epsilon)


def rope_of(config: PreTrainedConfig, kind: str, dim: int) -> Rope:
    """The parameters that transformers' rotary module of this layer type is made from."""
    values = config.rope_parameters.get(kind, config.rope_parameters)
    scaling = {
        "default": lambda: None,
        "linear": lambda: Linear(values["factor"]),
        "llama3": lambda: Llama3(
            values["factor"],
            values["low_freq_factor"],
            values["high_freq_factor"],
            values["original_max_position_embeddings"],
        ),
    }
    return Rope(values["rope_theta"], dim, scaling[values["rope_type"]]())


def table(spec: Decoder) -> str:
    """A spec as text: what the model has, what every layer has, and a row for each layer of what differs."""
    whole = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec) if field.name != "layers"}
    rows = [dict(flat(layer)) for layer in spec.layers]
    shared = {key: value for key, value in rows[0].items() if all(row.get(key) == value for row in rows)}
    names = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in shared]
    lines = ["model", *(f"  {key} = {value}" for key, value in flat(whole))]
    lines += [f"each of {len(rows)} layers", *(f"  {key} = {value}" for key, value in shared.items())]
    if names:
        lines += [" | ".join(["layer", *names])]
        lines += [" | ".join([str(i), *(row.get(name, "") for name in names)]) for i, row in enumerate(rows)]
    return "\n".join(lines)


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Dotted name and text of every plain value in it."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}".strip("."))
    else:
        yield name, value.value if isinstance(value, Enum) else str(value)


WITHOUT_EFFECT = {
    "initializer_range",
    "attention_dropout",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "pretraining_tp",
    "_sliding_window_pattern",
}

# Whatever stands in config.json, it is read or refused in words.

KNOWN = {
    model_type: sorted({*said(model_type), "rope_theta", "rope_scaling", "rope_local_base_freq"})
    for model_type in CLASSES
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([10**400, 10**9]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
ROPE_KEYS = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "full_attention",
    "sliding_attention",
]
ROPE = st.dictionaries(st.sampled_from(ROPE_KEYS), JSON | st.sampled_from(["default", "linear", "llama3"]), max_size=5)


@every_class
@given(data=st.data())
def test_any_value_of_a_known_key_is_read_or_refused_in_words(model_type: str, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(KNOWN[model_type]))
    value = data.draw(JSON | ROPE if "rope" in key else JSON)
    small = {"model_type": model_type, "num_hidden_layers": 2}
    with contextlib.suppress(ParitasError):
        assert isinstance(read(small | {key: value}), Decoder)


@every_class
@given(key=st.text(min_size=1), value=JSON)
def test_a_key_that_nothing_reads_stops_the_export(model_type: str, key: str, value: Any) -> None:
    key = f"{key}_x"
    with pytest.raises(ParitasError, match="config-key-unread") as refusal:
        read({"model_type": model_type, key: value})
    assert key in refusal.value.fact
    assert key in refusal.value.hint


@pytest.mark.parametrize("inside", ["rope_parameters", "rope_scaling"])
def test_a_rope_parameter_that_nothing_reads_stops_the_export(inside: str) -> None:
    with pytest.raises(ParitasError, match="config-key-unread"):
        read({"model_type": "llama", inside: {"rope_type": "linear", "factor": 2.0, "beta_fast": 32}})


@every_class
@given(data=st.data())
def test_a_value_of_the_wrong_kind_is_refused_by_its_key(model_type: str, data: st.DataObject) -> None:
    numbers = {key for key, value in said(model_type).items() if type(value) in (int, float)}
    key = data.draw(st.sampled_from(sorted(numbers - WITHOUT_EFFECT)))
    value = data.draw(st.text() | st.booleans() | st.lists(st.integers(), max_size=2) | st.integers(max_value=0))
    with pytest.raises(ParitasError, match="config-value-wrong") as refusal:
        read({"model_type": model_type, key: value})
    assert key in refusal.value.place
