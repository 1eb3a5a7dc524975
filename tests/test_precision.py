"""Packages of less than fp32: right ones are proven against the weights that they store, wrong ones are not.

Every fault of the second table is one that the noise of its precision hides from whoever looks at the logits alone.
"""

import io
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import numpy as np
import pytest
from rich.console import Console

import rounding
import tiny
from paritas.checkpoint import open_checkpoint
from paritas.errors import Invalid
from paritas.export import export
from paritas.plan import Options
from paritas.progress import silent
from paritas.runtime.package import Package, open_package
from paritas.targets import TARGETS
from paritas.verify import rounded, run
from paritas.verify.evidence import Evidence, PrecisionRecord, json_schema, read
from paritas.verify.junit import to_xml
from paritas.verify.replay import replay
from paritas.verify.report import render
from paritas.verify.rounded import truths_for
from paritas.verify.verdict import Verdict
from rounding import Change, blocks, both, brain, changed, half, swapped, times

RAW = "onnxruntime"
NORMS = ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "RMSNormalization", "LayerNormalization")
INT4, INT4_ZEROS = blocks(4, 32, symmetric=True), blocks(4, 32, symmetric=False)


@dataclass(frozen=True)
class Made:
    """A package: of which checkpoint, on which target, how rounded, and what is wrong with it.

    Attributes:
        misread: other values in the config.json that the export reads.
    """

    checkpoint: str
    target: str
    how: Change
    faults: tuple[Change, ...] = ()
    misread: Mapping[str, Any] | None = None


RIGHT: dict[str, Made] = {
    "int4, symmetric": Made("llama", "ort", INT4),
    "int4, zero points, blocks of 16": Made("llama", "onnx", blocks(4, 16, symmetric=False, level=0)),
    "int4, biases and a head of its own": Made("llama-biased", "ort", INT4_ZEROS),
    "int4, window and softcap": Made("gemma3", "ort", INT4),
    "int4, a table of int4 beside a head of fp32": Made("llama", "ort", blocks(4, 32, symmetric=False, table=True)),
    "int4, zero points of a half": Made("llama", "onnx", rounding.half_quadratic),
    "int4, scales by search": Made("llama-wide", "ort", rounding.searched),
    "int4, DequantizeLinear": Made("llama", "onnx", blocks(4, 32, symmetric=True, qdq=True)),
    "int8": Made("llama", "ort", blocks(8, 32, symmetric=True)),
    "int8, zero points": Made("gemma3", "onnx", blocks(8, 32, symmetric=False)),
    "int8, MatMulInteger": Made("llama", "ort", rounding.dynamic),
    "fp16": Made("llama", "ort", half()),
    "fp16, fp32 inputs and outputs": Made("llama", "onnx", half(io=True)),
    "fp16, biases and llama3 RoPE": Made("llama-biased", "ort", half()),
    "fp16, norms of fp32": Made("gemma3", "ort", half(*NORMS)),
    "fp16 with int4": Made("llama", "ort", both(INT4, half())),
    "bf16": Made("llama", "ort", brain()),
    "a table of fp16 beside a head of fp32": Made("llama", "ort", rounding.half_table),
    "int4 with a table of fp16": Made("llama", "ort", both(rounding.half_table, INT4)),
    "int4, text half of a multimodal checkpoint": Made("gemma3-multimodal", "ort", INT4),
}

Q0, DOWN1 = r"layers\.0\.self_attn\.q_proj\.weight", r"layers\.1\.mlp\.down_proj\.weight"
NORM = r"norm\.weight"
EPS = {"rms_norm_eps": lambda eps: 10 * eps}
THETA = {"rope_parameters": lambda rope: rope | {"rope_theta": 1.01 * rope["rope_theta"]}}
WINDOW = {"sliding_window": tiny.WINDOW + 1}
UNCAPPED = {"final_logit_softcapping": None}
SCALE = {"query_pre_attn_scalar": 24.5}

