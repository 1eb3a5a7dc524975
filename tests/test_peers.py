"""Packages that other exporters made: right ones are proven, wrong ones are not, and nobody prepared them for it.

The small ones lie in tests/data/peers; all of them, if `make peers` has built them, are judged with `-m peers`.
"""

import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

import peers
from paritas.checkpoint import open_checkpoint
from paritas.runtime.package import open_package
from paritas.runtime.ports import read_ports
from paritas.runtime.session import RawSession
from paritas.verify import run
from paritas.verify.evidence import Evidence
from paritas.verify.truth import Truths, find_truths
from paritas.verify.verdict import Verdict

DATA = Path(__file__).parent / "data" / "peers"
BUILT = Path(os.environ.get("PARITAS_PEERS", Path(__file__).parent.parent / ".peers"))
TOKENS = np.random.default_rng(5).integers(7, 300, (1, 20))


@cache
def truths(checkpoint: Path) -> Truths:
    return find_truths(open_checkpoint(checkpoint))


def hold(evidence: Evidence, wrong: str | None) -> None:
    """The verdict is the right one, and a wrong package shows where it is wrong, in the raw session at least."""
    if wrong is None:
        assert evidence.verdict is Verdict.PROVEN, (evidence.verdict, evidence.worst_floors, evidence.signatures)
    elif wrong == peers.UNLOADABLE:
        assert evidence.verdict is Verdict.INVALID
        assert any(wrong in finding.message for finding in evidence.findings)
    else:
        assert evidence.verdict is Verdict.DIVERGES
        assert wrong in evidence.signatures["onnxruntime"]


def folders(root: Path) -> Iterator[tuple[str, str]]:
    """Exporter and case of every package below ``root`` of which something is known."""
    for exporter in peers.WRONG:
        for folder in sorted((root / exporter).glob("*/")):
            if folder.suffix != ".part":
                yield exporter, folder.name


KEPT = list(folders(DATA))
ALL = list(folders(BUILT / "packages"))


def test_packages_are_kept() -> None:
    assert len(KEPT) == 13


@pytest.mark.parametrize(("exporter", "case"), KEPT, ids=map("/".join, KEPT))
def test_a_kept_package_gets_the_verdict_that_it_deserves(exporter: str, case: str) -> None:
    evidence = run.judge(open_package(DATA / exporter / case), truths(DATA / "checkpoints" / case))
    hold(evidence, peers.WRONG[exporter].get(case))


@pytest.mark.peers
@pytest.mark.parametrize(("exporter", "case"), ALL, ids=map("/".join, ALL))
def test_a_package_gets_the_verdict_that_it_deserves(exporter: str, case: str) -> None:
    evidence = run.judge(open_package(BUILT / "packages" / exporter / case), truths(BUILT / "checkpoints" / case))
    hold(evidence, peers.WRONG[exporter].get(case))


@pytest.mark.parametrize(
    ("exporter", "case", "fresh", "capacity"),
    [
        ("builder", "kept-llama", {(1, 0, 16)}, None),
        ("builder", "kept-gemma2", {(1, 24, 16), (1, 0, 16)}, None),  # window + 16, beside a cache that grows
        ("mobius-cpu", "kept-gemma3", {(1, 0, 16)}, None),
        ("mobius-static", "kept-llama", {(192, 16)}, 192),
        ("optimum", "kept-llama", {(1, 0, 16)}, None),
    ],
)
def test_how_caches_begin_is_found_in_the_graph(
    exporter: str, case: str, fresh: set[tuple[int, ...]], capacity: int | None
) -> None:
    ports = read_ports(DATA / exporter / case / "model.onnx")
    assert {each.fresh for each in ports.caches} == fresh
    assert {each.head_dim for each in ports.caches} == {16}
    assert ports.capacity == capacity


def logits(package: Path) -> np.ndarray:
    answer, _ = RawSession(open_package(package), threads=1).forward(TOKENS)
    return answer


def test_a_graph_alone_is_a_package(tmp_path: Path) -> None:
    whole = DATA / "builder" / "kept-gemma2"
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copy(whole / name, tmp_path / name)
    assert np.array_equal(logits(tmp_path / "model.onnx"), logits(whole))


def test_a_folder_as_transformers_js_has_it_is_a_package(tmp_path: Path) -> None:
    whole = DATA / "optimum" / "kept-llama"
    (tmp_path / "onnx").mkdir()
    shutil.copy(whole / "config.json", tmp_path)
    model = onnx.load(whole / "model.onnx")
    onnx.save(
        model,
        tmp_path / "onnx" / "model.onnx",
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=0,
    )
    quantize_dynamic(whole / "model.onnx", tmp_path / "onnx" / "model_quantized.onnx", weight_type=QuantType.QUInt8)
    assert np.array_equal(logits(tmp_path), logits(whole))
    quantized = logits(tmp_path / "onnx" / "model_quantized.onnx")
    assert 0 < np.abs(quantized - logits(whole)).max() < 2


def test_a_configuration_may_tell_the_width_of_a_head() -> None:
    assert open_package(DATA / "builder" / "kept-llama").head_size == 16
    assert open_package(DATA / "mobius" / "kept-llama").head_size is None
