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

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from syrupy.assertion import SnapshotAssertion
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import tiny
from paritas.account import dropped, renamed
from paritas.checkpoint import Checkpoint, Tensor
from paritas.checkpoint.opening import text_only
from paritas.config import Config
from paritas.errors import ParitasError
from paritas.families import families, family_of
from paritas.graph.builder import Graph
from paritas.graph.decoder import build
from paritas.graph.rope import far, inverse_frequencies, tables
from paritas.spec import Attention, Decoder, Layer, LongRope, Mlp
from paritas.targets import TARGETS

PUBLISHED = sorted(path.parent for path in Path(__file__).parent.glob("configs/*/config.json"))
CLASSES: dict[str, type[PreTrainedConfig]] = {model_type: CONFIG_MAPPING[model_type] for model_type in families()}

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
    config = CLASSES[model_type]()
    # Some classes leave these to the modeling code, which stumbles.
    if getattr(config, "num_key_value_heads", 1) is None:
        config.num_key_value_heads = config.num_attention_heads
    if not config.is_heterogeneous and getattr(config, "head_dim", 1) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    assert_built(read({"model_type": model_type}), config)


@every_class
def test_token_ids_that_a_configuration_does_not_say_are_the_class_default(model_type: str) -> None:
    values = {key: getattr(CLASSES[model_type](), key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    assert {key: value for key, value in values.items() if value is not None} == families()[model_type].TOKEN_IDS


def test_every_family_has_a_tiny_checkpoint() -> None:
    assert [model_type for model_type in families() if not tiny.of_family(model_type)] == []


def said(model_type: str) -> dict[str, Any]:
    """Every key that the configuration class has and not only its base class, with its default."""
    base = set(PreTrainedConfig().to_dict()) - {"tie_word_embeddings"}
    return {key: value for key, value in CLASSES[model_type]().to_dict().items() if key not in base} | {
        "model_type": model_type
    }


class Shaped(Tensor):
    """A parameter of which nothing is known but its name and shape."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name, self.shape, self.dtype, self.place = name, shape, "F32", ""

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        return np.empty((0, *self.shape[1:]), np.float32)


def assert_built(spec: Decoder, config: PreTrainedConfig) -> None:
    """Hold a spec against the modules that transformers builds for ``config`` (without memory for their weights)."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert (spec.vocab, spec.hidden) == tuple(model.get_input_embeddings().weight.shape)
    assert (spec.context, spec.tied_head) == (config.max_position_embeddings, config.tie_word_embeddings)
    assert spec.softcap == getattr(config, "final_logit_softcapping", None)
    assert_parameters_used(spec, model)
    modules = model.base_model.layers if hasattr(model.base_model, "layers") else model.base_model.h
    assert len(spec.layers) == len(modules)
    for index, module in enumerate(modules):
        assert_layer_built(spec.layers[index], index, module, config)
    assert_keys_shared(spec, modules)
    assert_rotated(spec, model)


def assert_parameters_used(spec: Decoder, model: PreTrainedModel) -> None:
    """Every parameter of transformers' model is one of the graph's, in its shape, and the graph asks for no other.

    Buffers count too, where a checkpoint has them.
    """
    family, stored = families()[model.config.model_type], model.state_dict().keys()
    kept = {name: each for name, each in model.named_buffers() if name in stored}
    theirs = dict(model.named_parameters()) | kept
    tensors = renamed({name: Shaped(name, tuple(each.shape)) for name, each in theirs.items()}, family.RENAMES)
    target = TARGETS["onnx"]
    graph = Graph(tensors, target.opsets(spec))
    build(graph, spec, target, min(spec.context, 64))
    assert dropped(tensors, graph.weights, spec, ()) == {}


def assert_layer_built(layer: Layer, index: int, module: Any, config: PreTrainedConfig) -> None:
    """What no parameter's shape shows: the scale, the window, epsilons, activations."""
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    slides = window is not None if kinds is None else kinds[index] == "sliding_attention"
    assert layer.kind == ("sliding_attention" if slides else "full_attention") if kinds is None else kinds[index]
    epsilons = {layer.norm.eps}
    if isinstance(layer.mixer, Attention):
        theirs = next(child for name, child in module.named_children() if "attention" in name or "attn" in name)
        for name in ("scaling", "scale"):
            assert getattr(theirs, name, layer.mixer.scale) == layer.mixer.scale
        assert layer.mixer.window == (window if slides else None)
        assert layer.mixer.softcap == getattr(theirs, "attn_logit_softcapping", None)
        epsilons |= {layer.mixer.qk_norm.eps} if layer.mixer.qk_norm else set()
        assert (layer.mixer.keys_of is not None) == getattr(theirs, "is_kv_shared_layer", False)
    assert {epsilon(each) for each in norms(module)} - {None} <= epsilons
    sparsity = getattr(getattr(module, "mlp", None), "activation_sparsity", 0.0)
    assert sparsity == (layer.mlp.sparsity or 0.0 if isinstance(layer.mlp, Mlp) else 0.0)
    for act_fn in (
        child for name, child in module.named_modules() if name.endswith(("act_fn", "activation_fn", ".act"))
    ):
        if list(act_fn.parameters()):  # xIELU's have no values here
            continue
        x = torch.linspace(-6, 6, 1001)
        assert torch.allclose(act_fn(x), ACT2FN[layer.mlp.activation.value](x), atol=1e-6)


def assert_keys_shared(spec: Decoder, modules: Any) -> None:
    """Layers without keys of their own take those of the layer that transformers marks, of the same kind."""
    stores = {
        layer.kind: index
        for index, layer in enumerate(spec.layers)
        if getattr(getattr(modules[index], "self_attn", None), "store_full_length_kv", False)
    }
    for layer in spec.layers:
        if isinstance(layer.mixer, Attention) and layer.mixer.keys_of is not None:
            assert layer.mixer.keys_of == stores[layer.kind]


def norms(module: Any) -> list[Any]:
    return [each for each in module.modules() if "Norm" in type(each).__name__]


def epsilon(norm: Any) -> float | None:
    """None where the modeling code writes it into a call."""
    return getattr(norm, "eps", getattr(norm, "variance_epsilon", None))


def assert_rotated(spec: Decoder, model: PreTrainedModel) -> None:
    """Frequencies and factor of every layer's RoPE are those of transformers' rotary module, bit by bit."""
    rotary = type(model.base_model.rotary_emb)(config=model.config)
    for layer in {layer.kind: layer for layer in spec.layers if isinstance(layer.mixer, Attention)}.values():
        rope, prefix = layer.mixer.rope, f"{layer.kind}_" if hasattr(rotary, f"{layer.kind}_inv_freq") else ""
        if rope is None or not hasattr(rotary, f"{prefix}inv_freq"):  # GPT-J's makes tables at once: parity shows them
            continue
        if hasattr(rotary, "embed_positions"):  # GPT-J keeps sines and cosines, which torch does not round correctly
            cos, sin = tables(rope, 0, spec.context)
            np.testing.assert_allclose(rotary.embed_positions, np.concatenate([sin, cos], 1), rtol=0, atol=1e-7)
            continue
        assert getattr(rotary, f"{prefix}attention_scaling", 1.0) == rope.attention_factor
        np.testing.assert_array_equal(getattr(rotary, f"{prefix}inv_freq").numpy(), inverse_frequencies(rope))
        if isinstance(rope.scaling, LongRope):
            rotary(torch.zeros(1), torch.tensor([[rope.scaling.original_context]]))
            np.testing.assert_array_equal(rotary.inv_freq.numpy(), inverse_frequencies(far(rope)))


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


a_class = st.sampled_from(sorted(CLASSES))


@settings(max_examples=400)
@given(model_type=a_class, data=st.data())
def test_any_value_of_a_known_key_is_read_or_refused_in_words(model_type: str, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(KNOWN[model_type]))
    value = data.draw(JSON | ROPE if "rope" in key else JSON)
    small = {"model_type": model_type, "num_hidden_layers": 2}
    with contextlib.suppress(ParitasError):
        assert isinstance(read(small | {key: value}), Decoder)


@settings(max_examples=200)
@given(model_type=a_class, key=st.text(min_size=1), value=JSON)
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


def test_a_rope_value_that_transformers_overlooks_is_refused() -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}
    nested = {"full_attention": yarn | {"truncate": True}, "sliding_attention": {"rope_type": "default"}}
    assert read({"model_type": "gemma3_text", "rope_parameters": nested}).layers[5].attention.rope is not None
    nested["full_attention"] = yarn | {"truncate": False}
    with pytest.raises(ParitasError, match="config-rope-ambiguous"):
        read({"model_type": "gemma3_text", "rope_parameters": nested})


@pytest.mark.parametrize("beside", [{}, {"rope_theta": 7e3}])
def test_one_rope_for_layers_of_two_kinds_is_read_where_transformers_computes_the_same(beside: dict[str, Any]) -> None:
    """It passes over such an object, and goes on with the class's theta, or with that of the key beside it."""
    values = {"model_type": "olmo3", **beside}
    built = CLASSES["olmo3"](**values, rope_parameters={"rope_type": "default", "rope_theta": 7e3})
    thetas = {kind: built.rope_parameters[kind]["rope_theta"] for kind in ("full_attention", "sliding_attention")}
    same = {"rope_type": "default", "rope_theta": 5e5}
    assert thetas == {"full_attention": beside.get("rope_theta", 5e5), "sliding_attention": 5e5}
    if not beside:
        assert read(values | {"rope_parameters": same}) == read(values)
    for other in ({"rope_theta": 7e3}, {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}):
        with pytest.raises(ParitasError, match="config-rope-ambiguous"):
            read(values | {"rope_parameters": same | other})


@pytest.mark.parametrize("model_type", ["nemotron", "glm", "phi", "stablelm", "gpt_neox"])
def test_a_partial_rotary_factor_that_config_json_leaves_out_is_the_class_default(model_type: str) -> None:
    """glm's is 0.5: to rotate whole heads instead is P-R4 of the public failures."""
    config = CLASSES[model_type]()
    part = config.rope_parameters["partial_rotary_factor"]
    rope = read({"model_type": model_type}).layers[0].attention.rope
    assert rope is not None
    assert part < 1
    assert rope.dim == int(read({"model_type": model_type}).layers[0].attention.head_dim * part)


def test_an_explicit_null_is_no_absent_key() -> None:
    assert read({"model_type": "mistral"}).layers[0].attention.window == 4096
    assert read({"model_type": "mistral", "sliding_window": None}).layers[0].attention.window is None
    assert read({"model_type": "gemma2", "attn_logit_softcapping": None}).layers[0].attention.softcap is None
    assert read({"model_type": "qwen2", "num_key_value_heads": None}).layers[0].attention.kv_heads == 32


@every_class
@pytest.mark.parametrize("value", ["8", True, [2], -1, 10**400, float("nan")], ids=str)
def test_a_number_of_the_wrong_kind_is_refused_by_its_key(model_type: str, value: Any) -> None:
    """Every number that the family reads; those without effect may be anything."""
    values = said(model_type)
    config = Config(values)
    family_of(config).read(config)
    numbers = [key for key in values if type(values[key]) in (int, float) and config.accounted.get(key) == "read"]
    assert "hidden_size" in numbers or "n_embd" in numbers
    for key in numbers:
        with pytest.raises(ParitasError, match="config-value-wrong") as refusal:
            read({"model_type": model_type, key: value})
        assert key in refusal.value.place