WRONG: dict[str, Made] = {
    # what is stored
    "int4, a scale off by 1 %": Made("llama", "ort", INT4, (changed(Q0 + "_scales", times(1.01)),)),
    "int4, all scales off by 1 %": Made("llama", "ort", INT4, (changed("_scales", times(0.99)),)),
    "int4, one block of other integers": Made("llama", "ort", INT4, (changed(Q0 + "_Q4", rounding.one_block),)),
    "int4, one zero point off by one": Made(
        "llama", "ort", INT4_ZEROS, (changed(Q0 + "_zero_points", rounding.add_one_to_a_zero_point),)
    ),
    "int4, all zero points off by one": Made(
        "llama", "ort", INT4_ZEROS, (changed("_zero_points", rounding.add_one_to_zero_points),)
    ),
    "int4, a row of zeros": Made("llama-biased", "ort", INT4_ZEROS, (changed(DOWN1 + "_scales", rounding.zero_row),)),
    "int8, a scale off by 1 %": Made(
        "llama", "ort", blocks(8, 32, symmetric=True), (changed(DOWN1 + "_scales", times(1.01)),)
    ),
    "int4, a scale off by 1 %, DequantizeLinear": Made(
        "llama", "onnx", blocks(4, 32, symmetric=True, qdq=True), (changed(r"q_proj.*scale", times(1.01), only=0),)
    ),
    "int8, a scale off by 1 %, MatMulInteger": Made(
        "llama", "ort", rounding.dynamic, (changed(r"q_proj.weight_scale", times(1.01), only=0),)
    ),
    "fp16, a matrix of zeros": Made("llama", "ort", half(), (changed(Q0, times(0)),)),
    "fp16, a matrix 1 % larger": Made("llama", "ort", half(), (changed(Q0, times(1.01)),)),
    "fp16, a row of the head zero": Made("llama-biased", "ort", half(), (changed(r"lm_head", rounding.zero_row),)),
    "fp16, a weight a last bit off": Made("llama", "onnx", half(), (changed(DOWN1, times(1.0006)),)),
    # where it is
    "int4, two layers' MLP swapped": Made("llama", "ort", INT4, (swapped("layers.0.mlp", "layers.1.mlp"),)),
    "int4, gate and up swapped": Made("llama", "ort", INT4, (swapped("layers.2.mlp.gate", "layers.2.mlp.up"),)),
    "int4, keys and values swapped": Made(
        "llama", "ort", INT4, (swapped("layers.1.self_attn.k", "layers.1.self_attn.v"),)
    ),
    "fp16, two layers' attention swapped": Made(
        "llama", "ort", half(), (swapped("layers.0.self_attn", "layers.2.self_attn"),)
    ),
    "fp16, norms swapped": Made("llama", "ort", half(), (swapped("layers.0.input", "layers.1.input"),)),
    # what is computed
    "int4, theta 1 % larger": Made("llama", "ort", INT4, misread=THETA),
    "int4, epsilon ten times larger": Made("llama", "ort", INT4, misread=EPS),
    "int4, window one too long": Made("gemma3", "ort", INT4, misread=WINDOW),
    "int4, attention scale 1 % smaller": Made("gemma3", "ort", INT4, misread=SCALE),
    "int4, softcap dropped": Made("gemma3", "ort", INT4, misread=UNCAPPED),
    "int4, 1 + weight rounded to bf16": Made("gemma3", "ort", INT4, (changed(NORM, rounding.to_bf16),)),
    "int4, embedding scale rounded to bf16": Made("gemma3", "ort", INT4, (changed("embed_scale", rounding.to_bf16),)),
    "int8, epsilon ten times larger": Made("llama", "ort", blocks(8, 32, symmetric=True), misread=EPS),
    "fp16, theta 1 % larger": Made("llama", "ort", half(), misread=THETA),
    "fp16, epsilon ten times larger": Made("llama", "onnx", half(), misread=EPS),
    "fp16, window one too long": Made("gemma3", "ort", half(*NORMS), misread=WINDOW),
    "fp16, 1 + weight rounded to fp16": Made("gemma3", "ort", half()),
    "fp16, 1 + weight rounded to bf16": Made("gemma3", "ort", half(*NORMS), (changed(NORM, rounding.to_bf16),)),
    "fp16, cosines of angles in fp16": Made("llama", "ort", half(), (changed(r"\.cos", lambda _: cosines_in_fp16()),)),
    "fp16 with int4, epsilon ten times larger": Made("llama", "ort", both(INT4, half()), misread=EPS),
    "bf16, epsilon ten times larger": Made("llama", "ort", brain(), misread=EPS),
}


def cosines_in_fp16() -> np.ndarray:
    """A table [CONTEXT, head_dim / 2] whose angles were rounded to fp16 before the cosine was taken."""
    inverse = (5_000.0 ** -(np.arange(0, tiny.HEAD_DIM, 2) / tiny.HEAD_DIM)).astype(np.float16)
    angles = (np.arange(tiny.CONTEXT, dtype=np.float16)[:, None] * inverse).astype(np.float16)
    return np.cos(angles.astype(np.float32))


