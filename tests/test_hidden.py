"""Hidden states beside the logits: judged like everything else; and the files that model cards show."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from paritas.checkpoint import open_checkpoint
from paritas.export import export
from paritas.plan import Options
from paritas.quant.recipe import recipe
from paritas.runtime.package import open_package
from paritas.runtime.session import RawSession
from paritas.targets import TARGETS
from paritas.verify.levels import write_levels
from paritas.verify.run import verify
from paritas.verify.verdict import Verdict

RAW = ("onnxruntime",)


@pytest.mark.parametrize(
    ("model", "states"), [("gemma3", ("1", "last")), ("gemma3n", ("last",)), ("lfm2", ("0", "last"))]
)
def test_hidden_states_are_judged(
    checkpoint: Callable[[str], Path], tmp_path: Path, model: str, states: tuple[str, ...]
) -> None:
    source, out = checkpoint(model), tmp_path / "package"
    export(source, out, TARGETS["ort"], Options(hidden_states=states))
    evidence = verify(out, source, runtimes=RAW, power=False)
    record = evidence.probes[-1]
    assert (record.id, record.verdict, evidence.verdict) == ("hidden", Verdict.PROVEN, Verdict.PROVEN)
    assert record.alike is not None
    assert record.alike.least_cosine > 0.999999
    assert len(record.differences) == len(states)
    write_levels(evidence, tmp_path)
    hidden = json.loads((tmp_path / "evidence" / "l4_hidden_state.json").read_text())
    assert hidden["passes"][0]["mean_cosine"] == record.alike.cosine
    parity = json.loads((tmp_path / "evidence" / "l4_parity.json").read_text())
    assert {each["top1_agreement"] for each in parity["passes"]} == {1.0}
    texts = json.loads((tmp_path / "evidence" / "l5_generation.json").read_text())["prompts"]
    assert len(texts) == 5
    assert all(each["tokens"] == each["reference_tokens"] and each["matching"] == len(each["tokens"]) for each in texts)
    limits = (tmp_path / "evidence" / "runtime_limitations.md").read_text()
    assert "padding (onnxruntime)" in limits
    assert open_checkpoint(source).name in parity["checkpoint"]


@pytest.mark.parametrize("dtype", ["fp16", "int4"])
def test_a_hidden_state_beside_narrow_activations_loads(
    checkpoint: Callable[[str], Path], tmp_path: Path, dtype: str
) -> None:
    """What goes into the head leaves in fp32, and goes on in fp16."""
    options = Options(hidden_states=("last",), recipe=recipe(dtype), provider="cuda")
    export(checkpoint("llama"), tmp_path / "package", TARGETS["ort"], options)
    session = RawSession(open_package(tmp_path / "package"), threads=1, also=("hidden_states.2",))
    logits, state = session.forward(np.arange(3, 9)[None])
    assert np.isfinite(logits).all()
    assert state.also["hidden_states.2"].dtype == np.float32


def test_a_wrong_hidden_state_is_red_where_the_logits_are_right(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    source, out = checkpoint("llama"), tmp_path / "package"
    export(source, out, TARGETS["onnx"], Options(hidden_states=("0",), tokenizer=False))
    model = onnx.load(out / "model.onnx", load_external_data=False)
    scale = numpy_helper.from_array(np.array(1.0001, np.float32), "a.little.more")
    model.graph.initializer.append(scale)
    for node in model.graph.node:
        node.output[:] = ["state" if name == "hidden_states.0" else name for name in node.output]
        node.input[:] = ["state" if name == "hidden_states.0" else name for name in node.input]
    model.graph.node.append(onnx.helper.make_node("Mul", ["state", "a.little.more"], ["hidden_states.0"]))
    onnx.save(model, out / "model.onnx")
    evidence = verify(out, source, runtimes=RAW, power=False)
    assert evidence.verdict is Verdict.DIVERGES
    assert [finding.code for finding in evidence.findings if finding.severity == "error"] == ["hidden-diverges"]
    assert {each.verdict for each in evidence.probes[:-1]} == {Verdict.PROVEN}
