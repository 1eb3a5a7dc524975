"""Where a package goes wrong: cuts, taps and regions, on our own packages and on other exporters'."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

import tiny_experts
from paritas.audit.identity import identify
from paritas.audit.view import View
from paritas.checkpoint import open_checkpoint
from paritas.diagnose.align import Alignment, align
from paritas.diagnose.capture import LOGITS, Captured, capture
from paritas.diagnose.depth import by_depth
from paritas.diagnose.diagnosis import RegionError
from paritas.diagnose.extract import extract
from paritas.diagnose.fused import ThreeWay, three_way
from paritas.diagnose.padded import padded
from paritas.diagnose.reset import reset, whole
from paritas.diagnose.rounding import Rows, rounding, rounding_in_fp16
from paritas.diagnose.runtime_bisect import bisect
from paritas.diagnose.semantics import STATEMENTS
from paritas.diagnose.session import Session, feeds
from paritas.diagnose.tapping import tap_command
from paritas.diagnose.taps import BUDGET, tap
from paritas.errors import ParitasError
from paritas.export import export
from paritas.plan import Options
from paritas.runtime.package import Package, open_package
from paritas.runtime.ports import read_ports
from paritas.spec import Activation, Layer
from paritas.targets import TARGETS
from paritas.verify.loading import load_reference
from peers import WRONG
from test_experts import MUTANTS as MORE_MUTANTS
from test_experts import in_experts
from test_mutants import (
    MUTANTS,
    Q_AND_K,
    Fault,
    in_spec,
    in_tensors,
    interleave,
    padding_is_seen,
    positions_forget_the_past,
)

DATA = Path(__file__).parent / "data" / "peers"
KEPT = sorted(path for exporter in WRONG for path in DATA.glob(f"{exporter}/kept-*"))
PREFILL, STEPS = 21, 3  # longer than two windows
IDS = tuple(int(token) for token in np.random.default_rng(20261129).integers(4, 300, PREFILL + STEPS))


class Asked(NamedTuple):
    """The reference, asked once."""

    model: Any
    captured: Captured
    rounded: Sequence[dict[str, Rows]]


@cache
def asked(checkpoint: str) -> Asked:
    model, _ = load_reference(open_checkpoint(DATA / "checkpoints" / checkpoint))
    captured = capture(model, IDS, PREFILL)
    return Asked(model, captured, rounding(model, captured))


def aligned(checkpoint: str, package: Path) -> tuple[Package, Alignment]:
    opened = open_package(package)
    view = View(opened.model, opened.folder)
    tensors = open_checkpoint(DATA / "checkpoints" / checkpoint).tensors
    return opened, align(opened, view, identify(view, tensors), asked(checkpoint).captured)


def errors(checkpoint: str, package: Path) -> tuple[RegionError, ...]:
    opened, alignment = aligned(checkpoint, package)
    return reset(opened, alignment, asked(checkpoint).captured, asked(checkpoint).rounded)


def sources(checkpoint: str, package: Path) -> dict[str, list[str]]:
    """Phase -> regions that are wrong by themselves."""
    found: dict[str, list[str]] = {"prefill": [], "decode": []}
    for error in errors(checkpoint, package):
        if error.is_source:
            found[error.phase].append(error.region)
    return found


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """``faulty(fault, target)``: our export of kept-gemma3, or of another checkpoint, with a fault in it."""

    def run(
        fault: Fault = lambda _: None,
        target: str = "ort",
        drop: tuple[str, ...] = (),
        checkpoint: str = "kept-gemma3",
    ) -> Path:
        out = tmp_path / "package"
        with monkeypatch.context() as patch:
            fault(patch)
            export(DATA / "checkpoints" / checkpoint, out, TARGETS[target], Options(drop=drop))
        return out

    return run


def in_layer(number: int, change: Callable[[Layer], Layer]) -> Fault:
    def changed(layers: Sequence[Layer]) -> tuple[Layer, ...]:
        return tuple(change(layer) if place == number else layer for place, layer in enumerate(layers))

    return in_spec(lambda spec: replace(spec, layers=changed(spec.layers)))


@pytest.mark.parametrize("package", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_package_of_another_exporter_has_a_source_if_it_is_wrong_and_else_none(package: Path) -> None:
    found = errors(package.name, package)
    wrong = [error for error in found if error.is_source and error.phase == "prefill"]
    assert bool(wrong) == (package.name in WRONG[package.parent.name]), wrong
    if not wrong:
        assert max((error.local or 0) / error.unit for error in found) < 0.5


@pytest.mark.parametrize("target", TARGETS)
def test_our_own_package_has_no_source(faulty: Callable[..., Path], target: str) -> None:
    assert sources("kept-gemma3", faulty(target=target)) == {"prefill": [], "decode": []}


def test_every_module_with_a_weight_has_a_cut_and_every_node_a_region(faulty: Callable[..., Path]) -> None:
    _, alignment = aligned("kept-gemma3", faulty())
    assert alignment.missing == ()
    assert all("rope" in name for name in alignment.unexplained)
    anchored = {module for cut in alignment.cuts for module in cut.modules}
    assert anchored == asked("kept-gemma3").captured.weighted - {"model.embed_tokens"}
    assert {region.confidence for region in alignment.regions} == {1.0}


def test_a_rounded_norm_is_the_only_source(faulty: Callable[..., Path]) -> None:
    package = faulty()
    norm = "model.layers.1.pre_feedforward_layernorm.weight"
    graph = onnx.load(package / "model.onnx")
    (weight,) = (each for each in graph.graph.initializer if each.name == norm)
    rounded = onnx.numpy_helper.to_array(weight).astype(np.float16).astype(np.float32)
    weight.CopyFrom(onnx.numpy_helper.from_array(rounded, norm))
    onnx.save(graph, package / "model.onnx")
    found = sources("kept-gemma3", package)
    assert found == {
        "prefill": ["model.layers.1.pre_feedforward_layernorm"],
        "decode": ["model.layers.1.pre_feedforward_layernorm"],
    }


def test_a_wrong_scale_in_one_layer(faulty: Callable[..., Path]) -> None:
    change = in_layer(1, lambda layer: replace(layer, mixer=replace(layer.attention, scale=0.24)))
    found = sources("kept-gemma3", faulty(change))
    assert found == {
        "prefill": ["model.layers.1.self_attn[attention]"],
        "decode": ["model.layers.1.self_attn[attention]"],
    }


def test_a_wrong_window_is_seen_beyond_it(faulty: Callable[..., Path]) -> None:
    change = in_layer(0, lambda layer: replace(layer, mixer=replace(layer.attention, window=9)))
    found = sources("kept-gemma3", faulty(change))
    assert found == {
        "prefill": ["model.layers.0.self_attn[attention]"],
        "decode": ["model.layers.0.self_attn[attention]"],
    }


def test_a_wrong_activation(faulty: Callable[..., Path]) -> None:
    change = in_layer(1, lambda layer: replace(layer, mlp=replace(layer.mlp, activation=Activation.GELU)))
    found = sources("kept-gemma3", faulty(change))
    assert found == {"prefill": ["model.layers.1.mlp[activation]"], "decode": ["model.layers.1.mlp[activation]"]}


def test_a_fault_of_the_decode_alone(faulty: Callable[..., Path]) -> None:
    found = sources("kept-gemma3", faulty(positions_forget_the_past, "onnx"))
    turned = [f"model.layers.{i}.self_attn[rotation of {what}]" for i in (0, 1) for what in ("queries", "keys")]
    assert found == {"prefill": [], "decode": turned}


def test_a_norm_that_is_left_out_lies_within_the_region_that_is_wrong(faulty: Callable[..., Path]) -> None:
    mutant = MUTANTS["QK-norm dropped"]
    opened, alignment = aligned("kept-gemma3", faulty(mutant.fault, drop=mutant.drop))
    assert alignment.missing == tuple(f"model.layers.{i}.self_attn.{name}_norm" for i in (0, 1) for name in ("q", "k"))
    inside = {name: region.inside for region in alignment.regions for name in region.names}
    assert inside["model.layers.0.self_attn[attention]"] == alignment.missing[:2]
    found = sources("kept-gemma3", opened.folder)
    assert found["prefill"] == [f"model.layers.{i}.self_attn[attention]" for i in (0, 1)]


def test_an_early_fault_is_no_source_further_on(faulty: Callable[..., Path]) -> None:
    change = in_layer(0, lambda layer: replace(layer, mixer=replace(layer.attention, scale=0.24)))
    late = [error for error in errors("kept-gemma3", faulty(change)) if error.layer == 1]
    assert all(error.accumulated > 100 * error.unit for error in late)
    assert not any(error.is_source for error in late)


def rotate_interleaved(package: Path) -> None:
    """The other pairing in every attention of a graph."""
    graph = onnx.load(package / "model.onnx", load_external_data=False)
    for node in graph.graph.node:
        for attribute in node.attribute if node.op_type == "GroupQueryAttention" else ():
            if attribute.name == "rotary_interleaved":
                attribute.i = 1
                break
        else:
            if node.op_type == "GroupQueryAttention":
                node.attribute.append(onnx.helper.make_attribute("rotary_interleaved", 1))
    onnx.save(graph, package / "model.onnx")


def test_rows_in_another_order_are_wrong_only_if_nothing_knows_of_it(faulty: Callable[..., Path]) -> None:
    package = faulty(in_tensors(Q_AND_K, interleave), checkpoint="kept-llama")
    modules = [f"model.layers.{i}.self_attn.{name}_proj" for i in (0, 1) for name in ("q", "k")]
    assert sources("kept-llama", package) == {"prefill": modules, "decode": modules}
    rotate_interleaved(package)
    assert sources("kept-llama", package) == {"prefill": [], "decode": []}


def every(alignment: Alignment) -> set[str]:
    """All values that are cut: none of our own package's is another spelling."""
    return {cut.value for cut in alignment.cuts}


