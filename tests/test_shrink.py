"""A failing checkpoint becomes a small random one that fails for the same cause, whoever the exporter is."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import tiny
from checkpoints import listing, paritas, refused
from paritas.checkpoint import open_checkpoint
from paritas.checkpoint.opening import text_only
from paritas.diagnose.shrink.candidates import smaller
from paritas.diagnose.shrink.exporter import exporter
from paritas.diagnose.shrink.random_checkpoint import write_checkpoint
from paritas.diagnose.shrink.search import Budget, Search
from paritas.diagnose.shrink.sizes import Source, kinds, ladders, open_source
from paritas.errors import ParitasError

TESTS = Path(__file__).parent
BUILDER = TESTS.parent / ".peers" / "environments" / "builder" / "bin" / "python"
INHERITED = "local layers inherit the global factor"


def faulty(fault: str, least: int = 0) -> str:
    """The command line of an exporter with a fault."""
    return shlex.join([sys.executable, str(TESTS / "faulty_exporter.py"), fault, "{model}", "{package}", str(least)])


# The search.

LADDERS = {"layers": ((0, 2), (0, 1, 2)), "hidden": (28, 72, 136), "vocabulary": (269, 331)}


def searched(shows: Callable[[Mapping[str, Any]], bool], steps: int = 40) -> tuple[Any, Search]:
    search = Search(LADDERS, lambda sizes: None if shows(sizes) else "no", Budget(steps))
    return search.run(), search


def test_the_smallest_is_tried_first_and_then_single_layers() -> None:
    found, search = searched(lambda _: True)
    assert found == {"layers": (0,), "hidden": 28, "vocabulary": 269}
    assert len(search.tried) == 2
    assert not search.exhausted


def test_each_size_goes_as_low_as_the_cause_lets_it() -> None:
    found, search = searched(lambda sizes: sizes["hidden"] >= 72 and 2 in sizes["layers"])
    assert found == {"layers": (2,), "hidden": 72, "vocabulary": 269}
    assert search.tried[0].why_not == "no"
    assert len({repr(each.sizes) for each in search.tried}) == len(search.tried)


def test_a_model_that_has_to_be_as_it_is_stays() -> None:
    found, _ = searched(lambda sizes: sizes == {"layers": (0, 1, 2), "hidden": 136, "vocabulary": 331})
    assert found == {"layers": (0, 1, 2), "hidden": 136, "vocabulary": 331}
    assert searched(lambda _: False)[0] is None


@pytest.mark.parametrize("budget", [Budget(1), Budget(40, seconds=0)], ids=["steps", "seconds"])
def test_a_budget_ends_it(budget: Budget) -> None:
    search = Search(LADDERS, lambda _: "no", budget)
    assert search.run() is None
    assert search.exhausted
    assert len(search.tried) <= 1


# Candidates.


def source_of(folder: Path) -> Source:
    return open_source(text_only(open_checkpoint(folder)))


def lowest(source: Source) -> dict[str, Any]:
    return smaller(source, {name: rungs[0] for name, rungs in ladders(source).items()})


def test_what_hangs_on_a_size_follows_it(checkpoint: Callable[[str], Path]) -> None:
    source = source_of(checkpoint("gemma3"))
    config = lowest(source)
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["num_hidden_layers"] == len(set(kinds(source))) == 2
    assert config["sliding_window"] == 4 < config["max_position_embeddings"] == 64
    assert config["rope_parameters"] == source.raw["rope_parameters"]
    assert config["query_pre_attn_scalar"] == 24
    assert (config["eos_token_id"], config["bos_token_id"], config["pad_token_id"]) == (1, 2, 0)
    assert config["num_attention_heads"] * config["head_dim"] != config["hidden_size"]


def test_the_original_context_keeps_its_part(checkpoint: Callable[[str], Path]) -> None:
    source = source_of(checkpoint("llama-biased"))
    config = lowest(source)
    assert config["rope_parameters"]["original_max_position_embeddings"] == 32 < config["max_position_embeddings"]
    assert smaller(source, {})["rope_parameters"] == source.raw["rope_parameters"]


def test_a_spelling_of_transformers_4_stays(checkpoint: Callable[[str], Path]) -> None:
    config = lowest(source_of(checkpoint("gemma3-transformers-4")))
    assert "rope_parameters" not in config
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert config["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize("name", sorted(tiny.every()))
def test_every_architecture_becomes_small_and_hides_nothing(
    name: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    source = source_of(checkpoint(name))
    config = lowest(source)
    write_checkpoint(config, tmp_path / "small")
    tensors = load_file(tmp_path / "small" / tiny.WEIGHTS)
    assert all(tensor.float().std() > 0 for tensor in tensors.values() if tensor.numel() > 1)
    vocabulary = config[source.key("vocab_size")]
    of_its_size = {key for key, tensor in tensors.items() if tensor.ndim == 2 and tensor.shape[0] == vocabulary}
    assert all("embed" in key or "head" in key or "wte" in key for key in of_its_size), of_its_size
    own = sum(tensor.numel() for tensor in load_file(checkpoint(name) / tiny.WEIGHTS).values())
    assert sum(tensor.numel() for tensor in tensors.values()) < own / 2


# The whole way.


@pytest.fixture(scope="module")
def shrunk(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Of an exporter that refuses small models: the first is skipped, and the budget ends the search."""
    out = tmp_path_factory.mktemp("shrink") / "small"
    words = ("--cause", "rope-factor-inherited", "--steps", 3, "--exporter", "Theirs 1.0", "--json")
    result = paritas("shrink", checkpoint("gemma3"), out, "--with", faulty(INHERITED, least=72), *words)
    assert result.exit_code == 0, result.output
    return out, json.loads(result.stdout)


