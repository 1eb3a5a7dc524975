"""Gemma 4: shared keys and values, heads of two widths, per-layer inputs, experts beside the MLP; and their faults.

Each fault is put into our own export, one at a time, and must turn the verdict red at its place.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma4TextConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import paritas.graph.decoder
from paritas.audit.run import audit
from paritas.checkpoint import open_checkpoint
from paritas.config import Config
from paritas.describe import describe_checkpoint, layer_table
from paritas.errors import ParitasError
from paritas.export import export
from paritas.families import family_of
from paritas.graph import attention as attention_part
from paritas.graph import beside
from paritas.graph.rope import inverse_frequencies
from paritas.plan import Options, prepare
from paritas.runtime.package import open_package
from paritas.runtime.ports import read_ports
from paritas.spec import Activation, Attention, Decoder, Layer, MlpAndExperts, Proportional, Rope
from paritas.targets import TARGETS, ort, standard
from paritas.verify import run
from paritas.verify.evidence import Evidence
from paritas.verify.floor import REROUTED
from paritas.verify.truth import find_truths
from paritas.verify.verdict import Verdict
from test_mutants import (
    CACHE,
    LONE,
    MASK,
    ONNX,
    RAW,
    SECOND,
    Fault,
    Mutant,
    first_bad,
    in_attention,
    in_layers,
    in_spec,
    in_tensors,
    in_words,
)
from tiny import WEIGHTS, WINDOW, names
from tiny_gemma4 import OWNERS

LAYERS = "model.layers"
STALE = ("k_proj", "v_proj", "k_norm")
TIED = 11  # the last token of the short sequence


def in_sharing(**change: Any) -> Fault:
    """Fields of the attention of layers that own no keys."""

    def changed(layer: Layer) -> Layer:
        shares = layer.attention.keys_of is not None
        return replace(layer, mixer=replace(layer.attention, **change)) if shares else layer

    return in_layers(changed)


def in_inputs(**change: Any) -> Fault:
    def changed(spec: Decoder) -> Decoder:
        assert spec.per_layer is not None
        return replace(spec, per_layer=replace(spec.per_layer, **change))

    return in_spec(changed)


def in_gates(**change: Any) -> Fault:
    def changed(layer: Layer) -> Layer:
        assert layer.per_layer is not None
        return replace(layer, per_layer=replace(layer.per_layer, **change))

    return in_layers(changed)


def in_beside(change: Callable[[MlpAndExperts], MlpAndExperts]) -> Fault:
    def changed(layer: Layer) -> Layer:
        assert isinstance(layer.mlp, MlpAndExperts)
        return replace(layer, mlp=change(layer.mlp))

    return in_layers(changed)


def in_full_rope(change: Callable[[Rope, Proportional], Rope]) -> Fault:
    def changed(attention: Attention) -> Rope:
        assert attention.rope is not None
        assert isinstance(attention.rope.scaling, Proportional)
        return change(attention.rope, attention.rope.scaling)

    return in_attention("full", rope=changed)


def turned_apart(rope: Rope, scaling: Proportional) -> Rope:
    """Partial rotation: pairs of the first part of the head alone, with its own frequencies."""
    return replace(rope, dim=2 * scaling.pairs, scaling=None)


def as_if_alone(rope: Rope, scaling: Proportional) -> Rope:
    """Frequencies as of a head of the rotated part alone, pairs of the whole head."""
    return replace(rope, theta=rope.theta ** (rope.dim / (2 * scaling.pairs)))


def in_sliding_rope_of_full_heads(attention: Attention) -> Rope:
    """The first frequencies of a head twice as wide."""
    assert attention.rope is not None
    return replace(attention.rope, theta=attention.rope.theta**0.5)


def owned_by_the_first(spec: Decoder) -> Decoder:
    first = {layer.kind: index for index, layer in reversed([*enumerate(spec.layers)])}

    def changed(layer: Layer) -> Layer:
        shares = layer.attention.keys_of is not None
        return replace(layer, mixer=replace(layer.attention, keys_of=first[layer.kind])) if shares else layer

    return replace(spec, layers=tuple(map(changed, spec.layers)))


def stale_keys(spec: Decoder) -> Decoder:
    """Every layer computes keys and values of its own: the checkpoint has tensors for that."""
    own = {layer.kind: layer.mixer for layer in reversed(spec.layers) if layer.attention.keys_of is None}
    return replace(spec, layers=tuple(replace(layer, mixer=own[layer.kind]) for layer in spec.layers))


def values_of_normed_keys(patch: pytest.MonkeyPatch) -> None:
    head_norm = attention_part._head_norm

    def wrong(graph: Any, target: Any, norm: Any, name: str, heads: int, head_dim: int, x: Any) -> Any:
        if name == "v_norm":
            x = head_norm(graph, target, replace(norm, weight=True), "k_norm", heads, head_dim, x)
        return head_norm(graph, target, norm, name, heads, head_dim, x)

    patch.setattr(attention_part, "_head_norm", wrong)


def inputs_of_the_next_layer(patch: pytest.MonkeyPatch) -> None:
    given = paritas.graph.decoder.per_layer_inputs

    def wrong(*arguments: Any) -> list[Any]:
        inputs = given(*arguments)
        return [*inputs[1:], inputs[0]]

    patch.setattr(paritas.graph.decoder, "per_layer_inputs", wrong)


def experts_of_the_stream(patch: pytest.MonkeyPatch) -> None:
    norm = beside.norm

    def wrong(graph: Any, target: Any, kind: Any, name: str, width: int, x: Any) -> Any:
        return x if name == "pre_feedforward_layernorm_2" else norm(graph, target, kind, name, width, x)

    patch.setattr(beside, "norm", wrong)


def queries_start_again(patch: pytest.MonkeyPatch) -> None:
    """Queries of a call are aligned with the first keys, as ``is_causal`` does without a past."""

    def wrong(graph: Any, ids: Any, mask: Any) -> Any:
        del mask
        one = graph.constant(np.array(1), "one")
        return graph.op.Sub(graph.op.CumSum(graph.op.Add(graph.op.Sub(ids, ids), one), one), one)

    patch.setattr(ort, "positions", wrong)


def newest_keys_alone(patch: pytest.MonkeyPatch) -> None:
    """Layers without keys of their own see those of the call, and none of the cache."""
    attend = standard.shared_attention

    def wrong(graph: Any, spec: Any, q: Any, shared: Any, mask: Any) -> Any:
        op = graph.op
        new, end = op.Neg(op.Shape(q, start=1, end=2)), graph.constant(np.array([2**31]), "end")
        keys, values = (op.Slice(each, new, end, graph.constant(np.array([2]), "axis.2")) for each in shared)
        last = op.Slice(mask, new, end, graph.constant(np.array([3]), "axis.3"))
        return attend(graph, spec, q, (keys, values), last)

    patch.setattr(standard, "shared_attention", wrong)


def heads_reversed(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Three heads of a full layer."""
    return rows.reshape(3, -1, rows.shape[1])[::-1].reshape(rows.shape)


