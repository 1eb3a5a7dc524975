"""Every tiny checkpoint on every target, through the real export and the real verification."""

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import tiny
from paritas.errors import Unsupported
from paritas.export import export
from paritas.plan import Options
from paritas.targets import TARGETS
from paritas.verify.evidence import Evidence, ProbeRecord
from paritas.verify.run import RUNTIMES
from paritas.verify.verdict import PROVEN_FLOORS, Verdict

RAW = ("onnxruntime",)
IN_BOTH_RUNTIMES = {("llama", "ort"), ("gemma3", "ort"), ("gemma3", "onnx")}
ASKED = {"short", "decode", "chunks", "greedy", "padding", "padding-right", "causality", "cache"}
OF_BATCHES = {"padding", "padding-right"}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", tiny.CHECKPOINTS)
def test_an_export_is_proven_by_every_probe(
    name: str,
    target: str,
    checkpoint: Callable[[str], Path],
    judge: Callable[..., Evidence],
    record_property: Callable[[str, object], None],
    tmp_path: Path,
) -> None:
    runtimes = RUNTIMES if (name, target) in IN_BOTH_RUNTIMES else RAW
    found: list[Evidence] = []

    def prove(package: Path) -> str:
        found.append(judge(name, package, *runtimes))
        return found[0].verdict.value

    options = Options(text_only="multimodal" in name)
    exported = export(checkpoint(name), tmp_path / "package", TARGETS[target], options, prove)

    (evidence,) = found
    record_property("measured", f"{evidence.worst_floors:.2f} floors, {', '.join(runtimes)}")
    long = {"window", "end"} if "gemma3" in name else {"long"}
    assert {(p.runtime, p.id) for p in evidence.probes} == {(r, p) for r in runtimes for p in ASKED | long}
    for probe in evidence.probes:
        if not _cannot(probe, target):
            assert probe.verdict is Verdict.PROVEN, (probe.id, probe.runtime, probe.reason, probe.worst_floors)
            assert probe.worst_floors is not None
            assert probe.worst_floors <= PROVEN_FLOORS
    assert (evidence.verdict, exported.kept, exported.out.is_dir()) == (Verdict.PROVEN, True, True)


def _cannot(probe: ProbeRecord, target: str) -> bool:
    """What need not be tested: left padding where positions come from lengths; ORT GenAI's batches and caches."""
    plain = probe.runtime == "onnxruntime"
    if probe.id not in {*OF_BATCHES, "cache"} or (plain and (target == "onnx" or probe.id != "padding")):
        return False
    assert probe.verdict is Verdict.NOT_TESTED
    assert probe.reason
    return True


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["llama", "llama-biased", "gemma3"])
def test_every_table_is_stored_once(name: str, target: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    export(checkpoint(name), tmp_path / "package", TARGETS[target])
    data = (tmp_path / "package" / "model.onnx.data").read_bytes()
    tables = [n for n in ("model.embed_tokens.weight", "lm_head.weight") if n in tiny.names(checkpoint(name))]
    assert [data.count(tiny.tensor(checkpoint(name), table).tobytes()) for table in tables] == [1] * len(tables)
    shape = [tiny.VOCAB, tiny.HIDDEN]
    graph = onnx.load(tmp_path / "package" / "model.onnx", load_external_data=False).graph
    assert sum(sorted(each.dims) == sorted(shape) for each in graph.initializer) == len(tables)


def test_a_multimodal_checkpoint_is_refused_unless_its_text_half_is_asked_for(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(Unsupported, match="checkpoint-multimodal") as refusal:
        export(checkpoint("gemma3-multimodal"), tmp_path / "package", TARGETS["onnx"])
    assert "--text-only" in refusal.value.hint
    assert not list(tmp_path.iterdir())


def test_generation_defaults_are_the_checkpoints(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    export(checkpoint("llama"), tmp_path / "package", TARGETS["ort"])
    config = json.loads((tmp_path / "package" / "genai_config.json").read_text())
    model, search = config["model"], config["search"]
    assert model["eos_token_id"] == [tiny.EOS, tiny.IM_END]
    assert (model["bos_token_id"], model["pad_token_id"]) == (tiny.BOS, tiny.PAD)
    assert (model["context_length"], search["repetition_penalty"]) == (tiny.CONTEXT, 1.1)
