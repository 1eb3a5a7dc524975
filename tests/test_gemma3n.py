"""Gemma 3n: faults that its parts make possible, put into our own export one at a time; and what it refuses.

That exports are right is shown with every family, in test_parity.py.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from checkpoints import paritas
from paritas.audit.identity import identify
from paritas.audit.run import audit
from paritas.audit.sites import sites
from paritas.audit.view import View
from paritas.checkpoint import open_checkpoint
from paritas.config import Config
from paritas.diagnose.align import align
from paritas.diagnose.capture import capture
from paritas.diagnose.reset import reset
from paritas.diagnose.rounding import rounding
from paritas.diagnose.slots import slots
from paritas.errors import ParitasError
from paritas.export import export
from paritas.families import family_of
from paritas.graph import altup, decoder, mlp, sparsity
from paritas.graph.builder import Graph
from paritas.graph.norm import Residual
from paritas.plan import Options, prepare
from paritas.runtime.package import open_package
from paritas.spec import Layer, Mlp
from paritas.targets import TARGETS
from paritas.verify.evidence import Evidence
from paritas.verify.loading import load_reference
from paritas.verify.verdict import Verdict
from test_diagnose_where import IDS, PREFILL
from test_mutants import ONNX, RAW, Fault, Mutant, first_bad, in_attention, in_spec, in_tensors, in_words
from tiny_gemma3n import OWNERS

LONE = "a scale, a norm, the embedding, the MLP or the head"
SECOND = "RoPE, or the attention's scale, softcap or q/k norm"
DISTANT = "attention over distance"  # what a fault looks like that only some tokens have
MASK = "the sliding-window mask"
STREAMS = 3


def in_altup(**change: Any) -> Fault:
    return in_spec(lambda spec: replace(spec, altup=replace(spec.altup, **change)))  # type: ignore[type-var]


def in_per_layer(**change: Any) -> Fault:
    return in_spec(lambda spec: replace(spec, per_layer=replace(spec.per_layer, **change)))  # type: ignore[type-var]


def in_sparsity(change: Callable[[float], float | None]) -> Fault:
    def changed(layer: Layer) -> Layer:
        assert isinstance(layer.mlp, Mlp)
        return replace(layer, mlp=replace(layer.mlp, sparsity=change(layer.mlp.sparsity or 0.0)))

    return in_spec(lambda spec: replace(spec, layers=tuple(map(changed, spec.layers))))


def in_number(name: str, value: float) -> Fault:
    """A number of the graph, by its name."""
    scalar = Graph.scalar
    return lambda patch: patch.setattr(
        Graph, "scalar", lambda graph, own, called: scalar(graph, value if called == name else own, called)
    )


def of(owner: Any, name: str, wrong: Callable[..., Any]) -> Fault:
    """Something of a module or a class in place of the right one."""
    return lambda patch: patch.setattr(owner, name, wrong)


def of_the_sample(graph: Graph, share: float, gate: ir.Value) -> ir.Value:
    """torch's own default is the standard deviation of a sample."""
    width = graph.op.Cast(graph.op.Shape(gate, start=2, end=3), to=ir.DataType.FLOAT)
    last = graph.constant(np.array([-1]), "axis.last")
    apart = graph.op.Sub(gate, graph.op.ReduceMean(gate, last, keepdims=1))
    count = graph.op.Sub(width, graph.scalar(1.0, "one.fp32"))
    std = graph.op.Sqrt(graph.op.Div(graph.op.ReduceSum(graph.op.Mul(apart, apart), last, keepdims=1), count))
    least = graph.op.Mul(std, graph.scalar(sparsity.quantile(share), f"sparsity.{share!r}"))
    return graph.op.Relu(graph.op.Sub(apart, least))


def to_every_stream(graph: Graph, spec: Any, streams: ir.Value, x: ir.Value) -> ir.Value:
    return graph.op.Add(streams, graph.op.Unsqueeze(x, graph.constant(np.array([2]), "axis.2")))


