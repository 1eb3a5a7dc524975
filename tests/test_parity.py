"""Every tiny checkpoint on every target, through the real export and the real verification."""

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import tiny
from paritas.checkpoint import open_checkpoint
from paritas.errors import Unsupported
from paritas.export import export
from paritas.plan import Options, prepare
from paritas.spec import Attention, Dynamic, LongRope
from paritas.targets import TARGETS
from paritas.verify.evidence import Evidence, ProbeRecord
from paritas.verify.run import RUNTIMES
from paritas.verify.verdict import PROVEN_FLOORS, Verdict

RAW = ("onnxruntime",)
IN_BOTH_RUNTIMES = {("gemma3", "onnx"), ("gemma3n", "onnx"), ("lfm2", "onnx")} | {
    (name, "ort")  # one for each model.type that ORT GenAI has, and one for each way to write attention
    for name in (
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3n",
        "gemma4",
        "gemma4-experts",
        "gpt_oss",
        "granite",
        "lfm2",
        "llama",
        "llama-heads-of-20",
        "mistral-window",
        "nemotron",
        "phi3-longrope",
        "phi3-window",
        "qwen2-window",
        "qwen3-yarn",
        "smollm3-window",
    )
}
ASKED = {"short", "decode", "chunks", "greedy", "padding", "padding-right", "causality", "cache"}
OF_BATCHES = {"padding", "padding-right"}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", tiny.every())
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
    asked = ASKED | _crossing(checkpoint(name))
    operators = _operators(tmp_path / "package")
    fused = "GroupQueryAttention" in operators
    assert not [each for each in operators if each.startswith("Skip")]  # less exact than a sum and a norm
    assert {(p.runtime, p.id) for p in evidence.probes} == {(r, p) for r in runtimes for p in asked}
    for probe in evidence.probes:
        if not _cannot(probe, fused):
            assert probe.verdict is Verdict.PROVEN, (probe.id, probe.runtime, probe.reason, probe.worst_floors)
            assert probe.worst_floors is not None
            assert probe.worst_floors <= PROVEN_FLOORS
    assert (evidence.verdict, exported.kept, exported.out.is_dir()) == (Verdict.PROVEN, True, True)


def _crossing(folder: Path) -> set[str]:
    """The probes that cross a length at which the model changes, or else one long sequence; and the last positions.

    All of the context is one long sequence, if nothing changes within it.
    """
    spec = prepare(open_checkpoint(folder), TARGETS["onnx"], Options(text_only="multimodal" in folder.name)).spec
    attentions = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, Attention)]
    switches = any(each.rope and isinstance(each.rope.scaling, LongRope | Dynamic) for each in attentions)
    windows = any(each.window for each in attentions)
    return (
        ({"window"} if windows else {"long"})
        | ({"switch", "switch-decode"} if switches else set())
        | ({"end"} if windows or switches else set())
    )


def _operators(package: Path) -> set[str]:
    return {node.op_type for node in onnx.load(package / "model.onnx", load_external_data=False).graph.node}


def _cannot(probe: ProbeRecord, fused: bool) -> bool:
    """What need not be tested: left padding where positions come from lengths; ORT GenAI's batches and caches."""
    plain = probe.runtime == "onnxruntime"
    if probe.id not in {*OF_BATCHES, "cache"} or (plain and not (fused and probe.id == "padding")):
        return False
    assert probe.verdict is Verdict.NOT_TESTED
    assert probe.reason
    return True


@pytest.mark.parametrize(
    ("name", "operators", "why"),
    [
        ("nemotron-wide", {"GroupQueryAttention"}, ""),
        ("nemotron", {"RotaryEmbedding", "GroupQueryAttention"}, "not 8 of 16"),
        ("llama-heads-of-24", {"RotaryEmbedding", "GroupQueryAttention"}, "not 24 of 24"),
        ("llama-dynamic", {"RotaryEmbedding", "GroupQueryAttention"}, "changes with the length"),
        ("phi3-longrope", {"RotaryEmbedding", "GroupQueryAttention"}, "changes with the length"),
        ("llama-heads-of-20", {"RotaryEmbedding", "Attention"}, "no heads of 20"),
    ],
)
def test_what_the_fused_operator_cannot_do_is_written_in_others_and_recorded(
    name: str, operators: set[str], why: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    export(checkpoint(name), tmp_path / "package", TARGETS["ort"])
    package = tmp_path / "package"
    assert _operators(package) & {"RotaryEmbedding", "GroupQueryAttention", "Attention"} == operators
    fallbacks = json.loads((package / "evidence" / "export.json").read_text())["fallbacks"]
    assert [why in reason for reason in fallbacks] == [True] * bool(why)
    shared = json.loads((package / "genai_config.json").read_text())["search"]["past_present_share_buffer"]
    assert shared == ("GroupQueryAttention" in operators)


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
