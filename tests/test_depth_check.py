"""The depth check: what is left of a published configuration that does not fit, and the rows that are kept."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "tests" / "configs"


@pytest.fixture(scope="module", autouse=True)
def scripts() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield
    sys.path.remove(str(ROOT / "benchmarks"))


def reductions() -> Any:
    return importlib.import_module("reductions")


def table() -> Any:
    return importlib.import_module("depth_table")


def row(**values: Any) -> Any:
    """A row that ran and is proven."""
    told = {"layers": 2, "tokens": 2003, "parameters": 9, "widths": "real", "verdict": "proven", "floors": 1.5}
    return table().Row(**{"model": "m", "family": "f", "target": "ort", "depth": 8, "vocabulary": 4000} | told | values)


@pytest.mark.parametrize("name", ["gemma-4-E2B-it", "gemma-3n-E4B-it"])
def test_layers_that_share_caches_keep_a_layer_of_each_kind_and_an_owner(name: str) -> None:
    config = reductions().text_config(CONFIGS / name)
    two = list(reductions().ways(config))[2].values
    own = two["layer_types"][: len(two["layer_types"]) - two["num_kv_shared_layers"]]
    shared = two["layer_types"][len(own) :]
    assert set(own) == set(shared) == set(config["layer_types"])
    assert two["hidden_size"] == config["hidden_size"]
    if name.startswith("gemma-4"):
        heads = {two["layer_types"][int(layer)] for layer in two["per_layer_config"]}
        assert heads == {"full_attention"}  # the wide heads stay with their kind


def test_what_fits_is_the_nearest_to_what_is_published() -> None:
    config = reductions().text_config(CONFIGS / "OLMoE-1B-7B-0924")
    two_layers_few_experts = reductions().made(list(reductions().ways(config))[4].values)
    room = reductions().BASE + reductions().BYTES * reductions().parameters(two_layers_few_experts)
    chosen = reductions().fitting(config, room)
    assert chosen.widths == "16 of 64 experts"
    assert chosen.values["num_hidden_layers"] == 2
    assert chosen.values["hidden_size"] == config["hidden_size"]
    with pytest.raises(MemoryError, match="GiB"):
        reductions().fitting(config, reductions().BASE)


def test_a_row_stays_until_more_was_run(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    old = row()
    table().save(file, [old])
    (kept,) = table().load(file)
    assert kept == old
    assert kept.answers(row())
    assert not kept.answers(row(parameters=10))
    assert not kept.answers(row(target="onnx"))
    lost = row(verdict="not run: more than 3 minutes")
    assert table().joined([kept], lost) == [kept]
    assert table().joined([lost], kept) == [kept]
    assert not lost.answers(row())
    assert json.loads(file.read_text())[0]["floors"] == 1.5


def test_the_page_counts_what_ran_and_says_what_did_not() -> None:
    rows = [
        row(),
        row(model="whole", layers=8, tokens=4000, floors=2.25, probe="greedy"),
        row(model="bad", verdict="diverges", floors=99.0),
        replace(row(model="big"), layers=0, verdict="not run: too large"),
    ]
    page = table().page(rows)
    assert "Of 4 rows 3 ran and 2 are proven, 1 of them at full depth; the worst of these is 2.25 floors." in page
    assert "| whole | all | all | real | ort | 0 | proven | 2.25 (greedy) |" in page
    assert "| m | 2 of 8 | 2,003 of 4,000 |" in page
    assert "not run: too large" in page
    assert "diverges" in page
