"""Real weights, both targets, both runtimes: exported, proven, speaking. `-v` prints the figures at the end.

Needs a folder as ``tools/fetch_models.py`` makes it, named by PARITAS_MODELS (``.models`` otherwise).
"""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from paritas.checkpoint import open_checkpoint
from paritas.export import export
from paritas.plan import Options
from paritas.runtime.generate import Runtime, generate
from paritas.runtime.package import open_package
from paritas.runtime.sampling import Greedy
from paritas.targets import TARGETS
from paritas.verify.evidence import Evidence, ProbeRecord
from paritas.verify.prompts import PROMPTS
from paritas.verify.run import RUNTIMES, judge
from paritas.verify.truth import Truths, find_truths
from paritas.verify.verdict import PROVEN_FLOORS, Verdict

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]

MODELS = Path(os.environ.get("PARITAS_MODELS", ".models"))
SMOLLM2, GEMMA3 = "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3-270m"


@cache
def truths(model: str) -> Truths:
    return find_truths(open_checkpoint(MODELS / model))


@pytest.fixture(scope="module", params=[(m, t) for m in (SMOLLM2, GEMMA3) for t in TARGETS], ids="-".join)
def proven(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Evidence]]:
    model, target = request.param
    out = tmp_path_factory.mktemp(target) / model
    found: list[Evidence] = []

    def prove(package: Path) -> str:
        found.append(judge(open_package(package), truths(model)))
        return found[0].verdict.value

    export(MODELS / model, out, TARGETS[target], Options(allow_unproven=True), prove)
    yield out, found[0]
    (out / "model.onnx.data").unlink()  # a gigabyte each


def test_every_probe_that_can_be_put_is_proven(
    proven: tuple[Path, Evidence], record_property: Callable[[str, object], None]
) -> None:
    _, evidence = proven
    probes = [probe for probe in evidence.probes if probe.verdict is not Verdict.NOT_TESTED]
    record_property("measured", _figures(evidence))
    anywhere = {(runtime, probe) for runtime in RUNTIMES for probe in ("padding", "end")}
    assert {(probe.runtime, probe.id) for probe in evidence.probes if probe not in probes} <= {
        *anywhere,
        ("onnxruntime-genai", "padding-right"),
        ("onnxruntime-genai", "cache"),
    }
    assert [probe for probe in probes if probe.worst_floors is None or probe.worst_floors > PROVEN_FLOORS] == []
    assert evidence.verdict is Verdict.PROVEN


def test_every_prompt_goes_on_with_the_same_tokens(proven: tuple[Path, Evidence]) -> None:
    _, evidence = proven
    greedy = {probe.runtime: probe for probe in evidence.probes if probe.id == "greedy"}
    assert set(greedy) == set(RUNTIMES)
    for probe in greedy.values():
        assert len(probe.differences) == len(PROMPTS)
        assert probe.tokens is not None
        assert (probe.tokens.near_ties, probe.tokens.different) == (0, 0)


@pytest.mark.parametrize("runtime", ["genai", "onnxruntime"])
def test_it_speaks(proven: tuple[Path, Evidence], runtime: Runtime) -> None:
    package, _ = proven
    chat = SMOLLM2 in package.name
    prompt = "What is the capital of France?" if chat else "The capital of France is"
    generation = generate(
        open_package(package), prompt, max_new_tokens=20, chat=chat, sampling=Greedy(), runtime=runtime
    )
    text = "".join(generation)
    assert generation.statistics.stop_reason == ("eos" if chat else "length")
    assert ("Paris" if chat else "France") in text


def _figures(evidence: Evidence) -> str:
    parts: list[str] = []
    for runtime in RUNTIMES:
        asked = [probe for probe in evidence.probes if probe.runtime == runtime and probe.worst_floors is not None]
        worst = max(probe.worst_floors or 0 for probe in asked)
        tokens = next(probe.tokens for probe in asked if probe.id == "greedy")
        logits = ", ".join(f"{probe.id} {_greatest(probe):.1e}" for probe in asked if probe.id != "causality")
        same = f"{tokens.identical if tokens else 0} tokens identical"
        parts.append(f"{runtime}: {worst:.1f} floors, {same}; greatest logit difference: {logits}")
    return " | ".join(parts)


def _greatest(probe: ProbeRecord) -> float:
    """Over every position and the whole vocabulary."""
    return max(max(each.differences) for each in probe.differences)
