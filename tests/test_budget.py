"""A budget: bits for each matrix, the smallest package that keeps it."""

import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paritas.checkpoint import open_checkpoint
from paritas.errors import ParitasError
from paritas.export import export
from paritas.measuring.choose import Budget, Level, choose
from paritas.plan import Options
from paritas.progress import silent
from paritas.quant.recipe import recipe
from paritas.runtime.package import open_package
from paritas.targets import TARGETS
from paritas.verify import run
from paritas.verify.rounded import truths_for
from paritas.verify.verdict import Verdict
from paritas.weights import Blocks, Float

FOUR, EIGHT = Blocks(4, 32), Blocks(8, 32)
REST = 1000


def levels(sizes: list[tuple[int, float]]) -> dict[str, list[Level]]:
    """Matrices of so many bytes in 4 bits, which cause so much divergence there."""
    return {
        f"m{i}": [Level(FOUR, size, kl), Level(EIGHT, 2 * size, kl / 250), Level(Float.FP32, 7 * size, 0.0)]
        for i, (size, kl) in enumerate(sizes)
    }


MATRICES = st.lists(st.tuples(st.integers(1, 1000), st.floats(0.0001, 1.0)), min_size=1, max_size=5).map(levels)


def every(matrices: Mapping[str, list[Level]]) -> list[tuple[int, float]]:
    """Bytes and divergence of every choice that there is."""
    return [(REST + sum(x.bytes for x in taken), sum(x.kl for x in taken)) for taken in product(*matrices.values())]


@given(MATRICES, st.floats(0.00001, 2.0))
def test_a_choice_keeps_the_divergence_and_is_nearly_the_smallest(
    matrices: Mapping[str, list[Level]], most: float
) -> None:
    found = choose(matrices, REST, Budget(kl=most))
    assert found.kl <= most
    smallest = min(size for size, kl in every(matrices) if kl <= most)
    step = max(each[-1].bytes for each in matrices.values())
    assert smallest <= found.bytes <= smallest + step  # taking the best step first is off by one step at the most
    assert found.bytes == REST + sum(
        next(level.bytes for level in matrices[name] if level.storage == how) for name, how in found.storage.items()
    )


@given(MATRICES, st.integers(1000, 20_000))
def test_a_choice_keeps_the_bytes(matrices: Mapping[str, list[Level]], most: int) -> None:
    least = REST + sum(each[0].bytes for each in matrices.values())
    if most < least:
        with pytest.raises(ParitasError, match="budget-unreachable"):
            choose(matrices, REST, Budget(bytes=most))
        return
    found = choose(matrices, REST, Budget(bytes=most))
    assert least <= found.bytes <= most
    sizes = [point.bytes for point in found.curve]
    assert sizes == sorted(sizes)
    divergences = [point.kl for point in found.curve]
    assert divergences == sorted(divergences, reverse=True)


def test_a_package_of_a_budget_is_proven_and_says_how_it_was_chosen(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    plain = export(checkpoint("llama"), tmp_path / "plain", TARGETS["ort"], Options(recipe=recipe("int4")))
    budget = Options(recipe=recipe("int4"), budget=Budget(kl=0.01))
    done = export(checkpoint("llama"), tmp_path / "out", TARGETS["ort"], budget)
    record = json.loads((tmp_path / "out" / "evidence" / "budget.json").read_text())
    assert record["kl_measured"] <= 0.01 < record["curve"][0]["kl"]
    assert record["bytes"] == done.bytes > plain.bytes
    stored = {matrix["stored"].split()[0] for matrix in record["matrices"].values()}
    assert {"int4", "int8"} <= stored
    assert len(record["matrices"]) == 22  # 3 layers of 7, and the tied table
    assert not (tmp_path / "out" / "measured").exists()
    opened = open_package(tmp_path / "out")
    truths = truths_for(opened, open_checkpoint(checkpoint("llama")), silent, cache=True, power=False)
    evidence = run.judge(opened, truths, ("onnxruntime",))
    assert evidence.verdict is Verdict.PROVEN
    assert evidence.precision is not None
    weights = next(part for part in evidence.precision.quality if part.part == "weights")
    assert weights.kl < 0.03  # on other text


def test_bytes_are_spent_where_they_help_most(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    plain = export(checkpoint("llama"), tmp_path / "plain", TARGETS["ort"], Options(recipe=recipe("int4")))
    limit = plain.bytes + 20_000
    chosen = Options(recipe=recipe("int4"), budget=Budget(bytes=limit))
    done = export(checkpoint("llama"), tmp_path / "out", TARGETS["ort"], chosen)
    record = json.loads((tmp_path / "out" / "evidence" / "budget.json").read_text())
    assert plain.bytes < done.bytes <= limit
    assert record["kl_measured"] < record["curve"][0]["kl"]


def test_a_budget_needs_integers(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(ParitasError, match="quant-wrong"):
        export(checkpoint("llama"), tmp_path / "out", TARGETS["ort"], Options(budget=Budget(kl=0.01)))
    assert not list(tmp_path.iterdir())
