"""Tokens that stand between two experts: the reference's own noise, in the floor, and nowhere else."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import tiny
from paritas.checkpoint import open_checkpoint
from paritas.export import export
from paritas.plan import Options
from paritas.quant.recipe import recipe
from paritas.runtime.held import read_held
from paritas.runtime.package import open_package
from paritas.targets import TARGETS
from paritas.verify import run
from paritas.verify.floor import FP64, REROUTED, SDPA, Noise, floors, strangers, usual_floor
from paritas.verify.routing import Heard, Noises
from paritas.verify.truth import Stores, Truths, find_truths
from paritas.verify.verdict import Verdict
from test_experts import in_experts

LAYER, POSITION = 3, 11  # the last token of the short sequence, in a layer with experts
NAME = f"model.layers.{LAYER}.mlp.gate.weight"


@pytest.fixture(scope="module")
def tied(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truths]:
    """A mixture whose router has equal scores, up to rounding, for the third and the fourth expert of one token."""
    whole = checkpoint("qwen3_moe")
    ids = find_truths(open_checkpoint(whole)).by_name["short"].sequence.ids
    folder = tmp_path_factory.mktemp("tied") / "model"
    shutil.copytree(whole, folder)
    model = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
    heard: list[tuple[torch.Tensor, torch.Tensor]] = []
    model.model.layers[LAYER].mlp.gate.register_forward_hook(lambda _, given, out: heard.append((given[0], out[0])))
    with torch.inference_mode():
        model(torch.tensor([ids]))
    token, scores = heard[0][0].reshape(-1, tiny.HIDDEN)[POSITION].double(), heard[0][1][POSITION]
    third, fourth = scores.argsort(descending=True)[2:4]
    tensors = {name: value.float() for name, value in load_file(folder / tiny.WEIGHTS).items()}
    gate = tensors[NAME].double()
    gate[fourth] -= ((gate[fourth] - gate[third]) @ token) / (token @ token) * token
    save_file(tensors | {NAME: gate.float()}, folder / tiny.WEIGHTS, {"format": "pt"})
    return folder, find_truths(open_checkpoint(folder))


def test_the_other_choice_is_in_the_floor_from_its_token_on(tied: tuple[Path, Truths]) -> None:
    _, truths = tied
    assert not truths.refused
    rerouted = {name: truth for name, truth in truths.by_name.items() if REROUTED in truth.variants}
    assert {"short", "long"} <= rerouted.keys() <= truths.by_name.keys()  # the long sequence begins as the short one
    for name in ("short", "long"):
        truth = rerouted[name]
        assert np.isnan(truth.variants[REROUTED][:POSITION]).all()
        assert truth.variants[REROUTED][POSITION] > 0.1
        assert truth.floors[POSITION] > 0.1
        assert truth.floors[:POSITION].max() < 1e-4
    others = [truth for truth in truths.by_name.values() if REROUTED not in truth.variants]
    assert others
    assert max(float(truth.floors.max()) for truth in others) < 1e-4


@pytest.mark.parametrize("target", TARGETS)
def test_a_right_package_is_proven_whichever_expert_it_takes(
    target: str, tied: tuple[Path, Truths], tmp_path: Path
) -> None:
    folder, truths = tied
    export(folder, tmp_path / "package", TARGETS[target])
    evidence = run.judge(open_package(tmp_path / "package"), truths, ("onnxruntime",))
    assert evidence.verdict is Verdict.PROVEN, evidence.worst_floors


def test_a_wrong_one_is_not(tied: tuple[Path, Truths], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder, truths = tied
    with monkeypatch.context() as patch:
        in_experts(normalized=lambda _: False)(patch)
        export(folder, tmp_path / "package", TARGETS["ort"])
    evidence = run.judge(open_package(tmp_path / "package"), truths, ("onnxruntime",))
    assert evidence.verdict is Verdict.DIVERGES
    assert {probe.id for probe in evidence.probes if probe.verdict is Verdict.DIVERGES} >= {"short", "long", "greedy"}


def test_in_a_narrow_dtype_the_other_choice_is_in_the_floor_too(
    tied: tuple[Path, Truths], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, _ = tied
    options = Options(recipe=recipe("fp16"), provider="cuda")
    export(folder, tmp_path / "right", TARGETS["ort"], options)
    with monkeypatch.context() as patch:
        in_experts(normalized=lambda _: False)(patch)
        export(folder, tmp_path / "wrong", TARGETS["ort"], options)
    right = open_package(tmp_path / "right")
    stores = Stores(read_held(right.proto, right.model.parent), "fp16", "")
    truths = find_truths(open_checkpoint(folder), power=False, stores=stores)
    assert truths.rounded is not None
    usual = float(np.median(np.concatenate(list(truths.rounded.noise.values()))))
    for name in ("short", "long"):
        assert truths.rounded.noise[name][0] < 3 * usual
        assert truths.rounded.noise[name][POSITION] > 10 * usual
    verdicts = dict[str, Verdict]()
    for package in ("right", "wrong"):
        evidence = run.judge(open_package(tmp_path / package), truths, ("onnxruntime",))
        (verdicts[package],) = (probe.verdict for probe in evidence.probes if probe.id == "shipped")
    assert verdicts == {"right": Verdict.PROVEN, "wrong": Verdict.DIVERGES}


def test_a_tie_is_what_rounding_can_turn_round() -> None:
    scores = np.array([[3.0, 2.0, 1.0, 0.0], [3.0, 2.0, 2.0 - 9e-7, 0.0], [3.0, 2.0, 2.0 - 3e-6, 0.0]], np.float32)
    heard = Heard([[scores[:2], scores[2:]]], [2])  # one router, two calls, two experts for each token
    noises = Noises()
    noises.add(heard, Heard([[scores + np.float32(2**-22)]], [2]))  # 2.4e-7
    assert noises.ties(heard).swaps == ({1: (1, 2)},)
    assert noises.ties(heard).first == 1
    assert noises.ties(Heard([[scores[:1]]], [2])).first is None


def test_other_choices_are_no_part_of_what_is_usual() -> None:
    noise = Noise(np.full(8, 1e-7), {FP64: np.full(8, 1e-6), SDPA: np.full(8, 1e-6), REROUTED: np.full(8, 0.5)})
    noise.cut(REROUTED, 2)
    assert strangers({"s": noise}) == {}
    assert floors({"s": noise})["s"].tolist() == [1e-6] * 2 + [0.5] * 6
    assert usual_floor([noise.own[noise.quiet]]) == 1e-6