@pytest.fixture(scope="module")
def make(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Made], tuple[Path, Path]]:
    """The package of a line of the tables, and the checkpoint that it has to be held against."""
    root = tmp_path_factory.mktemp("precision")

    @cache
    def whole(name: str, target: str, misread: tuple[tuple[str, Any], ...]) -> Path:
        source, out = checkpoint(name), Path(f"{root}/{name}-{target}-{len(list(root.iterdir()))}")
        if misread:
            source = rounding.checkpoint_with(source, out.with_name(f"{out.name}-checkpoint"), **dict(misread))
        export(source, out, TARGETS[target], Options(text_only="multimodal" in name))
        return out

    def build(made: Made) -> tuple[Path, Path]:
        source = whole(made.checkpoint, made.target, tuple((made.misread or {}).items()))
        out = root / f"package-{len(list(root.iterdir()))}"
        return rounding.rounded(source, out, made.how, *made.faults), checkpoint(made.checkpoint)

    return build


def judged(package: Path, checkpoint: Path, *runtimes: str) -> Evidence:
    opened = open_package(package)
    truths = truths_for(opened, open_checkpoint(checkpoint), silent, cache=True, power=False)
    return run.judge(opened, truths, runtimes or (RAW,))


def precision(evidence: Evidence) -> PrecisionRecord:
    assert evidence.precision is not None
    return evidence.precision


def in_words(evidence: Evidence) -> str:
    worst = max(
        (r.worst_floors for r in evidence.probes if r.id != "shipped" and r.worst_floors is not None), default=0
    )
    return f"{evidence.verdict}, {worst:,.1f} floors; {precision(evidence).reason or 'weights right'}"


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_package_is_proven_against_its_own_weights(
    name: str, make: Callable[[Made], tuple[Path, Path]], record_property: Callable[[str, object], None]
) -> None:
    evidence = judged(*make(RIGHT[name]))
    record_property("measured", in_words(evidence))
    assert evidence.verdict is Verdict.PROVEN, [f.message for f in evidence.findings]
    assert precision(evidence).verdict is Verdict.PROVEN
    assert precision(evidence).compared.startswith("its own ")
    sharp = [r for r in evidence.probes if r.id in ("short", "long", "window", "decode", "greedy")]
    assert {record.verdict for record in sharp} == {Verdict.PROVEN}, [record.reason for record in sharp]


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_seen_through_the_rounding(
    name: str, make: Callable[[Made], tuple[Path, Path]], record_property: Callable[[str, object], None]
) -> None:
    evidence = judged(*make(WRONG[name]))
    record_property("measured", in_words(evidence))
    assert evidence.verdict is Verdict.DIVERGES, in_words(evidence)


INVALID: dict[str, Made] = {
    "int4, a matrix of other integers": Made("llama", "ort", INT4, (changed(Q0 + "_Q4", rounding.other_integers),)),
    "fp16, a matrix of noise": Made("llama", "ort", half(), (changed(Q0, rounding.noise),)),
}


@pytest.mark.parametrize("name", INVALID)
def test_what_is_near_no_parameter_is_not_compared(name: str, make: Callable[[Made], tuple[Path, Path]]) -> None:
    evidence = judged(*make(INVALID[name]))
    assert evidence.verdict is Verdict.INVALID
    assert "weight-unmatched" in {finding.code for finding in evidence.findings}
    assert all(record.worst_floors is None for record in evidence.probes if record.id != "shipped")


def test_integers_that_make_up_for_their_errors_are_not_explained(make: Callable[[Made], tuple[Path, Path]]) -> None:
    made = Made("llama", "ort", INT4, (changed(r"layers\.\d\.mlp.*_Q4", rounding.compensated),))
    evidence = judged(*make(made))
    assert evidence.verdict is Verdict.UNEXPLAINED
    assert "GPTQ" in (precision(evidence).reason or "")
    document = ElementTree.fromstring(to_xml(evidence))
    assert document.attrib["failures"] == "1"  # every probe is proven: CI has to see the weights
    assert document.find(".//testcase[@name='weights']/failure") is not None


@pytest.mark.parametrize("how", [INT4, half()], ids=["int4", "fp16"])
def test_both_runtimes_are_asked_in_fp32_arithmetic(how: Change, make: Callable[[Made], tuple[Path, Path]]) -> None:
    evidence = judged(*make(Made("llama", "ort", how)), *run.RUNTIMES)
    assert evidence.verdict is Verdict.PROVEN
    for runtime in run.RUNTIMES:
        proven = {r.id for r in evidence.probes if r.runtime == runtime and r.verdict is Verdict.PROVEN}
        assert {"short", "long", "decode", "greedy"} <= proven


def test_each_loss_has_its_number(make: Callable[[Made], tuple[Path, Path]]) -> None:
    evidence = judged(*make(Made("llama", "ort", INT4)))
    parts = {part.part: part for part in precision(evidence).quality}
    assert list(parts) == ["graph", "weights", "activations", "package"]
    assert parts["graph"].kl < 1e-9 < parts["activations"].kl < parts["weights"].kl
    assert parts["graph"].flips == 0 < parts["weights"].flips
    assert parts["graph"].difference < 1e-4 < parts["activations"].difference < parts["weights"].difference
    assert precision(evidence).arithmetic == ("accuracy_level 4",)
    assert len(precision(evidence).matrices) == 21
    assert all(matrix.steps is not None and matrix.steps <= 0.5 + 1e-3 for matrix in precision(evidence).matrices)