def test_a_fault_of_padded_rows_alone(faulty: Callable[..., Path]) -> None:
    opened, alignment = aligned("kept-gemma3", faulty(padding_is_seen, "onnx"))
    _, captured, rounded = asked("kept-gemma3")
    assert not [error for error in reset(opened, alignment, captured, rounded) if error.is_source]
    found = [error for error in padded(opened, alignment, captured, rounded, every(alignment)) if error.is_source]
    assert [error.region for error in found] == [f"model.layers.{i}.self_attn[attention]" for i in (0, 1)]
    assert {error.phase for error in found} == {"padded"}


@pytest.mark.parametrize("target", TARGETS)
def test_padding_changes_nothing_in_our_own_package(faulty: Callable[..., Path], target: str) -> None:
    opened, alignment = aligned("kept-gemma3", faulty(target=target))
    _, captured, rounded = asked("kept-gemma3")
    found = padded(opened, alignment, captured, rounded, every(alignment))
    assert len(found) >= len(alignment.regions)
    assert not [error for error in found if error.is_source]


def test_a_package_in_fp16_is_held_against_rounding_in_fp16() -> None:
    opened, alignment = aligned("kept-llama", DATA / "mobius-f16" / "kept-llama")
    model, captured, rounded = asked("kept-llama")
    assert alignment.is_fp16
    halves = rounding_in_fp16(model, captured)
    assert not [error for error in reset(opened, alignment, captured, halves) if error.is_source]
    assert [error for error in reset(opened, alignment, captured, rounded) if error.is_source]


