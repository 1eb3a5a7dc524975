"""Logits of the last position alone, of some, or of all: one graph, which says by itself how many it gives."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import paritas.plan as paritas_plan
from checkpoints import VOCAB, export, paritas, save_llama
from paritas.errors import Invalid
from paritas.runtime.genai import GenAISession
from paritas.runtime.package import open_package
from paritas.runtime.ports import read_ports
from paritas.runtime.session import RawSession
from paritas.spec import Decoder

TARGETS = ("ort", "onnx")
MASKS = {
    "whole": [[1] * 12, [1] * 12],
    "padded on the right": [[1] * 12, [1] * 7 + [0] * 5],
    "padded on the left": [[1] * 12, [0] * 5 + [1] * 7],
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    save_llama(folder / "model")
    for target in TARGETS:
        for logits in ("all", "last"):
            words = ("--target", target, "--logits", logits)
            assert export(folder / "model", folder / f"{target}-{logits}", *words).exit_code == 0
    return folder


def tokens(rows: int, count: int) -> np.ndarray:
    return np.random.default_rng(3).integers(3, 250, (rows, count))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("padding", MASKS)
def test_rows_are_those_of_all_positions(packages: Path, target: str, padding: str) -> None:
    if target == "ort" and padding == "padded on the left":
        return  # that target cannot be right under left padding, and says so
    mask, ids = np.array(MASKS[padding]), tokens(2, 12)
    every, _ = RawSession(open_package(packages / f"{target}-all"), threads=1).forward(ids, None, mask)
    session = RawSession(open_package(packages / f"{target}-last"), threads=1)
    assert np.array_equal(session.forward(ids, None, mask)[0], every)
    real = [int(np.flatnonzero(row).max()) for row in mask]
    for asked, count in ((None, 1), (1, 1), (3, 3), (12, 12), (40, 12)):
        raw, _ = session.advance(ids, None, mask, asked)
        last = [11, 11] if count == 12 else real
        wanted = np.stack([row[end + 1 - count : end + 1] for row, end in zip(every, last, strict=True)])
        assert np.array_equal(raw.numpy(), wanted), asked


@pytest.mark.parametrize("target", TARGETS)
def test_rows_go_on_from_a_cache(packages: Path, target: str) -> None:
    ids = tokens(1, 16)
    every = RawSession(open_package(packages / f"{target}-all"), threads=1)
    some = RawSession(open_package(packages / f"{target}-last"), threads=1, capacity=16)
    one = two = None
    for start, stop in ((0, 9), (9, 10), (10, 14), (14, 16)):
        wanted, one = every.forward(ids[:, start:stop], one)
        found, two = some.forward(ids[:, start:stop], two, rows=2)
        assert np.array_equal(found, wanted[:, -2:])


@pytest.mark.parametrize("target", TARGETS)
def test_who_does_not_ask_gets_the_last_row(packages: Path, target: str) -> None:
    """A plain session is fed as before, and ORT GenAI makes room for one row."""
    package, ids = open_package(packages / f"{target}-last"), tokens(1, 12)
    session = onnxruntime.InferenceSession(str(package.model))
    assert "num_logits_to_keep" not in {given.name for given in session.get_inputs()}
    assert [given.name for given in session.get_overridable_initializers()] == ["num_logits_to_keep"]
    assert read_ports(package.model).kept == "num_logits_to_keep"
    every, _ = RawSession(open_package(packages / f"{target}-all"), threads=1).forward(ids)
    state = GenAISession(package, threads=1, as_it_is=True).advance(ids)
    assert np.array_equal(state.generator.get_output("logits"), every[:, -1:])
    assert np.array_equal(GenAISession(package, threads=1).forward(ids)[0], every)


def test_a_package_of_last_rows_is_judged_on_all_of_them(packages: Path) -> None:
    done = paritas("verify", packages / "ort-last", "--against", packages / "model", "--no-cache", "--no-power")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("proven")


def test_a_package_of_last_rows_answers_as_one_of_all_does(packages: Path) -> None:
    words = ("--greedy", "-n", "12", "--quiet", "--runtime", "onnxruntime")
    answers = {
        logits: paritas("generate", packages / f"ort-{logits}", "Name a river. Name a river.", *words).output
        for logits in ("all", "last")
    }
    assert answers["all"] == answers["last"] != ""


def test_a_graph_that_cannot_be_asked_is_refused_as_before(packages: Path, tmp_path: Path) -> None:
    graph = onnx.load(packages / "onnx-last" / "model.onnx", load_external_data=False)
    kept = [given for given in graph.graph.input if given.name != "num_logits_to_keep"]
    del graph.graph.input[:]
    graph.graph.input.extend(kept)
    onnx.save(graph, tmp_path / "model.onnx")
    (tmp_path / "model.onnx.data").hardlink_to(packages / "onnx-last" / "model.onnx.data")
    session = RawSession(open_package(tmp_path), threads=1)
    assert session.ports.vocab == VOCAB
    with pytest.raises(Invalid, match="graph-last-logits"):
        session.forward(tokens(1, 4))


@pytest.mark.slow
def test_a_wrong_package_of_last_rows_is_diagnosed(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layers rotate by another theta; the whole model is cut into regions, its end too."""
    read = paritas_plan.read_spec

    def faulty(*given: Any) -> Decoder:
        spec: Decoder = read(*given)
        layers = (
            replace(layer, mixer=replace(layer.attention, rope=replace(layer.attention.rope, theta=2e4)))
            for layer in spec.layers
        )
        return replace(spec, layers=tuple(layers))

    monkeypatch.setattr(paritas_plan, "read_spec", faulty)
    assert export(packages / "model", tmp_path / "wrong", "--logits", "last").exit_code == 0
    done = paritas("diagnose", tmp_path / "wrong", "--against", packages / "model", "--no-cache", "--json")
    told = json.loads(done.stdout)
    assert told["diverges"]
    assert {cause["code"] for cause in told["causes"] if cause["proved"]} == {"rope-theta-wrong"}