def transposed(rows: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Coefficients [streams * streams, inputs], those from j to k in place of those from k to j."""
    square = rows.reshape(STREAMS, -1, rows.shape[1])
    return np.ascontiguousarray(square.swapaxes(0, 1) if square.shape[1] == STREAMS else rows.T).reshape(rows.shape)


def unscaled(graph: Graph, x: ir.Value, size: ir.Value) -> ir.Value:
    return x


def without_itself(right: Callable[..., ir.Value]) -> Callable[..., ir.Value]:
    """Laurel without what it is given."""

    def wrong(graph: Graph, target: Any, spec: Any, kind: Any, hidden: int, x: ir.Value) -> ir.Value:
        return graph.op.Sub(right(graph, target, spec, kind, hidden, x), x)

    return wrong


NO_SCALE = in_altup(correct_scale=False)
LATER = in_attention(keys_of=lambda a: a.keys_of and a.keys_of - 2)
SPARSE_EVERYWHERE = in_sparsity(lambda share: share or 0.95)

MUTANTS: Mapping[str, Mutant] = {
    # activation sparsity
    "standard deviation of a sample": Mutant("gemma3n", of(mlp, "sparse", of_the_sample), LONE, 0),
    "gates not sparse": Mutant("gemma3n", in_sparsity(lambda _: None), LONE, 0),
    "sparsity of both tails": Mutant("gemma3n", in_sparsity(lambda s: (1 + s) / 2 if s else None), LONE, 0, ONNX),
    "sparse in every layer": Mutant("gemma3n", SPARSE_EVERYWHERE, LONE, 0),
    # Laurel
    "Laurel without its input": Mutant("gemma3n", of(decoder, "laurel", without_itself(decoder.laurel)), LONE, 0),
    "sum not divided by the root of 2": Mutant("gemma3n", of(Residual, "divide", lambda *_: None), LONE, 0, ONNX),
    # AltUp
    "per-layer input given to the first stream": Mutant(
        "gemma3n", of(decoder, "add_to_others", to_every_stream), LONE, 0
    ),
    "prediction coefficients transposed": Mutant(
        "gemma3n", in_tensors(("prediction_coefs.weight",), transposed), LONE, 0, ONNX
    ),
    "correction coefficients transposed": Mutant(
        "gemma3n", in_tensors(("correction_coefs.weight",), transposed), LONE, 0
    ),
    "projections not rescaled": Mutant("gemma3n", of(altup, "_of_size", unscaled), LONE, 0),
    "router's input not divided by hidden": Mutant("gemma3n", in_number("altup.router_scale", 1.0), LONE, 0, ONNX),
    "correct_output_scale forgotten": Mutant("gemma3n", NO_SCALE, LONE, 0),
    "another stream is active": Mutant("gemma3n-active", in_altup(active=0), LONE, 0),
    # keys of another layer
    "keys of another layer of the kind": Mutant("gemma3n", LATER, LONE, 0),
    "shared keys without a window": Mutant(
        "gemma3n", in_attention(window=lambda a: None if a.keys_of else a.window), MASK, 8
    ),
    "values not normalised": Mutant("gemma3n", in_attention(v_norm=lambda _: None), LONE, 0, ONNX),
    "scores scaled by head_dim": Mutant("gemma3n", in_attention(scale=lambda a: a.head_dim**-0.5), SECOND, 1),
    # per-layer inputs
    "table not scaled": Mutant("gemma3n", in_per_layer(token_scale=1.0), LONE, 0),
    "projection not scaled": Mutant("gemma3n", in_per_layer(projection_scale=1.0), LONE, 0, ONNX),
    "sum of per-layer inputs not scaled": Mutant("gemma3n", in_per_layer(scale=1.0), LONE, 0),
    "ids outside of the table take its last row": Mutant("gemma3n", in_per_layer(outside=306), DISTANT, 4, ONNX),
    # the head
    "logits not capped": Mutant("gemma3n", in_spec(lambda spec: replace(spec, softcap=None)), LONE, 0),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_of_gemma3n_is_red_at_its_place(
    name: str,
    judge: Callable[..., Evidence],
    checkpoint: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    mutant = MUTANTS[name]
    with monkeypatch.context() as patch:
        mutant.fault(patch)
        export(checkpoint(mutant.checkpoint), tmp_path / "package", TARGETS[mutant.target], Options(drop=mutant.drop))
    evidence = judge(mutant.checkpoint, tmp_path / "package", RAW)
    record_property("measured", in_words(evidence))
    assert evidence.verdict is Verdict.DIVERGES, evidence.worst_floors
    assert mutant.signature in evidence.signatures[RAW]
    assert first_bad(evidence) == mutant.first_bad


def test_the_quantile_has_the_bits_of_torch() -> None:
    """At the published sparsity; elsewhere torch's own last bit is left out."""
    normal = torch.distributions.Normal(0, 1)
    assert sparsity.quantile(0.95) == normal.icdf(torch.tensor(0.95)).item()
    shares = np.linspace(0.01, 0.99, 99, dtype=np.float32)
    ours = np.array([sparsity.quantile(float(share)) for share in shares], np.float32)
    np.testing.assert_array_max_ulp(ours, normal.icdf(torch.from_numpy(shares)).numpy(), maxulp=2)


def test_what_layers_without_keys_ship_is_dropped_and_says_whose_keys_they_take(
    checkpoint: Callable[[str], Path],
) -> None:
    plan = prepare(open_checkpoint(checkpoint("gemma3n-multimodal")), TARGETS["onnx"], Options(text_only=True))
    shared = {name: reason for name, reason in plan.dropped.items() if "self_attn" in name}
    assert len(shared) == 3 * len(OWNERS)
    for layer, owner in OWNERS.items():
        for name in ("k_proj", "v_proj", "k_norm"):
            reason = shared[f"model.language_model.layers.{layer}.self_attn.{name}.weight"]
            assert f"keys and values of layer {owner}," in reason
    assert {name for name in plan.dropped if "self_attn" not in name} == {
        "model.vision_tower.timm_model.conv_stem.conv.weight",
        "model.audio_tower.subsample_conv_projection.input_proj_linear.weight",
        "model.embed_vision.embedding.weight",
        "model.embed_audio.embedding_projection.weight",
    }
    decoder = plan.runtime_config["model"]["decoder"]
    assert decoder["num_hidden_layers"] == 8 - len(OWNERS)
    assert [value.name for value in plan.graph.ir.inputs if value.name and value.name.endswith("key")] == [
        f"past_key_values.{layer}.key" for layer in range(8 - len(OWNERS))
    ]


def test_inspect_shows_streams_owners_and_sparsity(checkpoint: Callable[[str], Path]) -> None:
    shown = json.loads(paritas("inspect", checkpoint("gemma3n"), "--json").stdout)
    assert (shown["streams"], shown["per_layer_input"], shown["per_layer_vocab"]) == (STREAMS, 20, 307)
    assert [layer["keys_of"] for layer in shown["layers"]] == [OWNERS.get(layer) for layer in range(8)]
    assert [layer["sparsity"] for layer in shown["layers"]] == [0.95, 0.6, 0.95, None, None, None, 0.6, None]
    screen = paritas("inspect", checkpoint("gemma3n")).stdout
    assert "keys of" in " ".join(screen.split())


@pytest.mark.parametrize(
    "values",
    [
        {"altup_active_idx": 4},
        {"num_kv_shared_layers": 35},
        {"num_kv_shared_layers": 32},  # no layer of full attention is left
        {"activation_sparsity_pattern": [0.95]},
        {"activation_sparsity_pattern": [1.0] * 35},
        {"intermediate_size": [16_384] * 34},
    ],
    ids=str,
)
def test_values_that_fit_no_model_are_refused(values: Mapping[str, Any]) -> None:
    config = Config({"model_type": "gemma3n_text", **values})
    with pytest.raises(ParitasError, match="config-value-wrong"):
        family_of(config).read(config)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["gemma3n", "gemma3n-active", "gemma3n-multimodal"])
