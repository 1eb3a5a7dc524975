"""What a diagnosis makes of faults that the parts of Gemma 3n and Gemma 4 make possible, and of their right packages.

One fault of each cause runs by default. ``python benchmarks/corpus.py --only gemma3n gemma4`` prints the whole table.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

import tiny_gemma3n
import tiny_gemma4
from mutants import MUTANTS, RIGHT
from mutants.gemmas import GEMMAS
from mutants.making import checkpoint as checkpoint_of
from mutants.making import make
from mutants.scoring import STEPS, of_mutant
from paritas.checkpoint import open_checkpoint
from paritas.diagnose.parameters import differences
from paritas.diagnose.precise import beside
from paritas.progress import silent
from paritas.runtime.package import open_package
from paritas.targets import TARGETS

USUAL: Sequence[str] = (
    "standard deviation of a sample (gemma3n, ort)",
    "values not normed (gemma4, ort)",
    "correct_output_scale forgotten (gemma3n, ort)",
    "per-layer projection not scaled (gemma4, ort)",
    "per-layer gate by the other GELU (gemma4, onnx)",
)
UNEXPLAINED: Sequence[str] = (
    "Laurel without its input (gemma3n, ort)",
    "sum not divided by the root of 2 (gemma3n, onnx)",
    "per-layer input given to the first stream (gemma3n, ort)",
    "correction coefficients transposed (gemma3n, ort)",
    "projections not rescaled (gemma3n, ort)",
    "router's input not divided by hidden (gemma3n, onnx)",
    "another stream is active (gemma3n-active, ort)",
    "ids outside of the table take its last row (gemma3n, onnx)",
    "keys of its own, of stale tensors (gemma4-multimodal, ort)",
    "keys of the call alone (gemma4, onnx)",
    "values of normed keys (gemma4-experts, ort)",
    "per-layer inputs of the next layer (gemma4, ort)",
    "layer_scalar lost (gemma4, ort)",
    "router's number lost (gemma4-experts, ort)",
    "scale of each expert lost (gemma4-experts, ort)",
    "experts of the stream itself (gemma4-experts, ort)",
)
"""Seen, and no cause of it named and proved yet."""
EXPLAINED = [mutant.name for mutant in GEMMAS if mutant.name not in UNEXPLAINED]
RIGHT_USUAL: Sequence[tuple[str, str]] = (("gemma3n-active", "ort"), ("gemma4-experts", "onnx"))
RIGHT_ALL = [(name, target) for name in (*tiny_gemma3n.CHECKPOINTS, *tiny_gemma4.CHECKPOINTS) for target in TARGETS]


@pytest.fixture(scope="module")
def root(shared_folder: Path) -> Path:
    (shared_folder / "checkpoints").mkdir(exist_ok=True)
    return shared_folder


def explained(name: str, root: Path, tmp_path: Path) -> None:
    found = of_mutant(MUTANTS[name], tmp_path / "package", root)
    assert all(getattr(found, step) for step in STEPS), found


@pytest.mark.parametrize("name", USUAL)
def test_a_fault_is_named_proved_and_repaired(name: str, root: Path, tmp_path: Path) -> None:
    explained(name, root, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPLAINED if name not in USUAL])
def test_another_fault_is_named_proved_and_repaired(name: str, root: Path, tmp_path: Path) -> None:
    explained(name, root, tmp_path)


def no_suspects(name: str, target: str, root: Path, tmp_path: Path) -> None:
    package = make(RIGHT[f"as exported ({name}, {target})"], tmp_path / "package", root)
    source = open_checkpoint(checkpoint_of(name, root))
    assert differences(beside(open_package(package), source, silent, cache=True).case) == ()


@pytest.mark.parametrize(("name", "target"), RIGHT_USUAL)
def test_nothing_of_a_right_package_is_suspected(name: str, target: str, root: Path, tmp_path: Path) -> None:
    no_suspects(name, target, root, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), [each for each in RIGHT_ALL if each not in RIGHT_USUAL])
def test_nothing_of_another_right_package_is_suspected(name: str, target: str, root: Path, tmp_path: Path) -> None:
    no_suspects(name, target, root, tmp_path)
