"""Mixtures of experts, attention sinks and short convolutions: faults that they make possible, each of them red.

Also that the tiny checkpoints cannot hide one: every expert is chosen, and no token stands between two experts.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import tiny
from paritas.audit.run import audit
from paritas.errors import ParitasError
from paritas.export import export
from paritas.graph import convolution, experts
from paritas.plan import Options
from paritas.spec import ClampedSwiglu, Experts, Layer
from paritas.targets import TARGETS, mixture, standard
from paritas.targets.base import ExpertWeights
from paritas.verify.evidence import Evidence
from paritas.verify.verdict import Verdict
from test_mutants import Fault, first_bad, in_attention, in_layers, in_words
from tiny_experts import CHECKPOINTS

RAW = "onnxruntime"
FUSED = {"ort": "MoE", "onnx": "Loop"}
STACKED = {"mixtral": "block_sparse_moe.", "qwen3_moe": "mlp."}  # and what the experts' tensors are under


def in_experts(**change: Callable[[Experts], Any]) -> Fault:
    """Fields of the mixture, each computed from the right one."""

    def changed(layer: Layer) -> Layer:
        if not isinstance(layer.mlp, Experts):
            return layer
        return replace(layer, mlp=replace(layer.mlp, **{name: value(layer.mlp) for name, value in change.items()}))

    return in_layers(changed)


def in_swiglu(**change: float) -> Fault:
    def changed(spec: Experts) -> ClampedSwiglu:
        assert isinstance(spec.activation, ClampedSwiglu)
        return replace(spec.activation, **change)

    return in_experts(activation=changed)


def gate_and_up_swapped(patch: pytest.MonkeyPatch) -> None:
    def swapped(gate: Any, up: Any, down: Any, *biases: Any) -> ExpertWeights:
        turned = (biases[1], biases[0], biases[2]) if biases else ()
        return ExpertWeights(up, gate, down, *turned)

    patch.setattr(experts, "ExpertWeights", swapped)


def experts_in_another_order(patch: pytest.MonkeyPatch) -> None:
    stack = experts.Stack

    def reversed_order(shape: tuple[int, ...], sources: tuple[str, ...], part: Callable[[int], Any]) -> Any:
        return stack(shape, sources, lambda index: part(shape[0] - 1 - index))

    patch.setattr(experts, "Stack", reversed_order)


def shares_of_the_neighbour(patch: pytest.MonkeyPatch) -> None:
    chosen = mixture._chosen

    def wrong(graph: Any, spec: Experts, scores: Any) -> Any:
        choice, share = chosen(graph, spec, scores)
        return choice, graph.op.Gather(share, graph.constant(np.array([2, 1, 0]), "other.way"), axis=1)

    patch.setattr(mixture, "_chosen", wrong)


def shared_expert_without_its_gate(patch: pytest.MonkeyPatch) -> None:
    from paritas.graph import mlp

    router = mlp.router

    def wrong(graph: Any, target: Any, name: str, *given: Any) -> Any:
        y = router(graph, target, name, *given)
        return graph.op.Mul(y, graph.scalar(0.0, "zero.fp32")) if name == "shared_expert_gate" else y

    patch.setattr(mlp, "router", wrong)


def padding_is_convolved(patch: pytest.MonkeyPatch) -> None:
    real = convolution.real_tokens

    def wrong(graph: Any, *given: Any) -> Any:
        return graph.op.Max(real(graph, *given), graph.scalar(1.0, "one.fp32"))

    patch.setattr("paritas.graph.decoder.real_tokens", wrong)


def state_is_not_carried(patch: pytest.MonkeyPatch) -> None:
    convolve = standard.convolution

    def wrong(graph: Any, x: Any, weight: Any, bias: Any, past: Any) -> Any:
        y, present = convolve(graph, x, weight, bias, past)
        return y, graph.op.Mul(present, graph.scalar(0.0, "zero.fp32"))

    patch.setattr(standard, "convolution", wrong)


def state_is_one_token_old(patch: pytest.MonkeyPatch) -> None:
    convolve = standard.convolution

    def wrong(graph: Any, x: Any, weight: Any, bias: Any, past: Any) -> Any:
        op, axis = graph.op, graph.constant(np.array([2]), "axis.2")
        whole = op.Concat(past, x, axis=2)
        start, end = graph.constant(np.array([-4]), "from"), graph.constant(np.array([-1]), "to")
        return convolve(graph, x, weight, bias, past)[0], op.Slice(whole, start, end, axis)

    patch.setattr(standard, "convolution", wrong)


def kernel_turned_round(patch: pytest.MonkeyPatch) -> None:
    convolve = standard.convolution

    def wrong(graph: Any, x: Any, weight: Any, *given: Any) -> Any:
        numbers = graph.constant(np.arange(4)[::-1].copy(), "turned")
        turned = graph.op.Gather(weight, numbers, axis=2)
        turned.shape = weight.shape
        return convolve(graph, x, turned, *given)

    patch.setattr(standard, "convolution", wrong)


@dataclass(frozen=True)
class Mutant:
    """A fault, and the first wrong position of the probes of one pass; None where one pass is right."""

    checkpoint: str
    fault: Fault
    first_bad: int | None
    targets: tuple[str, ...] = ("ort", "onnx")
    drop: tuple[str, ...] = ()


ONNX = ("onnx",)
MUTANTS: Mapping[str, Mutant] = {
    "weights of the chosen not normalised": Mutant("qwen3_moe", in_experts(normalized=lambda _: False), 0),
    "weights of the chosen normalised": Mutant("olmoe", in_experts(normalized=lambda _: True), 0),
    "one expert fewer": Mutant("mixtral", in_experts(chosen=lambda spec: spec.chosen - 1), 0),
    "one expert more": Mutant("qwen2_moe", in_experts(chosen=lambda spec: spec.chosen + 1), 0),
    "gate and up swapped": Mutant("granitemoe", gate_and_up_swapped, 0),
    "gate and up swapped, columns in turn": Mutant("gpt_oss", gate_and_up_swapped, 0),
    "experts in another order": Mutant("mixtral", experts_in_another_order, 0),
    "another choice's weight": Mutant("qwen3_moe", shares_of_the_neighbour, 0, ONNX),
    "shared expert without its gate": Mutant("qwen2_moe", shared_expert_without_its_gate, 0),
    "biases of experts and router missing": Mutant(
        "gpt_oss", in_experts(bias=lambda _: False), 0, drop=("*_proj_bias", "*.mlp.gate.bias")
    ),
    "a clamp that is not there": Mutant("gpt_oss", in_swiglu(limit=1e6), 0),
    "SwiGLU with SiLU's alpha": Mutant("gpt_oss", in_swiglu(alpha=1.0), 0),
    "sinks left out": Mutant("gpt_oss", in_attention(sinks=lambda _: False), 0, drop=("*.self_attn.sinks",)),
    "queries, keys and values not clipped": Mutant("olmoe", in_attention(clip=lambda _: None), 0),
    "padding goes into the convolution": Mutant("lfm2", padding_is_convolved, None, ONNX),
    "the convolution forgets between calls": Mutant("lfm2", state_is_not_carried, None, ONNX),
    "the convolution's state is one token old": Mutant("lfm2", state_is_one_token_old, None, ONNX),
    "the convolution's kernel turned round": Mutant("lfm2", kernel_turned_round, 0, ONNX),
}


@pytest.mark.parametrize(("name", "target"), [(name, each) for name, one in MUTANTS.items() for each in one.targets])
def test_a_fault_is_red_at_its_place(
    name: str,
    target: str,
    checkpoint: Callable[[str], Path],
    judge: Callable[..., Evidence],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    tmp_path: Path,
) -> None:
    mutant = MUTANTS[name]
    with monkeypatch.context() as patch:
        mutant.fault(patch)
        export(checkpoint(mutant.checkpoint), tmp_path / "package", TARGETS[target], Options(drop=mutant.drop))
    evidence = judge(mutant.checkpoint, tmp_path / "package", RAW)
    record_property("measured", in_words(evidence))
    assert evidence.verdict is Verdict.DIVERGES, evidence.worst_floors
    assert first_bad(evidence) == mutant.first_bad


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_expert_is_chosen_and_no_token_stands_between_two(name: str, checkpoint: Callable[[str], Path]) -> None:
    """A tie in the router is the reference's own noise; a checkpoint that is full of them would prove nothing."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint(name), dtype=torch.float32)
    seen: list[tuple[torch.Tensor, ...]] = []
    for module in model.modules():
        if type(module).__name__.endswith("Router"):
            module.register_forward_hook(lambda _module, _args, output: seen.append(output))
    with torch.inference_mode():
        model(torch.arange(tiny.CONTEXT)[None])
    assert seen
    for logits, scores, choice in seen:
        assert set(choice.unique().tolist()) == set(range(logits.shape[-1]))
        best = logits.sort(descending=True).values
        between = best[:, scores.shape[-1] - 1] - best[:, scores.shape[-1]]
        assert float(between.min()) > 1e-5 * float(logits.abs().max())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", STACKED)