def test_what_cannot_be_put_into_fp32_arithmetic_is_not_proven(
    make: Callable[[Made], tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(package: Package) -> Package:
        raise Invalid("precision-not-exact", "QMoE cannot be computed in fp32")

    monkeypatch.setattr(rounded, "exact", refused)
    evidence = judged(*make(RIGHT["fp16"]))
    assert evidence.verdict is Verdict.NOT_TESTED
    (shipped,) = (record for record in evidence.probes if record.id == "shipped")
    assert (shipped.worst_floors or 99) < 5
    assert shipped.verdict is Verdict.NOT_TESTED
    assert "a smaller fault is not seen" in (shipped.reason or "")


def test_an_overflow_as_shipped_is_seen_although_the_graph_is_right(make: Callable[[Made], tuple[Path, Path]]) -> None:
    evidence = judged(*make(Made("llama-loud", "onnx", half())))
    verdicts = {record.id: record.verdict for record in evidence.probes}
    assert verdicts["short"] is Verdict.PROVEN
    assert verdicts["shipped"] is Verdict.DIVERGES
    assert evidence.verdict is Verdict.DIVERGES
    assert "logits-not-finite" in {finding.code for finding in evidence.findings}


def test_the_record_says_what_was_compared_and_can_be_asked_again(
    make: Callable[[Made], tuple[Path, Path]], tmp_path: Path
) -> None:
    package, source = make(RIGHT["fp16 with int4"])
    first = run.verify(package, source, runtimes=(RAW,), power=False)
    written = read(first.write(tmp_path))
    jsonschema.validate(json.loads(written.to_json()), json_schema())
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(render(written))
    text = console.export_text()
    assert "compared with: its own dequantised weights, loaded into transformers; both in fp32 arithmetic" in text
    assert "rounding of activations" in text
    again = replay(written, package, source)
    assert again.evidence.settings.remembered
    assert again.evidence.verdict is first.verdict is Verdict.PROVEN
    assert [row.now is None for row in again.rows] == [row.then is None for row in again.rows]
    assert replay(written, package, source, cache=False).evidence.verdict is Verdict.PROVEN


def test_a_package_that_this_machine_cannot_run_as_it_is_says_so(make: Callable[[Made], tuple[Path, Path]]) -> None:
    evidence = judged(*make(RIGHT["bf16"]))
    (shipped,) = (record for record in evidence.probes if record.id == "shipped")
    assert shipped.verdict is Verdict.NOT_TESTED
    assert "as shipped it does not run here" in (shipped.reason or "")


KEPT = Path(__file__).parent / "data" / "peers"


@pytest.mark.parametrize("name", ["builder-int4/kept-llama", "mobius-f16/kept-llama"])
def test_kept_packages_of_other_exporters_are_proven(name: str) -> None:
    package = KEPT / name
    assert judged(package, KEPT / "checkpoints" / package.name).verdict is Verdict.PROVEN


PROVEN = Verdict.PROVEN
BUILT = Path(os.environ.get("PARITAS_PEERS", Path(__file__).parent.parent / ".peers"))
PEERS = {
    **dict.fromkeys(
        [f"builder-int4/{case}" for case in ("llama", "llama-biased", "granite", "mistral", "qwen3")], PROVEN
    ),
    "builder-int4/gemma2": Verdict.DIVERGES,  # 1 + w rounded to bf16, embedding scale to two decimals
    **dict.fromkeys(
        [f"builder-fp16/{case}" for case in ("llama", "llama-biased", "granite", "qwen2", "qwen3")], PROVEN
    ),
    "builder-fp16/gemma2": Verdict.DIVERGES,  # the same
    **dict.fromkeys([f"mobius-f16/{case}" for case in ("llama", "granite", "nemotron", "olmo2")], PROVEN),
    "mobius-f16/gemma2-144": Verdict.DIVERGES,  # local and global layers swapped
    "mobius-bf16/llama": PROVEN,
    "mobius-bf16/qwen3": PROVEN,
    "mobius-f16/gemma3": Verdict.DIVERGES,  # attention scale, final softcap
}


@pytest.mark.peers
@pytest.mark.parametrize("name", PEERS)
def test_other_exporters_packages(name: str) -> None:
    package = BUILT / "packages" / name
    assert judged(package, BUILT / "checkpoints" / package.name).verdict is PEERS[name]