ONES = np.ones_like
NO_SCALAR = in_layers(lambda layer: replace(layer, scalar=False))
NO_ROUTER_SCALE = in_beside(lambda spec: replace(spec, router_scale=1.0))
NO_SCALE_OF_EXPERTS = in_beside(lambda spec: replace(spec, experts=replace(spec.experts, scaled=False)))
ALL_PAIRS = in_full_rope(lambda rope, _: replace(rope, scaling=None))
SECOND_OF_3 = (f"{LAYERS}.3.self_attn.k_proj.weight",)

MUTANTS: Mapping[str, Mutant] = {
    # shared keys and values
    "keys of the first layer of the kind": Mutant("gemma4", in_spec(owned_by_the_first), LONE, 0),
    "keys of its own, of stale tensors": Mutant("gemma4-multimodal", in_spec(stale_keys), LONE, 0),
    "queries of sharing layers aligned with the first key": Mutant("gemma4", queries_start_again, CACHE, None),
    "keys of the call alone": Mutant("gemma4", newest_keys_alone, CACHE, None, ONNX),
    "no window in sharing layers": Mutant("gemma4", in_sharing(window=None), MASK, WINDOW),
    "a window in every sharing layer": Mutant("gemma4", in_sharing(window=WINDOW), MASK, WINDOW, ONNX),
    "no norm of queries in sharing layers": Mutant(
        "gemma4", in_sharing(qk_norm=None), SECOND, 1, drop=tuple(f"{LAYERS}.{i}.*.q_norm.weight" for i in OWNERS)
    ),
    # values
    "values of normed keys": Mutant("gemma4-experts", values_of_normed_keys, LONE, 0),
    "values not normed": Mutant("gemma4", in_attention(v_norm=lambda _: None), LONE, 0),
    "keys of full layers in another order": Mutant("gemma4-experts", in_tensors(SECOND_OF_3, heads_reversed), LONE, 0),
    # RoPE and the scale
    "proportional RoPE as a partial one": Mutant("gemma4", in_full_rope(turned_apart), SECOND, 1),
    "proportional RoPE of the rotated part": Mutant("gemma4", in_full_rope(as_if_alone), SECOND, 1, ONNX),
    "every pair turns": Mutant("gemma4", ALL_PAIRS, SECOND, 1),
    "sliding RoPE of full heads": Mutant(
        "gemma4", in_attention("sliding", rope=in_sliding_rope_of_full_heads), SECOND, 1
    ),
    "scale from head_dim": Mutant("gemma4", in_attention("full", scale=lambda a: a.head_dim**-0.5), SECOND, 1),
    # per-layer inputs, the scalar, the head
    "per-layer rows not scaled": Mutant("gemma4", in_inputs(token_scale=1.0), LONE, 0),
    "per-layer projection not scaled": Mutant("gemma4", in_inputs(projection_scale=1.0), LONE, 0),
    "per-layer sum not scaled": Mutant("gemma4", in_inputs(scale=1.0), LONE, 0),
    "per-layer inputs of the next layer": Mutant("gemma4", inputs_of_the_next_layer, LONE, 0),
    "per-layer gate by the other GELU": Mutant("gemma4", in_gates(activation=Activation.GELU), LONE, 0, ONNX),
    "layer_scalar lost": Mutant("gemma4", NO_SCALAR, LONE, 0, drop=("*.layer_scalar",)),
    "softcap lost": Mutant("gemma4", in_spec(lambda spec: replace(spec, softcap=None)), LONE, 0),
    # experts
    "router's number lost": Mutant("gemma4-experts", NO_ROUTER_SCALE, LONE, 0),
    "router's norm without its weight": Mutant("gemma4-experts", in_tensors(("router.scale",), ONES), LONE, 0, ONNX),
    "scale of each expert lost": Mutant("gemma4-experts", NO_SCALE_OF_EXPERTS, LONE, 0, drop=("*.per_expert_scale",)),
    "experts of the stream itself": Mutant(
        "gemma4-experts", experts_of_the_stream, LONE, 0, drop=("*.pre_feedforward_layernorm_2.weight",)
    ),
}


