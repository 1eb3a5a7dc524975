"""Caches that keep to their window: proven like all others, in a fixed room, and refused where they cannot be."""

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tiny
from paritas.errors import Unsupported
from paritas.export import export
from paritas.plan import Options
from paritas.runtime.caches import SLACK
from paritas.runtime.package import open_package
from paritas.runtime.session import RawSession
from paritas.targets import TARGETS
from paritas.targets.sliding import SlidingCache
from paritas.verify.evidence import Evidence
from paritas.verify.run import RUNTIMES
from paritas.verify.verdict import PROVEN_FLOORS, Verdict

WINDOWED = Options(sliding_cache=SlidingCache.WINDOWED)
ROOM = tiny.WINDOW + SLACK
PROBES = {"short", "window", "decode", "end", "chunks", "greedy", "causality"}
NAMES = ["gemma3", "mistral-window"]
MORE = [
    "gemma2",
    "phi3-window",
    "qwen2-window",
    "smollm3-window",
    "gpt_oss",
    "cohere2",
    "olmo3",
    "exaone4",
    "ministral",
]


@pytest.fixture
def package(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    return export(checkpoint("gemma3"), tmp_path / "package", TARGETS["ort"], WINDOWED).out


@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_a_windowed_package_is_proven_by_every_probe(
    name: str, checkpoint: Callable[[str], Path], judge: Callable[..., Evidence], tmp_path: Path
) -> None:
    """Prompts and chunks longer than the room, and steps past it."""
    found: list[Evidence] = []

    def prove(package: Path) -> str:
        found.append(judge(name, package, *RUNTIMES))
        return found[0].verdict.value

    exported = export(checkpoint(name), tmp_path / "package", TARGETS["ort"], WINDOWED, prove)
    assert exported.verdict == Verdict.PROVEN
    (evidence,) = found
    proven = {(each.runtime, each.id) for each in evidence.probes if each.verdict is Verdict.PROVEN}
    assert proven >= {(runtime, probe) for runtime in RUNTIMES for probe in PROBES}
    assert proven >= {("onnxruntime", "padding-right"), ("onnxruntime", "cache")}
    assert evidence.worst_floors is not None
    assert evidence.worst_floors <= PROVEN_FLOORS


def test_caches_in_place_are_those_that_are_copied(package: Path) -> None:
    """A chunk within the room, one longer than it, and steps until it is full again."""
    opened, ids = open_package(package), np.random.default_rng(0).integers(3, 250, (1, 90))
    copied, in_place = RawSession(opened, threads=1), RawSession(opened, threads=1, capacity=100)
    whole, _ = copied.forward(ids)
    one = two = None
    for start, stop in ((0, 5), (5, 50), *((place, place + 1) for place in range(50, 90))):
        wanted, one = copied.forward(ids[:, start:stop], one)
        found, two = in_place.forward(ids[:, start:stop], two)
        assert np.array_equal(found, wanted)
        assert np.abs(found - whole[:, start:stop]).max() < 1e-4
    assert one is not None
    assert two is not None
    assert all(two.in_place)
    assert all(np.array_equal(a, b) for a, b in zip(copied.held(one), in_place.held(two), strict=True))
    assert {cache.shape()[2] for cache in two.caches} == {ROOM, 100}
    assert copied.goes_back
    assert not in_place.goes_back
    with pytest.raises(ValueError, match="gone on in place"):
        in_place.kept(one, two, ids[:, :2], 1)


def test_ort_genai_makes_the_room_and_takes_a_padded_batch(package: Path) -> None:
    """Rows padded on the right, as its tokenizer pads them: each is what it is alone."""
    og: Any = importlib.import_module("onnxruntime_genai")
    model = og.Model(str(package))
    rows = np.random.default_rng(1).integers(3, 250, (2, 40)).astype(np.int32)

    def run(batch: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        params = og.GeneratorParams(model)
        params.set_search_options(
            max_length=60, do_sample=False, top_k=1, repetition_penalty=1.0, batch_size=len(batch)
        )
        generator = og.Generator(model, params)
        generator.append_tokens(batch)
        first = np.array(generator.get_output("logits"))
        generator.generate_next_token()
        return first, np.array(generator.get_logits()), generator.get_output("present.0.key").shape[2]

    padded = rows.copy()
    padded[1, 33:] = tiny.PAD
    first, then, room = run(padded)
    assert room == ROOM
    for row, length in ((0, 40), (1, 33)):
        alone, after, _ = run(rows[row : row + 1, :length])
        assert np.abs(first[row, :length] - alone[0]).max() < 1e-4
        assert np.abs(then[row] - after[0]).max() < 1e-4


def test_what_is_written(package: Path) -> None:
    config = json.loads((package / "genai_config.json").read_text())
    window = config["model"]["decoder"]["sliding_window"]
    told = {"window_size": tiny.WINDOW, "cache_slack": 0, "slide_key_value_cache": False, "slide_inputs": False}
    graph = onnx.load(package / "model.onnx", load_external_data=False).graph
    attention = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    kept = [any(a.name == "sliding_window_cache" and a.i for a in node.attribute) for node in attention]
    windows = [next(a.i for a in node.attribute if a.name == "local_window_size") for node in attention]
    assert kept == [window == tiny.WINDOW for window in windows]
    assert 0 < sum(kept) < len(kept)
    assert window == told | {"layers": [layer for layer, windowed in enumerate(kept) if windowed]}
    caches = [value for value in (*graph.input, *graph.output) if "key" in value.name]
    lengths = {value.name: value.type.tensor_type.shape.dim[2].dim_param for value in caches}
    assert lengths["past_key_values.0.key"] == lengths["present.0.key"] == "window_length"
    assert json.loads((package / "evidence" / "export.json").read_text())["sliding_cache"] == "windowed"


@pytest.mark.parametrize(
    ("name", "target", "more", "why"),
    [
        ("llama", "ort", {}, "no layer has one that is shorter than the context of 128"),
        ("gemma3", "ort", {"context": tiny.WINDOW}, "no layer has one that is shorter than the context of 8"),
        ("gemma3", "onnx", {}, "target onnx does not write every layer"),
        ("gemma4", "ort", {}, "target ort does not write every layer"),
        ("gemma3", "ort", {"provider": "webgpu"}, "does not do so on webgpu"),
        ("gemma3", "ort", {"drafter": "any"}, "the drafter looks at keys that have left it"),
    ],
)
def test_what_cannot_keep_to_a_window_is_refused_before_any_work(
    name: str, target: str, more: dict[str, object], why: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(Unsupported, match="sliding-cache-unsupported") as refused:
        export(checkpoint(name), tmp_path / "package", TARGETS[target], replace(WINDOWED, **more))
    assert why in refused.value.fact
    assert not list(tmp_path.iterdir())