def test_the_small_model_shows_the_cause(shrunk: tuple[Path, dict[str, Any]]) -> None:
    out, told = shrunk
    refusal, shown, _ = told["tried"]
    assert refusal["why_not"] == "the exporter refuses it: ValueError: hidden_size 28 is too small"
    assert shown["why_not"] is None
    assert told["causes"] == ["rope-factor-inherited"]
    assert told["exhausted"]
    assert set(listing(out)) >= {"ISSUE.md", "make_checkpoint.py", "checkpoint/config.json", "package/model.onnx"}
    assert [path.name for path in out.parent.iterdir()] == ["small"]
    assert json.loads((out / "checkpoint/config.json").read_text()) == told["config"]
    result = paritas("diagnose", out / "package", "-a", out / "checkpoint", "--json", "--no-cache")
    assert [cause["code"] for cause in json.loads(result.stdout)["causes"]] == ["rope-factor-inherited"]


def test_the_issue_says_all_that_a_maintainer_needs(shrunk: tuple[Path, dict[str, Any]]) -> None:
    out, told = shrunk
    text = (out / "ISSUE.md").read_text()
    assert text.startswith("# Theirs 1.0: logits of Gemma3ForCausalLM differ from transformers (rope-factor-inherited)")
    for words in (
        "faulty_exporter.py 'local layers",
        " checkpoint package ",
        "## Versions",
        "| transformers, where it",
    ):
        assert words in text
    assert f"{told['worst_floors']:,.1f}" in text
    assert "reaches the floor" in text
    assert str(out.parent) not in text
    assert (out / "make_checkpoint.py").read_text().strip() in text
    assert told["region"] in text


