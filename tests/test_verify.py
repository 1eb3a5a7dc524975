"""Verification of right and of wrong packages: no fault may pass, and nothing right may be called wrong."""

import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from rich.console import Console
from transformers import AutoModelForCausalLM, Gemma2Config

from paritas.checkpoint import open_checkpoint
from paritas.errors import Exit, Invalid, ParitasError
from paritas.export import export
from paritas.runtime.package import open_package
from paritas.targets import TARGETS
from paritas.verify.evidence import Evidence, ProbeRecord, json_schema, read
from paritas.verify.floor import FP64, SDPA
from paritas.verify.report import render
from paritas.verify.run import judge, verify
from paritas.verify.truth import Truths, find_truths
from paritas.verify.verdict import Verdict
from tiny import CONTEXT, VOCAB, WINDOW, tiny_gemma3, tiny_llama

RAW, GENAI = "onnxruntime", "onnxruntime-genai"
WRITERS = {"gemma3": tiny_gemma3, "llama": tiny_llama}
Damage = Callable[[onnx.ModelProto], None]


class Lab:
    """Checkpoints, what the reference says of them, and packages; each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._truths: dict[str, Truths] = {}

    def checkpoint(self, kind: str) -> Path:
        path = self.folder / kind
        if not path.exists():
            WRITERS[kind](path)
        return path

    def truths(self, kind: str) -> Truths:
        if kind not in self._truths:
            self._truths[kind] = find_truths(open_checkpoint(self.checkpoint(kind)))
        return self._truths[kind]

    def package(self, kind: str, target: str) -> Path:
        path = self.folder / f"{kind}-{target}"
        if not path.exists():
            export(self.checkpoint(kind), path, TARGETS[target])
        return path

    def damaged(self, kind: str, target: str, damage: Damage, into: Path) -> Path:
        """A copy of a right package, with one fault."""
        into = into / "package"
        shutil.copytree(self.package(kind, target), into)
        model = onnx.load(into / "model.onnx")
        damage(model)
        (into / "model.onnx.data").unlink()
        onnx.save(model, into / "model.onnx")
        return into


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("verify"))


def held(lab: Lab, kind: str, package: Path, runtimes: tuple[str, ...] = (RAW,)) -> Evidence:
    return judge(open_package(package), lab.truths(kind), runtimes)


def probe(evidence: Evidence, name: str, runtime: str = RAW) -> ProbeRecord:
    return next(p for p in evidence.probes if (p.id, p.runtime) == (name, runtime))


def red(evidence: Evidence) -> set[str]:
    return {p.id for p in evidence.probes if p.verdict is Verdict.DIVERGES}


# --- right packages


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("kind", ["gemma3", "llama"])
def test_a_right_package_is_proven_in_both_runtimes(lab: Lab, kind: str, target: str) -> None:
    evidence = held(lab, kind, lab.package(kind, target), (RAW, GENAI))
    assert evidence.verdict is Verdict.PROVEN
    assert evidence.exit_code is Exit.PROVEN
    tested = {(p.id, p.runtime) for p in evidence.probes if p.verdict is Verdict.PROVEN}
    long = "window" if kind == "gemma3" else "long"
    end = {"end"} if kind == "gemma3" else set()  # the long sequence of a model without a window gets there
    alone = {("padding", RAW)} if target == "onnx" else set()
    assert tested == alone | {("padding-right", RAW), ("cache", RAW)} | {
        (name, runtime)
        for name in ("short", long, "decode", *end, "chunks", "greedy", "causality")
        for runtime in (RAW, GENAI)
    }
    tokens = probe(evidence, "greedy").tokens
    assert tokens is not None
    assert tokens.different == 0
    assert not evidence.signatures
    assert {f.code for f in evidence.findings} == {"probe-not-tested"}


def test_what_is_not_tested_is_listed_with_its_reason(lab: Lab) -> None:
    evidence = held(lab, "llama", lab.package("llama", "ort"))
    padding = probe(evidence, "padding")
    assert padding.verdict is Verdict.NOT_TESTED
    assert padding.reason is not None
    assert "GroupQueryAttention" in padding.reason
    assert "padding" in [f.where.split(",")[0] for f in evidence.findings]


def test_probes_cross_the_window(lab: Lab) -> None:
    sequences = {s.sequence.name: s.sequence for s in lab.truths("gemma3").by_name.values()}
    window = sequences["window"]
    assert len(window.ids) > 2 * WINDOW
    assert window.prefill < WINDOW < window.stop


# --- faults


def perturb(name: str, row: int, by: float) -> Damage:
    def damage(model: onnx.ModelProto) -> None:
        found = next(i for i in model.graph.initializer if i.name == name)
        values = numpy_helper.to_array(found).copy()
        values[row] += by * np.abs(values).mean()
        found.CopyFrom(numpy_helper.from_array(values, name))

    return damage


def attribute(operator: str, name: str, change: Callable[[float], float], first: int | None = None) -> Damage:
    def damage(model: onnx.ModelProto) -> None:
        nodes = [n for n in model.graph.node if n.op_type.endswith(operator)][:first]
        found = [a for n in nodes for a in n.attribute if a.name == name and helper.get_attribute_value(a) != -1]
        assert found
        for a in found:
            a.CopyFrom(helper.make_attribute(name, change(helper.get_attribute_value(a))))

    return damage


def no_softcap(model: onnx.ModelProto) -> None:
    by_output = {n.output[0]: n for n in model.graph.node}
    tanh = by_output[by_output["logits"].input[0]]
    uncapped = by_output[by_output[tanh.input[0]].input[0]]
    by_output["logits"].output[0] = "capped"
    uncapped.output[0], old = "logits", uncapped.output[0]
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = "logits"


def ignores_mask(model: onnx.ModelProto) -> None:
    """What the graph reads is a mask of ones in the shape of the one that it is given."""
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "attention_mask":
                node.input[index] = "ones"
    one = helper.make_tensor("value", onnx.TensorProto.INT64, [1], [1])
    model.graph.node.insert(0, helper.make_node("Shape", ["attention_mask"], ["mask_shape"]))
    model.graph.node.insert(1, helper.make_node("ConstantOfShape", ["mask_shape"], ["ones"], value=one))


def swapped_caches(model: onnx.ModelProto) -> None:
    """Layer 0 goes on with the keys of layer 1, and the other way round."""
    swap = {"past_key_values.0.key": "past_key_values.1.key", "past_key_values.1.key": "past_key_values.0.key"}
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = swap.get(name, name)


def nan_head(model: onnx.ModelProto) -> None:
    perturb("model.norm.weight", 3, np.nan)(model)


FAULTS: dict[str, tuple[str, str, Damage, set[str], str]] = {
    # probes that must be red, and how the signature begins
    "one row of a projection": (
        "llama",
        "onnx",
        perturb("model.layers.1.mlp.down_proj.weight", 5, 0.01),
        {"short", "long", "decode", "greedy", "padding"},
        "first bad position 0",
    ),
    "one head row": (
        "llama",
        "ort",
        perturb("model.embed_tokens.weight", 40, 0.2),
        {"short", "long"},
        "first bad position 0",
    ),
    "epsilon x 10": (
        "gemma3",
        "ort",
        attribute("SimplifiedLayerNormalization", "epsilon", lambda e: 10 * e),
        {"short", "window", "decode", "greedy"},
        "first bad position 0",
    ),
    "attention scale": (
        "gemma3",
        "onnx",
        attribute("Attention", "scale", lambda s: 1.01 * s, first=1),
        {"short", "window", "decode", "greedy", "padding"},
        "first bad position 1",
    ),
    "window + 1": (
        "gemma3",
        "ort",
        attribute("GroupQueryAttention", "local_window_size", lambda w: w + 1),
        {"window", "decode", "greedy", "short"},
        "first bad position 8: the sliding-window mask",
    ),
    "window - 1": (
        "gemma3",
        "ort",
        attribute("GroupQueryAttention", "local_window_size", lambda w: w - 1),
        {"window", "decode", "greedy", "short"},
        "first bad position 7: the sliding-window mask",
    ),
    "softcap missing": (
        "gemma3",
        "onnx",
        no_softcap,
        {"short", "window", "decode", "greedy", "padding"},
        "first bad position 0",
    ),
    "mask ignored": ("llama", "onnx", ignores_mask, {"padding"}, "only padded rows differ"),
    "caches swapped": (
        "llama",
        "onnx",
        swapped_caches,
        {"decode", "greedy", "padding"},
        "one pass agrees and step by step does not",
    ),
    "NaN": ("llama", "onnx", nan_head, {"short", "long", "decode", "greedy"}, "first bad position 0"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_red_where_it_shows(lab: Lab, tmp_path: Path, name: str) -> None:
    kind, target, damage, probes, begins = FAULTS[name]
    evidence = held(lab, kind, lab.damaged(kind, target, damage, tmp_path))
    assert evidence.verdict is Verdict.DIVERGES
    assert evidence.exit_code is Exit.DIVERGES
    assert probes <= red(evidence)
    assert evidence.signatures[RAW].startswith(begins)
    code = "logits-not-finite" if name == "NaN" else "logits-diverge"
    assert code in {f.code for f in evidence.findings}


def test_a_fault_is_red_in_genai_too(lab: Lab, tmp_path: Path) -> None:
    _, _, damage, _, begins = FAULTS["window + 1"]
    evidence = held(lab, "gemma3", lab.damaged("gemma3", "ort", damage, tmp_path), (GENAI,))
    assert evidence.verdict is Verdict.DIVERGES
    assert evidence.signatures[GENAI].startswith(begins)


def test_a_copy_that_was_only_saved_again_is_proven(lab: Lab, tmp_path: Path) -> None:
    package = lab.damaged("llama", "onnx", lambda model: None, tmp_path)
    assert held(lab, "llama", package).verdict is Verdict.PROVEN


# --- what cannot be compared


def test_another_vocabulary_is_invalid(lab: Lab, tmp_path: Path) -> None:
    other = tmp_path / "checkpoint"
    tiny_llama(other, vocab_size=VOCAB + 1)
    export(other, tmp_path / "package", TARGETS["ort"])
    evidence = held(lab, "llama", tmp_path / "package", (RAW, GENAI))
    assert evidence.verdict is Verdict.INVALID
    assert evidence.exit_code is Exit.NOT_TESTED
    found = next(f for f in evidence.findings if f.code == "vocabulary-differs")
    assert f"{VOCAB + 1} logits" in found.message
    assert evidence.worst_floors is None


def test_a_package_that_genai_cannot_load_is_invalid_and_says_so(lab: Lab, tmp_path: Path) -> None:
    package = lab.damaged("llama", "ort", lambda model: None, tmp_path)
    config = json.loads((package / "genai_config.json").read_text())
    config["model"]["decoder"]["inputs"]["input_ids"] = "no_such_input"
    (package / "genai_config.json").write_text(json.dumps(config))
    evidence = held(lab, "llama", package, (RAW, GENAI))
    assert {p.verdict for p in evidence.probes if p.runtime == GENAI} <= {Verdict.INVALID, Verdict.NOT_TESTED}
    assert evidence.verdict is Verdict.INVALID
    assert "runtime-failed" in {f.code for f in evidence.findings}


def test_a_bare_graph_is_proven_and_genai_is_not_tested(lab: Lab, tmp_path: Path) -> None:
    package = lab.damaged("llama", "ort", lambda model: None, tmp_path)
    (package / "genai_config.json").unlink()
    evidence = held(lab, "llama", package / "model.onnx", (RAW, GENAI))
    assert evidence.verdict is Verdict.PROVEN
    assert {p.verdict for p in evidence.probes if p.runtime == GENAI} == {Verdict.NOT_TESTED}
    assert [f.name for f in evidence.package] == ["model.onnx"]


def test_nothing_tested_is_not_a_pass(lab: Lab, tmp_path: Path) -> None:
    package = lab.damaged("llama", "ort", lambda model: None, tmp_path)
    (package / "genai_config.json").unlink()
    evidence = held(lab, "llama", package, (GENAI,))
    assert evidence.verdict is Verdict.NOT_TESTED
    assert evidence.exit_code is Exit.NOT_TESTED


def test_truncated_data_is_an_error_before_anything_is_loaded(lab: Lab, tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(lab.package("llama", "ort"), package)
    data = package / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-4096])
    with pytest.raises(ParitasError) as error:
        verify(package, lab.checkpoint("llama"))
    assert error.value.code == "package-data-truncated"


def test_a_checkpoint_that_transformers_would_complete_at_random_is_no_reference(lab: Lab, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(lab.checkpoint("llama"), checkpoint)
    tensors = load_file(checkpoint / "model.safetensors")
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    tensors["model.layers.1.self_attn.qk_proj.weight"] = tensors["model.norm.weight"].clone()
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    with pytest.raises(Invalid) as error:
        verify(lab.package("llama", "ort"), checkpoint)
    assert error.value.code == "reference-incomplete"
    assert "q_proj" in error.value.fact


def test_without_torch_it_says_what_to_install(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARITAS_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ParitasError) as error:
        verify(lab.package("llama", "ort"), lab.checkpoint("llama"))
    assert error.value.code == "verify-needs-torch"
    assert "torch transformers" in error.value.hint


def test_a_variant_that_the_reference_refuses_is_recorded_and_the_floor_does_without(tmp_path: Path) -> None:
    small = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64}
    config = Gemma2Config(
        vocab_size=97, hidden_size=24, intermediate_size=40, num_hidden_layers=2, sliding_window=8, **small
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    truths = find_truths(open_checkpoint(tmp_path))
    assert list(truths.refused) == [SDPA]
    for truth in truths.by_name.values():
        assert FP64 in truth.variants
        assert SDPA not in truth.variants
        assert (truth.floors > 0).all()


def test_an_unknown_runtime_is_refused(lab: Lab) -> None:
    with pytest.raises(ParitasError) as error:
        verify(lab.package("llama", "ort"), lab.checkpoint("llama"), runtimes=["tensorrt"])
    assert error.value.code == "runtime-unknown"


# --- the whole, and its record


@pytest.fixture(scope="module")
def whole(lab: Lab) -> Evidence:
    """With ids that no tokenizer gave, and in the order a command works in."""
    checkpoint = lab.folder / "no-tokenizer"
    tiny_llama(checkpoint, max_position_embeddings=CONTEXT // 2)
    for file in checkpoint.glob("*token*"):
        file.unlink()
    (checkpoint / "chat_template.jinja").unlink(missing_ok=True)
    told: list[tuple[str, int, int]] = []
    evidence = verify(
        lab.package("llama", "ort"),
        checkpoint,
        runtimes=[RAW],
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    assert all(0 <= done <= total for _, done, total in told)
    return evidence


def test_random_ids_are_said_to_be_random(whole: Evidence) -> None:
    assert whole.verdict is Verdict.PROVEN
    assert whole.settings.seed is not None
    assert "no tokenizer" in whole.settings.ids
    assert max(len(s.ids) for s in whole.sequences) <= CONTEXT // 2


def test_evidence_is_written_read_and_as_its_schema_says(whole: Evidence, tmp_path: Path) -> None:
    path = whole.write(tmp_path)
    assert path == tmp_path / "evidence" / "evidence.json"
    values = json.loads(path.read_text())
    jsonschema.validate(values, json_schema())
    assert {"verdict", "worst_floors", "probes", "findings"} <= values.keys()
    again = read(path)
    assert again.verdict is whole.verdict
    assert again.sequences[0].ids == whole.sequences[0].ids
    assert again.to_json() == whole.to_json()


def test_evidence_names_no_path(lab: Lab, whole: Evidence) -> None:
    text = whole.to_json()
    assert str(lab.folder) not in text
    assert whole.checkpoint.name == "no-tokenizer"


def test_infinite_differences_survive_the_record(lab: Lab, tmp_path: Path) -> None:
    evidence = held(lab, "llama", lab.damaged("llama", "onnx", nan_head, tmp_path))
    path = evidence.write(tmp_path)
    jsonschema.validate(json.loads(path.read_text()), json_schema())
    assert read(path).worst_floors == float("inf")


def test_the_report_is_one_screen_with_the_verdict_first(lab: Lab, tmp_path: Path) -> None:
    _, _, damage, _, begins = FAULTS["window + 1"]
    evidence = held(lab, "gemma3", lab.damaged("gemma3", "ort", damage, tmp_path), (RAW, GENAI))
    lines = list(printed(evidence))
    assert lines[0].startswith("diverges")
    assert any(begins in line for line in lines)
    assert any("GroupQueryAttention" in line for line in lines)
    assert len(lines) <= 40


def printed(evidence: Evidence) -> Iterator[str]:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render(evidence))
    yield from console.export_text().splitlines()