@pytest.fixture
def experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Fault], list[str]]:
    """``experts(checkpoint, fault)``: sources of the prefill in our export of a tiny mixture of experts."""

    def run(name: str, fault: Fault) -> list[str]:
        tiny_experts.CHECKPOINTS[name](tmp_path / name)
        checkpoint = open_checkpoint(tmp_path / name)
        with monkeypatch.context() as patch:
            fault(patch)
            export(tmp_path / name, tmp_path / "package", TARGETS["ort"])
        model, _ = load_reference(checkpoint)
        captured, opened = capture(model, IDS[:12]), open_package(tmp_path / "package")
        view = View(opened.model, opened.folder)
        alignment = align(opened, view, identify(view, checkpoint.tensors), captured)
        found = reset(opened, alignment, captured, rounding(model, captured))
        return [error.region for error in found if error.is_source]

    return run


def test_a_fault_of_the_experts_is_named_by_them(experts: Callable[[str, Fault], list[str]]) -> None:
    fewer = in_experts(chosen=lambda spec: spec.chosen - 1)
    assert experts("mixtral", fewer) == [f"model.layers.{i}.mlp.experts" for i in (0, 1)]


def test_what_the_reference_changes_in_its_place_is_kept_as_it_was(experts: Callable[[str, Fault], list[str]]) -> None:
    clip = MORE_MUTANTS["queries, keys and values not clipped"]
    assert experts(clip.checkpoint, clip.fault) == [f"model.layers.{i}.self_attn[attention]" for i in (0, 1)]