def test_one_tensor_for_all_experts_is_the_same_package(
    name: str, target: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Published files hold a tensor for each expert; a file that holds transformers' own modules is read as well."""
    stacked = tmp_path / "stacked"
    stacked.mkdir()
    for path in checkpoint(name).iterdir():
        (stacked / path.name).write_bytes(path.read_bytes())
    save_file(_stacked(load_file(stacked / tiny.WEIGHTS), STACKED[name]), stacked / tiny.WEIGHTS, {"format": "pt"})
    packages = tmp_path / "one", tmp_path / "other"
    for source, package in zip((checkpoint(name), stacked), packages, strict=True):
        export(source, package, TARGETS[target])
    one, other = ((package / "model.onnx.data").read_bytes() for package in packages)
    assert one == other
    graph = onnx.load(packages[0] / "model.onnx", load_external_data=False).graph
    assert FUSED[target] in {node.op_type for node in graph.node}


def _stacked(tensors: dict[str, torch.Tensor], where: str) -> dict[str, torch.Tensor]:
    old = re.compile(rf"(.*){re.escape(where)}experts\.(\d+)\.(\w+)\.weight")
    parts = {found.groups(): value for name, value in tensors.items() if (found := old.fullmatch(name))}
    kept = {name: value for name, value in tensors.items() if not old.fullmatch(name)}
    gate, up, down = ("w1", "w3", "w2") if where.startswith("block") else ("gate_proj", "up_proj", "down_proj")
    for layer in {layer for layer, _, _ in parts}:
        count = len({number for each, number, _ in parts if each == layer})
        wide = [torch.cat([parts[layer, str(i), gate], parts[layer, str(i), up]]) for i in range(count)]
        kept[f"{layer}mlp.experts.gate_up_proj"] = torch.stack(wide)
        kept[f"{layer}mlp.experts.down_proj"] = torch.stack([parts[layer, str(i), down] for i in range(count)])
    return kept


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["granitemoe", "gpt_oss", "lfm2", "qwen2_moe"])
def test_the_audit_knows_where_every_expert_comes_from(
    name: str, target: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    export(checkpoint(name), tmp_path / "package", TARGETS[target])
    found = audit(tmp_path / "package", checkpoint(name))
    assert [each for each in found.findings if each.severity != "note"] == []
    assert set(found.identity.census) == {"identity"}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["granitemoe", "gpt_oss", "qwen2_moe"])