def test_the_script_makes_the_same_checkpoint(shrunk: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, _ = shrunk
    done = subprocess.run([sys.executable, out / "make_checkpoint.py"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert listing(tmp_path / "checkpoint") == listing(out / "checkpoint")


def test_the_region_runs_and_is_wrong(shrunk: tuple[Path, dict[str, Any]]) -> None:
    done = subprocess.run([sys.executable, shrunk[0] / "repro/repro.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "relative difference" in done.stdout


def test_the_causes_are_those_of_the_model_itself(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "small"
    line = faulty("linear scaling ignored")
    result = paritas("shrink", checkpoint("llama-linear"), out, "--with", line, "--steps", 1, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert len(told["causes"]) == 1
    assert told["sizes"]["hidden"] == 28


# What can go wrong.


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python x.py {model}", "does not say where {package} goes"),
        ("python x.py {package}", "does not say where {model} goes"),
        ("no-such-exporter {model} {package}", "which is no program here"),
        ("python 'x {model} {package}", "No closing quotation"),
    ],
)
def test_a_command_line_that_leads_nowhere(line: str, words: str, tmp_path: Path) -> None:
    refused(paritas("shrink", tmp_path, tmp_path / "out", "--with", line), "shrink-command-unclear", words)


def test_an_exporter_that_is_right(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    result = paritas("shrink", checkpoint("llama"), tmp_path / "out", "-q", "--with", faulty("none"))
    refused(result, "nothing-to-shrink", "is proven")
    assert list(tmp_path.iterdir()) == []


def test_an_exporter_that_refuses_the_model(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    result = paritas("shrink", checkpoint("llama"), tmp_path / "out", "-q", "--with", faulty("none", 1000))
    refused(result, "shrink-export-failed", "hidden_size 72 is too small")
    given = ("--cause", "window-dropped", "--steps", 1, "-q", "--with", faulty("none", 1000))
    refused(paritas("shrink", checkpoint("llama"), tmp_path / "out", *given), "shrink-cause-lost", "none of 1 random")
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_there(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    result = paritas("shrink", checkpoint("llama"), tmp_path, "--with", faulty("none"))
    refused(result, "output-exists", "remove it yourself")


def test_what_is_no_decoder(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in listing(checkpoint("llama")).items():
        (folder / name).write_bytes(content)
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
    result = paritas("shrink", folder, tmp_path / "out", "-q", "--with", faulty("none"))
    refused(result, "shrink-architecture-unknown", "vocab_size")


def test_words_are_not_read_by_a_shell(tmp_path: Path) -> None:
    program = "import pathlib, sys; pathlib.Path(sys.argv[2]).write_text(sys.argv[1])"
    line = exporter(shlex.join([sys.executable, "-c", program, "$HOME; {model}", "{package}"]))
    line.run(Path("a b"), tmp_path / "package")
    assert (tmp_path / "package").read_text() == "$HOME; a b"
    assert line.shown("m", "p").endswith("'$HOME; m' p")


def test_an_exporter_that_cannot_be_asked_has_no_versions() -> None:
    assert exporter("true {model} {package}").versions() == (None, {})
    own, versions = exporter(f"{sys.executable} -m onnxruntime.tools.x {{model}} {{package}}").versions()
    assert own == "onnxruntime"
    assert re.fullmatch(r"[\d.]+", versions["onnxruntime"])


def test_no_words_are_no_command() -> None:
    with pytest.raises(ParitasError, match="shrink-command-unclear"):
        exporter("")


@pytest.mark.peers
def test_the_builder_of_ort_genai(tmp_path: Path) -> None:
    """Two faults that hide each other, on a model of a few thousand numbers."""
    model = TESTS / "data/peers/checkpoints/kept-gemma2"
    line = (
        f"{BUILDER} -m onnxruntime_genai.models.builder -i {{model}} -o {{package}} -p fp32 -e cpu -c {{package}}/cache"
    )
    result = paritas("shrink", model, tmp_path / "out", "--with", line, "--steps", 3, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["causes"] == ["embedding-scale-rounded", "norm-offset-rounded"]
    assert told["sizes"]["hidden"] == 28
    title, *_ = (tmp_path / "out/ISSUE.md").read_text().splitlines()
    assert re.match(r"# onnxruntime-genai [\d.]+: logits of Gemma2ForCausalLM", title)
