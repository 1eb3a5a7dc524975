"""The corpus of mutants (tests/mutants): each is seen, and what a diagnosis once explained it goes on explaining.

The selection runs by default; everything, with the figures that are asked of the whole, under the marker ``slow``.
``python benchmarks/corpus.py`` prints the table with every miss.
"""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import test_family_mutants
import test_mutants
import tiny
from mutants import MUTANTS, RIGHT, Topic
from mutants.alarms import of_control
from mutants.answers import is_named
from mutants.known import PLACES
from mutants.scoring import Score, acts, of_mutant
from paritas import diagnose

SELECTION: Sequence[str] = (
    "frequencies of heads of hidden / heads (llama, ort)",
    "an adapter merged twice (llama, ort)",
    "rows of q and k left interleaved (llama, ort)",
    "pairs of neighbours (llama, ort)",
    "epsilon of the final norm alone (llama, onnx)",
    "layers exchanged (llama, ort)",
    "one layer rotates neighbours (kept-llama, mobius)",
    "queries and keys both divided by the square root of head_dim (kept-llama, optimum)",
    "values of one head negated (kept-llama, builder)",
    "theta of the class (kept-llama, builder)",
    "scale of one layer from hidden (kept-llama, mobius-static)",
    "epsilon of the final norm alone (kept-llama, mobius)",
    "RoPE tables rounded to fp16 (qwen3, ort)",
    "temperature of the generation configuration in the graph (qwen3, ort)",
    "q_norm and k_norm exchanged (qwen3, onnx)",
    "k_norm of one layer left out (qwen3, onnx)",
    "scale from hidden, q_norm and k_norm exchanged (qwen3, onnx)",
    "local layers inherit the global factor (gemma3, ort)",
    "positions start again at each step (gemma3, onnx)",
    "window one too long (gemma3, ort)",
    "padding is seen (gemma3, onnx)",
    "QK-norm after RoPE (gemma3, onnx)",
    "softcap dropped (gemma3, ort)",
    "1 + weight in bf16, embedding scale rounded (gemma3, ort)",
    "norm of the other half's sum (hyperclovax, onnx)",
    "the stream added twice for a norm alone (kept-llama, builder)",
    "gate of the shared expert left out (qwen2_moe, onnx)",
)
RIGHT_SELECTION: Sequence[str] = (
    "other names (llama, ort)",
    "Gemm for MatMul (llama, onnx)",
    "neighbours rotated, with their rows (llama, ort)",
    "query heads of a group in another order (llama, onnx)",
    "Identity behind each MatMul (kept-llama, builder)",
    "as released (kept-llama, optimum)",
    "as released (kept-llama, mobius-static)",
    "constants as nodes (qwen3, ort)",
    "nodes in another order (gemma3, onnx)",
    "as exported (gemma3, ort)",
    "as exported (phi, onnx)",
    "as exported (gemma3-multimodal, ort)",
    "as exported (gpt_neox-pythia, onnx)",
    "exported as int4 (qwen3-yarn, ort)",
)


@pytest.fixture(scope="module")
def root(shared_folder: Path) -> Iterator[Path]:
    """Where checkpoints are; the reference's answers are remembered for all tests of the file."""
    (shared_folder / "checkpoints").mkdir(exist_ok=True)
    gc.freeze()
    yield shared_folder
    gc.unfreeze()


@pytest.fixture
def score(root: Path, tmp_path: Path) -> Callable[[str], Score]:
    def of(name: str) -> Score:
        if name in MUTANTS:
            return of_mutant(MUTANTS[name], tmp_path / "package", root)
        return of_control(RIGHT[name], tmp_path / "package", root)

    return of


def test_the_corpus_is_what_it_says() -> None:
    kinds = {mutant.kind: mutant.blind for mutant in MUTANTS.values()}
    checkpoints = {mutant.checkpoint for mutant in MUTANTS.values()}
    assert len(kinds) >= 70
    assert sum(kinds.values()) >= len(kinds) / 5
    assert len(checkpoints) >= 20
    assert {mutant.topic for mutant in MUTANTS.values()} == set(Topic)
    assert {"ort", "onnx", "builder", "mobius", "optimum"} <= {mutant.source for mutant in MUTANTS.values()}
    clean = [control for control in RIGHT.values() if control.is_clean]
    assert len(clean) >= 60
    assert {control.checkpoint for control in clean} >= set(tiny.every())
    assert {control.source for control in clean if control.dtype == "fp32"} >= {"ort", "onnx"}
    assert {control.dtype for control in clean} >= {"fp32", "fp16", "int4"}


def test_every_fault_that_has_a_test_of_its_own_is_in_it() -> None:
    assert {*test_mutants.MUTANTS, *test_family_mutants.MUTANTS} == PLACES.keys()


def test_a_diagnosis_knows_nothing_of_the_corpus() -> None:
    folder = Path(os.fspath(diagnose.__path__[0]))
    assert not [file for file in folder.rglob("*.py") if "mutant" in file.read_text(encoding="utf-8")]


def test_a_wrong_answer_is_none() -> None:
    theta = MUTANTS["theta of the class (qwen3, ort)"]
    assert is_named(theta, ["rope-theta-wrong"])
    assert not is_named(theta, [])
    assert not is_named(theta, ["norm-epsilon-wrong"])
    assert not is_named(theta, ["rope-theta-wrong", "norm-epsilon-wrong"])
    pair = MUTANTS["linear scaling lost, epsilon of the class (llama-linear, ort)"]
    assert not is_named(pair, ["rope-factor-ignored"])
    assert is_named(pair, ["rope-factor-ignored", "norm-epsilon-wrong"])


def test_a_wrong_place_is_none() -> None:
    scale = replace(MUTANTS["scale of one layer from hidden (qwen3, ort)"], layers=(1,))
    assert acts(scale, "model.layers.1.self_attn[attention]")
    assert not acts(scale, "model.layers.2.self_attn[attention]")
    assert not acts(scale, "model.layers.1.mlp[activation]")
    assert not acts(scale, "lm_head")


@pytest.mark.parametrize("name", SELECTION)
def test_a_fault_is_seen_explained_proved_and_repaired(name: str, score: Callable[[str], Score]) -> None:
    found = score(name)
    assert (found.detected, found.localised, found.named, found.proved, found.repaired) == (True,) * 5, found


@pytest.mark.parametrize("name", RIGHT_SELECTION)
def test_a_right_package_raises_no_alarm(name: str, score: Callable[[str], Score]) -> None:
    found = score(name)
    assert not found.detected, found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in SELECTION])
def test_a_fault_is_seen(name: str, score: Callable[[str], Score]) -> None:
    found = score(name)
    assert found.detected, found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RIGHT if name not in RIGHT_SELECTION])
def test_another_right_package_raises_no_alarm(name: str, score: Callable[[str], Score]) -> None:
    found = score(name)
    assert not found.detected, found