def test_the_audit_of_a_right_package_has_no_finding(
    name: str, target: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    options = Options(text_only="multimodal" in name)
    export(checkpoint(name), tmp_path / "package", TARGETS[target], options)
    assert audit(tmp_path / "package", checkpoint(name)).findings == ()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("fault", "code", "where"),
    [
        (in_sparsity(lambda _: None), "activation-dense", "layers 0, 2; layers 1, 6"),
        (in_attention(scale=lambda a: a.head_dim**-0.5), "attention-scale-wrong", "layers 0-7"),
        (in_attention(window=lambda a: None if a.keys_of else a.window), "window-wrong", "layers 5, 7"),
    ],
    ids=["dense", "scale", "window of shared keys"],
)
def test_the_audit_of_a_wrong_one_says_where(
    fault: Fault,
    code: str,
    where: str,
    target: str,
    checkpoint: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with monkeypatch.context() as patch:
        fault(patch)
        export(checkpoint("gemma3n"), tmp_path / "package", TARGETS[target])
    found = [each for each in audit(tmp_path / "package", checkpoint("gemma3n")).findings if each.severity == "error"]
    assert {each.code for each in found} == {code}
    assert "; ".join(each.where for each in found) == where


@pytest.mark.parametrize("target", TARGETS)
def test_no_region_of_a_right_package_is_wrong_by_itself(
    target: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """AltUp's router and its norm are called twice in a layer: each place of the graph has its own call."""
    source = open_checkpoint(checkpoint("gemma3n"))
    export(source.path, tmp_path / "package", TARGETS[target])
    model, _ = load_reference(source)
    captured = capture(model, IDS, PREFILL)
    package = open_package(tmp_path / "package")
    view = View(package.model, package.folder)
    alignment = align(package, view, identify(view, source.tensors), captured)
    found = reset(package, alignment, captured, rounding(model, captured))
    assert [error.region for error in found if error.is_source] == []
    assert "model.layers.0.altup.router_norm" in {module for cut in alignment.cuts for module in cut.modules}


@pytest.mark.parametrize("target", TARGETS)
def test_keys_that_another_layer_keeps_do_not_blur_whose_weights_they_are(
    target: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    source = open_checkpoint(checkpoint("gemma3n"))
    export(source.path, tmp_path / "package", TARGETS[target])
    package = open_package(tmp_path / "package")
    view = View(package.model, package.folder)
    found = slots(view, identify(view, source.tensors), sites(view), source.tensors)
    assert {slot.tensor for slot in found} == set(source.tensors)
    assert [slot.tensor for slot in found if slot.tensor not in slot.use.record.tensors] == []
