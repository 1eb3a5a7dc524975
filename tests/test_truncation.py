"""An exporter on the first layers of a checkpoint: from which depth on it is wrong."""

import importlib.util
import io
import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import faulty_exporter
import tiny
from checkpoints import paritas
from paritas.checkpoint import open_checkpoint
from paritas.diagnose.beginnings import write_beginning
from paritas.diagnose.diagnosis import Truncation
from paritas.diagnose.makers import maker
from paritas.diagnose.report import render, truncated
from paritas.diagnose.run import Diagnosed, diagnose
from paritas.diagnose.shrink.exporter import Exporter, Refused
from paritas.diagnose.shrink.sizes import open_source
from paritas.diagnose.truncation import by_truncation, first_bad
from paritas.report.diagnosing import section
from paritas.runtime.package import open_package

TESTS = Path(__file__).parent
DATA = TESTS / "data" / "peers"
ENVIRONMENTS = TESTS.parent / ".peers" / "environments"
LATE = "local theta on global layers"
"""A fault of the tiny Gemma 3's third and sixth layers."""


class InProcess(Exporter):
    """An exporter with a fault, without a process of its own."""

    def run(self, model: Path, package: Path) -> None:
        faulty_exporter.main(self.words[0], str(model), str(package))


class Refusing(Exporter):
    """One that makes nothing of any model."""

    def run(self, model: Path, package: Path) -> None:
        raise Refused("too small")


class Int4(Exporter):
    """One that makes less than fp32, of whatever it is given."""

    def run(self, model: Path, package: Path) -> None:
        shutil.copytree(DATA / "builder-int4" / "kept-llama", package)


@pytest.mark.parametrize("depth", range(1, 20))
def test_the_first_bad_depth_is_found_in_few_steps(depth: int) -> None:
    for first in range(1, depth + 1):
        asked: list[int] = []

        def is_bad(layers: int, first: int = first, asked: list[int] = asked) -> bool:
            asked.append(layers)
            return layers >= first

        assert first_bad(depth, is_bad) == first
        assert len(set(asked)) == len(asked) <= 2 * first.bit_length()
    assert first_bad(depth, lambda _: False) is None


