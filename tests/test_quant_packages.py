"""Our own packages of less than fp32: each is proven against the weights that it stores, in every family."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import tiny
from paritas.audit.run import audit
from paritas.checkpoint import open_checkpoint
from paritas.errors import ParitasError, Unsupported
from paritas.export import export
from paritas.plan import Options, prepare
from paritas.progress import silent
from paritas.quant.recipe import recipe
from paritas.runtime.package import open_package
from paritas.targets import TARGETS
from paritas.verify import run
from paritas.verify.evidence import Evidence
from paritas.verify.rounded import truths_for
from paritas.verify.verdict import Verdict
from paritas.weights import Blocks

RAW = ("onnxruntime",)
SHARP = {"short", "decode", "greedy"}
WRITTEN = [  # checkpoint, dtype, quant, provider
    ("llama", "int4", None, "cpu"),
    ("llama-biased", "int4", "block=16,method=rtn,symmetric=yes,keep8=lm_head", "cpu"),
    ("gemma3", "int8", None, "cpu"),
    ("gemma3", "fp16", None, "cuda"),
    ("llama", "int4", "block=64", "cuda"),
    ("llama", "bf16", None, "cuda"),
    ("gpt_oss", "int4", None, "cpu"),
]


def options(name: str, dtype: str, quant: str | None = None, provider: str = "cpu") -> Options:
    return Options(text_only="multimodal" in name, recipe=recipe(dtype, quant), provider=provider)


def judged(package: Path, checkpoint: Path, *runtimes: str) -> Evidence:
    opened = open_package(package)
    truths = truths_for(opened, open_checkpoint(checkpoint), silent, cache=True, power=False)
    return run.judge(opened, truths, runtimes or RAW)


def check(evidence: Evidence) -> str:
    """The verdict, and that the probes which see most were all put. In words, what was measured."""
    verdicts = {record.id: (record.verdict, record.reason) for record in evidence.probes}
    wrong = {id_: each for id_, each in verdicts.items() if each[0] not in (Verdict.PROVEN, Verdict.NOT_TESTED)}
    assert not wrong
    assert evidence.verdict is Verdict.PROVEN, [finding.message for finding in evidence.findings]
    assert {verdicts[probe][0] for probe in SHARP} == {Verdict.PROVEN}, verdicts
    assert evidence.precision is not None
    assert evidence.precision.verdict is Verdict.PROVEN
    return f"{evidence.worst_floors:.2f} floors, {dict(evidence.precision.formats)}"


@pytest.mark.parametrize(("name", "dtype", "quant", "provider"), WRITTEN)
def test_a_package_is_proven_against_the_weights_that_it_stores(
    name: str,
    dtype: str,
    quant: str | None,
    provider: str,
    checkpoint: Callable[[str], Path],
    record_property: Callable[[str, object], None],
    tmp_path: Path,
) -> None:
    done = export(checkpoint(name), tmp_path / "out", TARGETS["ort"], options(name, dtype, quant, provider))
    record_property("measured", check(judged(tmp_path / "out", checkpoint(name))))
    assert done.parameters == prepare(open_checkpoint(checkpoint(name)), TARGETS["ort"], Options()).parameters


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int4", "int8", "fp16"])
@pytest.mark.parametrize("name", tiny.every())
def test_every_family_is_proven_in_every_precision(
    name: str,
    dtype: str,
    checkpoint: Callable[[str], Path],
    record_property: Callable[[str, object], None],
    tmp_path: Path,
) -> None:
    provider = "cpu" if dtype.startswith("int") else "cuda"
    chosen = options(name, dtype, None, provider)
    export(checkpoint(name), tmp_path / "out", TARGETS["ort"], chosen)
    record_property("measured", check(judged(tmp_path / "out", checkpoint(name))))


def test_both_runtimes_prove_integers(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    export(checkpoint("gemma3"), tmp_path / "out", TARGETS["ort"], options("gemma3", "int4"))
    evidence = judged(tmp_path / "out", checkpoint("gemma3"), *run.RUNTIMES)
    check(evidence)
    genai = {record.id for record in evidence.probes if record.runtime == "onnxruntime-genai" and record.worst_floors}
    assert genai >= SHARP


def test_a_tied_table_lies_in_the_file_once(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    export(checkpoint("llama"), tmp_path / "out", TARGETS["ort"], options("llama", "int4"))
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    places = {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in graph.initializer
        if "embed_tokens.weight.int4" in tensor.name
    }
    assert len(places) == 2
    first, second = places.values()
    assert (first["offset"], first["length"]) == (second["offset"], second["length"])
    rows = [node for node in graph.node if node.op_type == "GatherBlockQuantized"]
    heads = [node for node in graph.node if node.op_type == "MatMulNBits" and set(node.input) & set(rows[0].input)]
    assert (len(rows), len(heads)) == (1, 1)
    assert {"model.embed_tokens.weight.scales", "model.embed_tokens.weight.zeros"} <= set(heads[0].input)


def test_what_keeps_its_bits_is_in_the_record_and_on_the_card(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    chosen = options("llama-biased", "int4", "keep8=lm_head,keep32=o_proj")
    done = export(checkpoint("llama-biased"), tmp_path / "out", TARGETS["ort"], chosen)
    record = json.loads((tmp_path / "out" / "evidence" / "export.json").read_text())
    assert (record["dtype"], record["bytes"]) == ("int4", done.bytes)
    by_bits = {how.split()[0]: names for how, names in record["matrices"].items()}
    assert by_bits["int8"] == ["lm_head.weight"]
    assert all("o_proj" in name for name in by_bits["fp32"])
    assert len(by_bits["int4"]) == 1 + 3 * 6
    card = (tmp_path / "out" / "README.md").read_text()
    assert "int4 in blocks of 32, zero points, search (19)" in card
    assert "int8 in blocks of 32, zero points, search (1)" in card


@pytest.mark.parametrize(("dtype", "provider"), [("int4", "cpu"), ("fp16", "cuda")])
def test_an_audit_has_nothing_to_say(
    dtype: str, provider: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    export(checkpoint("gemma3"), tmp_path / "out", TARGETS["ort"], options("gemma3", dtype, None, provider))
    assert not audit(tmp_path / "out", str(checkpoint("gemma3"))).findings


def test_norms_stay_fp32_where_everything_else_is_narrow(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    export(checkpoint("gemma3"), tmp_path / "out", TARGETS["ort"], options("gemma3", "bf16", None, "cuda"))
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    norms = {kind for name, kind in kinds.items() if "norm" in name}
    assert norms == {onnx.TensorProto.FLOAT}
    named = {name: kind for name, kind in kinds.items() if "norm" not in name and kind != onnx.TensorProto.INT64}
    assert named.pop("embed_scale") == onnx.TensorProto.FLOAT  # bf16 has no 8.48
    floats = set(named.values())
    assert floats == {onnx.TensorProto.BFLOAT16}
    data = (tmp_path / "out" / "model.onnx.data").read_bytes()
    name = "model.layers.0.input_layernorm.weight"
    stored = {entry.key: entry.value for t in graph.initializer if t.name == name for entry in t.external_data}
    start, length = int(stored["offset"]), int(stored["length"])
    want = tiny.tensor(checkpoint("gemma3"), name) + np.float32(1)
    assert np.array_equal(np.frombuffer(data[start : start + length], np.float32), want)


@pytest.mark.parametrize(
    ("target", "dtype", "provider", "fragments"),
    [
        ("ort", "fp16", "cpu", ("cpu", "widen", "--dtype int8", "--ep cuda")),
        ("ort", "bf16", "cpu", ("no bf16", "--ep cuda")),
        ("ort", "bf16", "webgpu", ("webgpu", "--dtype int8", "--ep cuda")),
        ("ort", "int8", "dml", ("dml", "--dtype fp16", "--ep cpu")),
        ("onnx", "int4", "cpu", ("target onnx", "--target ort")),
    ],
)
def test_what_does_not_run_is_refused_before_any_work(
    target: str,
    dtype: str,
    provider: str,
    fragments: tuple[str, ...],
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    with pytest.raises(Unsupported, match="precision-unsupported") as refusal:
        export(checkpoint("llama"), tmp_path / "out", TARGETS[target], options("llama", dtype, None, provider))
    assert all(fragment in f"{refusal.value.fact} {refusal.value.hint}" for fragment in fragments)
    assert not list(tmp_path.iterdir())


def test_a_device_that_is_not_here_is_marked_as_not_tested(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    export(checkpoint("llama"), tmp_path / "out", TARGETS["ort"], options("llama", "int4", None, "webgpu"))
    config = json.loads((tmp_path / "out" / "genai_config.json").read_text())
    assert config["model"]["decoder"]["session_options"]["provider_options"] == [{"webgpu": {}}]
    record = json.loads((tmp_path / "out" / "evidence" / "export.json").read_text())
    assert (record["provider"], record["provider_verdict"]) == ("webgpu", "not tested")
    assert "webgpu: **not tested**" in (tmp_path / "out" / "README.md").read_text()


def test_a_weight_beyond_fp16_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "loud"
    tiny.every()["llama"](folder)
    tensors = load_file(folder / tiny.WEIGHTS)
    tensors["model.layers.0.mlp.down_proj.weight"][3, 5] = 1e6
    save_file(tensors, folder / tiny.WEIGHTS, {"format": "pt"})
    with pytest.raises(ParitasError, match="weight-beyond-dtype") as refusal:
        export(folder, tmp_path / "out", TARGETS["ort"], options("llama", "fp16", None, "cuda"))
    assert "down_proj" in refusal.value.fact
    assert not (tmp_path / "out").exists()


def test_the_range_of_fp16_is_measured_before_it_overflows(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    def proven(package: Path) -> str:
        return Verdict.PROVEN

    chosen = options("gemma3", "fp16", None, "cuda")
    export(checkpoint("gemma3"), tmp_path / "out", TARGETS["ort"], chosen, proven)
    ranges = json.loads((tmp_path / "out" / "evidence" / "ranges.json").read_text())
    layers = {int(node.split("layers.")[1].split("/")[0]) for node in ranges if "mlp/down_proj" in node}
    assert layers == set(range(7))
    assert all(0 < value < 65504 for value in ranges.values())
    with pytest.raises(ParitasError, match="fp16-overflow") as refusal:
        export(
            checkpoint("llama-loud"),
            tmp_path / "loud",
            TARGETS["ort"],
            options("llama-loud", "fp16", None, "cuda"),
            proven,
        )
    assert "layers.0/mlp" in refusal.value.place
    assert not (tmp_path / "loud").exists()


def test_a_matrix_that_is_chosen_apart_is_stored_so(checkpoint: Callable[[str], Path]) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    own = recipe("int4").choosing({name: Blocks(8, 32)})
    plan = prepare(open_checkpoint(checkpoint("llama")), TARGETS["ort"], Options(recipe=own))
    assert str(Blocks(8, 32)) in plan.stored
    assert plan.stored[str(Blocks(8, 32))] == [name]