def ropes(**full: Any) -> dict[str, dict[str, Any]]:
    """Of both kinds, the full layers' with something changed."""
    return {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "proportional", "rope_theta": 1_000_000.0} | full,
    }


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_of_gemma4_is_red_at_its_place(
    name: str,
    judge: Callable[..., Evidence],
    checkpoint: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    mutant = MUTANTS[name]
    options = Options(drop=mutant.drop, text_only="multimodal" in mutant.checkpoint)
    with monkeypatch.context() as patch:
        mutant.fault(patch)
        export(checkpoint(mutant.checkpoint), tmp_path / "package", TARGETS[mutant.target], options)
    evidence = judge(mutant.checkpoint, tmp_path / "package", RAW)
    record_property("measured", in_words(evidence))
    assert evidence.verdict is Verdict.DIVERGES, evidence.worst_floors
    assert mutant.signature in evidence.signatures[RAW]
    assert first_bad(evidence) == mutant.first_bad


def test_double_wide_layers_of_a_narrow_configuration_are_refused(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "narrow"
    folder.mkdir()
    for each in checkpoint("gemma4").iterdir():
        (folder / each.name).write_bytes(each.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | {"use_double_wide_mlp": False}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ParitasError, match=r"tensor-shape-wrong: .*layers.4.mlp.gate_proj.weight is \[208, 72\]"):
        export(folder, tmp_path / "package", TARGETS["onnx"])


@pytest.mark.parametrize("target", TARGETS)
def test_layers_without_keys_own_no_cache_and_compute_none(
    target: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, out = checkpoint("gemma4-multimodal"), tmp_path / "package"
    export(folder, out, TARGETS[target], Options(text_only=True))
    ports = read_ports(out / "model.onnx")
    heads = [(cache.layer, cache.kv_heads, cache.head_dim) for cache in ports.caches]
    assert heads == [(0, 2, 16), (1, 2, 32), (2, 2, 16), (3, 2, 32)]
    assert not any(cache.in_place for cache in ports.caches if cache.layer in OWNERS.values())
    graph = onnx.load(out / "model.onnx", load_external_data=False).graph
    stored = {each.name for each in graph.initializer}
    assert not [
        name for name in stored for layer in OWNERS for part in STALE if f"layers.{layer}.self_attn.{part}" in name
    ]
    attends = [node for node in graph.node if "Attention" in node.op_type]
    assert len(attends) == 7
    config = json.loads((out / "genai_config.json").read_text())
    assert (config["model"]["type"], config["model"]["decoder"]["num_hidden_layers"]) == ("gemma4_text", 4)
    assert config["search"]["past_present_share_buffer"] is False


def test_what_sharing_layers_ship_is_dropped_with_the_owner(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("gemma4-multimodal")
    dropped = prepare(open_checkpoint(folder), TARGETS["onnx"], Options(text_only=True)).dropped
    stale = {f"model.language_model.layers.{layer}.self_attn.{part}.weight" for layer in OWNERS for part in STALE}
    assert stale <= names(folder)
    for name in stale:
        owner = OWNERS[int(name.split(".")[3])]
        assert dropped[name] == f"the layer attends to the keys and values of layer {owner}, and has none of its own"
    assert {reason for name, reason in dropped.items() if name not in stale} == {
        "the image and sound halves of the checkpoint (--text-only)"
    }


@pytest.fixture(scope="module")
def tied(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the router of the last layer has equal scores, up to rounding, for two experts and one token."""
    whole, folder = checkpoint("gemma4-experts"), tmp_path_factory.mktemp("tied") / "model"
    ids = find_truths(open_checkpoint(whole), power=False).by_name["short"].sequence.ids
    shutil.copytree(whole, folder)
    model = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
    heard: list[tuple[torch.Tensor, torch.Tensor]] = []
    model.model.layers[3].router.proj.register_forward_hook(lambda _, given, out: heard.append((given[0], out)))
    with torch.inference_mode():
        model(torch.tensor([ids]))
    token, scores = heard[0][0][TIED].double(), heard[0][1][TIED]
    taken, left = scores.argsort(descending=True)[2:4]
    tensors, name = load_file(folder / WEIGHTS), f"{LAYERS}.3.router.proj.weight"
    proj = tensors[name].double()
    proj[left] -= ((proj[left] - proj[taken]) @ token) / (token @ token) * token
    tensors = {each: value.float() for each, value in tensors.items()} | {name: proj.float()}
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return folder


@pytest.mark.parametrize("target", TARGETS)
def test_a_right_package_is_proven_whichever_expert_it_takes(target: str, tied: Path, tmp_path: Path) -> None:
    truths = find_truths(open_checkpoint(tied), power=False)
    noise = truths.by_name["short"].variants[REROUTED]
    assert np.isnan(noise[:TIED]).all()
    assert noise[TIED] > 1e-2
    export(tied, tmp_path / "package", TARGETS[target])
    evidence = run.judge(open_package(tmp_path / "package"), truths, (RAW,))
    assert evidence.verdict is Verdict.PROVEN, evidence.worst_floors


def read(**changes: Any) -> Decoder:
    config = Config({"model_type": "gemma4_text"} | changes)
    spec = family_of(config).read(config)
    config.finish()
    return spec


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"num_kv_shared_layers": 30}, "config-value-wrong: num_kv_shared_layers is 30"),
        ({"num_kv_shared_layers": 26}, "config-value-wrong: num_kv_shared_layers is 26"),  # no full layer is left
        ({"per_layer_config": {"5": {"head_dim": 64}, "11": {"head_dim": 32}}}, "the same in all layers of full"),
        ({"per_layer_config": {"5": {"sliding_window": 4}}}, "head_dim and num_key_value_heads of a layer"),
        ({"per_layer_config": {"30": {"head_dim": 64}}}, "the number of a layer, under 30"),
        ({"attention_k_eq_v": True, "num_global_key_value_heads": 3}, "with kv heads for 8"),
        ({"use_bidirectional_attention": "all"}, "config-value-unsupported: use_bidirectional_attention"),
        ({"enable_moe_block": True}, "config-key-missing: num_experts"),
        ({"enable_moe_block": True, "num_experts": 2, "top_k_experts": 3}, "top_k_experts is 3"),
        ({"rope_parameters": {"full_attention": {"rope_type": "proportional"}}}, "one object for each of sliding"),
        ({"rope_parameters": ropes(partial_rotary_factor=1.5)}, "partial_rotary_factor is 1.5"),
        ({"rope_parameters": ropes(rope_type="yarn")}, "rope-type-unsupported: rope_type 'yarn'"),
        ({"layer_scalar": 1.0}, "config-key-unread: nothing reads layer_scalar"),
    ],
    ids=str,
)
def test_a_configuration_that_cannot_be_is_refused_in_words(changes: dict[str, Any], refused: str) -> None:
    with pytest.raises(ParitasError, match=re.escape(refused)):
        read(**changes)


def test_the_last_layer_is_full_whatever_its_type_says() -> None:
    spec = read(num_hidden_layers=2, layer_types=["sliding_attention"] * 2)
    assert [layer.kind for layer in spec.layers] == ["sliding_attention", "full_attention"]
    assert [layer.attention.head_dim for layer in spec.layers] == [256, 512]


def test_an_explicit_null_says_that_no_layer_differs() -> None:
    assert {layer.attention.head_dim for layer in read(per_layer_config=None).layers} == {256}
    assert {layer.attention.head_dim for layer in read().layers} == {256, 512}


@pytest.mark.parametrize(("dim", "part", "factor"), [(512, 0.25, 1.0), (96, 0.4, 3.0), (32, 1.0, 2.0), (64, 0.01, 1.0)])
def test_proportional_frequencies_are_those_of_transformers_bit_by_bit(dim: int, part: float, factor: float) -> None:
    given = ropes(partial_rotary_factor=part, factor=factor)
    config = Gemma4TextConfig.from_dict({"rope_parameters": deepcopy(given), "global_head_dim": dim})
    theirs, _ = ROPE_INIT_FUNCTIONS["proportional"](config, layer_type="full_attention")
    (rope,) = {layer.attention.rope for layer in read(rope_parameters=given, global_head_dim=dim).layers[5:6]}
    assert rope is not None
    np.testing.assert_array_equal(theirs.numpy(), inverse_frequencies(rope))


def test_inspect_says_whose_keys_a_layer_takes_and_what_lies_beside_its_mlp(checkpoint: Callable[[str], Path]) -> None:
    told = describe_checkpoint(open_checkpoint(checkpoint("gemma4-all")))
    rows = layer_table(told["layers"])
    assert [row["keys of"] for row in rows] == ["", "", "", "", "2", "2", "3"]
    assert [row["head_dim"] for row in rows] == [16, 32, 16, 32, 16, 16, 32]
    assert [row["heads/kv"] for row in rows] == ["6/2", "6/3", "6/2", "6/3", "6/2", "6/2", "6/3"]
    assert (rows[0]["mlp"], rows[6]["mlp"]) == ("104 + 3 of 5 x 40", "208 + 3 of 5 x 40")
    assert rows[1]["factor"] == "proportional, 16 of 32"
    assert told["per_layer_input"] == 20


@pytest.mark.parametrize("target", TARGETS)
def test_audit_says_nothing_against_a_right_package(
    target: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Values that are keys are no swapped weights, and heads of two widths no wrong number in genai_config.json."""
    export(checkpoint("gemma4-all"), tmp_path / "package", TARGETS[target])
    assert audit(tmp_path / "package", checkpoint("gemma4-all")).findings == ()


def test_what_the_fused_operator_leaves_behind_a_short_row_is_numbers(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """A mask takes no NaN out of a sum: layers that share keys rest on what the kernel writes where no key is."""
    export(checkpoint("gemma4"), tmp_path / "package", TARGETS["ort"])
    session = onnxruntime.InferenceSession(tmp_path / "package" / "model.onnx")
    mask = np.array([[1] * 9, [1] * 5 + [0] * 4])
    held = {each.name: np.zeros((2, each.shape[1], 0, each.shape[3]), np.float32) for each in session.get_inputs()[2:]}
    for new in (9, 1):  # the prompts, then a token of each
        binding = session.io_binding()
        feeds = {"input_ids": np.full((2, new), 7), "attention_mask": mask, **held}
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        dirty: dict[str, Any] = {}
        for name, value in held.items():
            shape = (*value.shape[:2], mask.shape[1], value.shape[3])
            dirty[name] = onnxruntime.OrtValue.ortvalue_from_numpy(np.full(shape, np.nan, np.float32))
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), dirty[name])
        binding.bind_output("logits")
        session.run_with_iobinding(binding)
        held = {name: value.numpy().copy() for name, value in dirty.items()}
        assert all(np.isfinite(value).all() for value in held.values())
        assert np.isfinite(binding.get_outputs()[-1].numpy()).all()
        mask = np.concatenate([mask, np.ones((2, 1), np.int64)], axis=1)