def test_as_many_tokens_as_heads_are_not_mistaken_for_heads() -> None:
    model, captured, _ = asked("kept-gemma3")
    few = capture(model, IDS[:3])
    assert captured.prefill.attention["model.layers.0.self_attn"].query.shape[0] == 3
    for point in ("q_norm:in", "q_norm:out", "q_proj:out"):
        name = f"model.layers.0.self_attn.{point}"
        assert np.allclose(few.prefill.points[name], captured.prefill.points[name][:3], atol=1e-5)


def test_the_reference_is_left_as_it_was() -> None:
    model, captured, _ = asked("kept-gemma3")
    again = capture(model, IDS, PREFILL)
    for one, other in zip(captured.passes, again.passes, strict=True):
        assert all(np.array_equal(array, other.points[point]) for point, array in one.points.items())
    assert model.config._attn_implementation == "eager"


def test_taps_change_nothing_and_come_in_batches(faulty: Callable[..., Path]) -> None:
    opened, alignment = aligned("kept-gemma3", faulty())
    values = [cut.value for cut in alignment.cuts]
    whole = tap(opened, IDS, values, PREFILL, proto=alignment.proto)
    small = tap(opened, IDS, values, PREFILL, proto=alignment.proto, budget_bytes=1 << 16)
    assert whole.undisturbed
    assert small.undisturbed
    assert BUDGET > 1 << 16
    for one, other in zip(whole.passes, small.passes, strict=True):
        assert one.keys() == other.keys() >= set(values)
        assert all(np.array_equal(array, other[name]) for name, array in one.items())
    expected = asked("kept-gemma3").captured.prefill.points[LOGITS]
    assert np.abs(whole.logits[0] - expected).max() < 1e-5


def every_operator(checkpoint: str, package: Path) -> tuple[ThreeWay, ...]:
    opened, alignment = aligned(checkpoint, package)
    names = {name for region in alignment.regions for name in region.names}
    return three_way(opened, alignment, asked(checkpoint).captured, asked(checkpoint).rounded, names)


@pytest.mark.parametrize(
    ("target", "operators"),
    [
        ("ort", {"GroupQueryAttention", "SimplifiedLayerNormalization", "Gelu"}),
        ("onnx", {"Attention", "RotaryEmbedding", "RMSNormalization", "Gelu"}),
    ],
)
def test_kernels_compute_what_their_operators_are_documented_to(
    faulty: Callable[..., Path], target: str, operators: set[str]
) -> None:
    found = every_operator("kept-gemma3", faulty(target=target))
    assert {each.operator for each in found} == operators
    assert not [each for each in found if each.unstated or each.runtime_is_wrong or each.exporter_is_wrong]