def test_the_audit_sees_a_row_of_an_expert_that_is_zero(
    name: str, target: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    export(checkpoint(name), tmp_path / "package", TARGETS[target])
    graph = onnx.load(tmp_path / "package" / "model.onnx", load_external_data=False).graph
    (down,) = (each for each in graph.initializer if each.name == "model.layers.0.mlp.experts.down_proj.weight")
    place = {entry.key: int(entry.value) for entry in down.external_data if entry.key in ("offset", "length")}
    row = 4 * down.dims[-1]
    with (tmp_path / "package" / "model.onnx.data").open("r+b") as data:
        data.seek(place["offset"] + 3 * down.dims[1] * row)  # the first row of the fourth expert
        data.write(bytes(row))
    (finding,) = (each for each in audit(tmp_path / "package", checkpoint(name)).findings if each.severity == "error")
    assert (finding.code, finding.where) == ("weight-row-zero", down.name)


def test_an_expert_that_is_not_there_is_named(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "less"
    folder.mkdir()
    for path in checkpoint("qwen3_moe").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / tiny.WEIGHTS)
    del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
    save_file(tensors, folder / tiny.WEIGHTS, {"format": "pt"})
    with pytest.raises(ParitasError, match="tensor-missing") as refusal:
        export(folder, tmp_path / "package", TARGETS["ort"])
    assert "model.layers.1.mlp.experts.3.up_proj.weight" in refusal.value.fact