@pytest.mark.parametrize("name", ["gemma3", "llama-biased", "gemma3-transformers-4"])
def test_a_beginning_is_the_same_weights_with_fewer_layers(
    name: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    whole = open_checkpoint(checkpoint(name))
    write_beginning(whole, open_source(whole), 2, tmp_path / "two")
    kept, given = load_file(tmp_path / "two" / tiny.WEIGHTS), load_file(checkpoint(name) / tiny.WEIGHTS)
    assert kept.keys() == {each for each in given if not any(f".layers.{n}." in each for n in range(2, 9))}
    assert all(tensor.dtype == given[each].dtype and tensor.equal(given[each]) for each, tensor in kept.items())
    loading: Any = AutoModelForCausalLM.from_pretrained
    model, told = loading(tmp_path / "two", output_loading_info=True, dtype=torch.float32)
    assert not any((told["missing_keys"], told["unexpected_keys"], told["mismatched_keys"]))
    deep = loading(checkpoint(name), dtype=torch.float32)
    ids = torch.tensor([list(range(5, 5 + 2 * tiny.WINDOW))])
    with torch.inference_mode():
        one = model(ids, output_hidden_states=True).hidden_states[1]
        assert one.equal(deep(ids, output_hidden_states=True).hidden_states[1])
    assert open_checkpoint(tmp_path / "two").tokenizer_files == whole.tokenizer_files


@pytest.fixture(scope="module")
def late(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    package = tmp_path_factory.mktemp("late") / "package"
    faulty_exporter.main(LATE, str(checkpoint("gemma3")), str(package))
    return diagnose(package, checkpoint("gemma3"))


def told_of(found: Diagnosed, exporter: Exporter) -> Truncation:
    told = by_truncation(found, exporter).diagnosis.truncation
    assert told is not None
    return told


def test_the_first_depth_that_diverges_is_told(late: Diagnosed) -> None:
    found = by_truncation(late, InProcess((LATE,)))
    told = found.diagnosis.truncation
    assert told is not None
    assert told.first == 3
    assert [(each.layers, each.diverges) for each in told.tried] == [(1, False), (2, False), (3, True), (4, True)]
    assert found.diagnosis.summary()["truncation"]["first"] == 3
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(found.diagnosis))
    shown = console.export_text()
    assert "exported again, its first layer alone" in shown
    assert "the first depth that diverges" in shown
    assert "diverges from 3 layers on" in shown
    page = section(found.diagnosis)
    assert page.ladder[-2].mark == "the first depth that diverges"
    assert any("diverges from 3 layers on" in remark for remark in page.remarks)


def test_an_exporter_that_is_right_by_now_is_told(late: Diagnosed) -> None:
    told = told_of(late, InProcess(("none",)))
    assert told.first is None
    assert [(each.layers, each.diverges) for each in told.tried] == [(1, False), (2, False), (4, False), (7, False)]
    assert truncated(told).startswith("nothing that none makes of it diverges (layers compared: 1, 2, 4, 7)")


@pytest.mark.parametrize(
    ("exporter", "why"),
    [(Refusing(("theirs",)), "the exporter refuses it: too small"), (Int4(("theirs",)), "only packages of fp32")],
    ids=["refused", "int4"],
)
def test_what_cannot_be_compared_is_told(late: Diagnosed, exporter: Exporter, why: str) -> None:
    told = told_of(late, exporter)
    assert told.first is None
    assert [each.floors for each in told.tried] == [None] * 4
    assert all(each.refused.startswith(why) for each in told.tried)
    assert f"7: {why}" in truncated(told)


def test_the_command_takes_any_command_line(late: Diagnosed, checkpoint: Callable[[str], Path]) -> None:
    words = shlex.join([sys.executable, "-c", "raise ValueError('no')", "{model}", "{package}"])
    result = paritas("diagnose", late.case.package.folder, "-a", checkpoint("gemma3"), "--json", "--with", words)
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)["truncation"]
    assert {each["refused"] for each in told["tried"]} == {"the exporter refuses it: ValueError: no"}


def test_a_package_says_who_made_it(late: Diagnosed, monkeypatch: pytest.MonkeyPatch) -> None:
    def words(package: Path) -> str:
        made = maker(open_package(package))
        return "" if made is None else " ".join(made.words[1:])

    assert words(late.case.package.folder) == "-m paritas export {model} {package} --no-verify --target ort"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert words(DATA / "builder/kept-gemma2").startswith("-m onnxruntime_genai.models.builder -i {model} -o {package}")
    assert words(DATA / "mobius/kept-gemma2").endswith("--ep default")
    assert words(DATA / "mobius-cpu/kept-gemma3").endswith("--ep cpu")
    assert words(DATA / "optimum/kept-llama") == ""  # whose producer is torch
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert words(DATA / "builder/kept-gemma2") == ""


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.parametrize(
    ("exporter", "words"),
    [
        ("builder", "-m onnxruntime_genai.models.builder -i {model} -o {package} -p fp32 -e cpu -c {package}/cache"),
        ("mobius", "-m mobius build --model {model} {package} --dtype f32 --ep default"),
    ],
)
def test_released_exporters_are_wrong_from_their_first_layer_on(exporter: str, words: str) -> None:
    python, case = ENVIRONMENTS / exporter / "bin" / "python", "kept-gemma2"
    line = shlex.join([str(python), *words.split()])
    result = paritas("diagnose", DATA / exporter / case, "-a", DATA / "checkpoints" / case, "--json", "--with", line)
    told = json.loads(result.stdout)["truncation"]
    assert told["first"] == 1
    assert [each["layers"] for each in told["tried"]] == [1]