def test_wrong_weights_of_a_fused_norm_are_the_exporters_fault() -> None:
    found = every_operator("kept-gemma2", DATA / "builder" / "kept-gemma2")  # its caches keep to the window
    assert {each.operator for each in found if each.exporter_is_wrong} == {
        "SimplifiedLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    }
    assert not [each for each in found if each.unstated or each.runtime_is_wrong]


def test_a_kernel_that_is_not_what_is_documented_is_the_runtimes_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ("com.microsoft", "GroupQueryAttention")
    right = STATEMENTS[key]
    monkeypatch.setitem(STATEMENTS, key, lambda inputs, values: right(inputs, {**values, "scale": 0.2}))  # type: ignore[arg-type]
    found = every_operator("kept-llama", DATA / "builder" / "kept-llama")
    assert {each.operator for each in found if each.runtime_is_wrong} == {"GroupQueryAttention"}


def test_depth_shows_the_layer_at_which_the_error_begins(faulty: Callable[..., Path]) -> None:
    change = in_layer(1, lambda layer: replace(layer, mixer=replace(layer.attention, scale=0.24)))
    opened, alignment = aligned("kept-gemma3", faulty(change))
    model, captured, _ = asked("kept-gemma3")
    found = by_depth(opened, alignment, captured, model, whole(opened, alignment, captured))
    assert [each.layer for each in found] == [-1, 0, 1]
    assert all(len(each.positions) == PREFILL for each in found)
    assert max(found[0].error, found[1].error) < 1e-4 < 1e-2 < found[2].error


def test_no_setting_of_the_runtime_makes_an_exporters_fault_vanish(faulty: Callable[..., Path]) -> None:
    change = in_layer(1, lambda layer: replace(layer, mixer=replace(layer.attention, scale=0.24)))
    before, knobs = bisect(open_package(faulty(change)), asked("kept-gemma3").captured)
    assert before > 1e-2
    assert {knob.setting for knob in knobs} >= {"graph optimisation: off", "one thread for all"}
    assert not [knob for knob in knobs if knob.vanishes or knob.refused]


def test_an_extract_computes_what_the_whole_graph_does(faulty: Callable[..., Path]) -> None:
    opened, alignment = aligned("kept-gemma3", faulty())
    (region,) = (r for r in alignment.regions if r.names == ("model.layers.1.mlp[activation]",))
    values = tap(opened, IDS, [*region.inputs, region.cut.value]).passes[0]
    part = extract(alignment.proto, region.inputs, [region.cut.value])
    assert [node.op_type for node in part.proto.graph.node] == ["Gelu", "Mul"]
    again = Session(part.proto, opened.model).run(values, [region.cut.value])
    assert np.allclose(again[region.cut.value], values[region.cut.value], rtol=1e-6, atol=0)


def test_an_extract_keeps_weights_where_they_are(faulty: Callable[..., Path]) -> None:
    opened, alignment = aligned("kept-gemma3", faulty())
    logits = read_ports(opened.model).logits
    part = extract(alignment.proto, [], [logits])
    outside = [each.name for each in part.proto.graph.initializer if each.data_location == onnx.TensorProto.EXTERNAL]
    assert {"model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"} <= set(outside)
    given = Session(part.proto, opened.model).run(feeds(read_ports(opened.model), IDS, 0, {}), [logits])
    assert np.array_equal(given[logits], tap(opened, IDS, [logits]).passes[0][logits])


def test_a_graph_without_caches_is_not_asked_to_decode(faulty: Callable[..., Path]) -> None:
    opened = open_package(faulty())
    alone = replace(read_ports(opened.model), caches=())
    assert feeds(alone, IDS, 0, {}).keys() - {alone.kept} == set(alone.inputs)
    with pytest.raises(ParitasError, match="graph-no-cache"):
        feeds(alone, IDS[:1], 5, {})


def test_tap_tells_numbers_and_writes_arrays(tmp_path: Path) -> None:
    package, out = DATA / "builder" / "kept-llama", tmp_path / "values.npz"
    report = tap_command(package, ["*input_layernorm/output_0", "logits"], ids=[5, 6, 7], out=out)
    assert [value.name for value in report.values] == [
        "/model/layers.0/input_layernorm/output_0",
        "/model/layers.1/input_layernorm/output_0",
        "logits",
    ]
    assert report.undisturbed
    norm, *_, logits = report.values
    assert (norm.operator, norm.shape, norm.bad) == ("SimplifiedLayerNormalization", (1, 3, 42), 0)
    with np.load(out) as arrays:
        assert set(arrays) == {value.name for value in report.values}
        assert arrays["logits"].max() == pytest.approx(logits.maximum)
        assert np.linalg.norm(arrays[norm.name]) == pytest.approx(norm.norm)
    assert report.summary()["values"][2]["shape"] == (1, 3, 331)


@pytest.mark.parametrize(
    ("given", "code", "hint"),
    [
        ({"at": ["logit"], "ids": [5]}, "tap-value-unknown", "logits"),
        ({"at": ["logits"]}, "tap-tokens-unclear", "--ids or --prompt"),
        ({"at": ["logits"], "ids": [5], "prompt": "five"}, "tap-tokens-unclear", "--ids or --prompt"),
        ({"at": ["logits"], "ids": [331]}, "tap-token-unknown", "0 to 330"),
        ({"at": ["logits"], "ids": []}, "prompt-empty", "one at least"),
        ({"at": ["logits"], "ids": [5], "out": Path("/nowhere/values.npz")}, "output-unwritable", "another file"),
    ],
)
def test_tap_refuses_what_a_person_may_get_wrong(given: dict[str, Any], code: str, hint: str) -> None:
    with pytest.raises(ParitasError) as error:
        tap_command(DATA / "builder" / "kept-llama", **given)
    assert error.value.code == code
    assert hint in error.value.hint
