"""Where the matrices of a package lie: packed anew by the runtime, used as they lie, or in the checkpoint's file."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from checkpoints import export, listing, llama_tensors, paritas, refused, save_llama, save_sharded
from paritas.runtime.package import open_package
from paritas.runtime.session import RawSession

LINKED = "checkpoint-1.onnx.data"


def logits(package: Path) -> np.ndarray:
    session = RawSession(open_package(package), threads=1)
    return session.forward(np.random.default_rng(2).integers(3, 250, (1, 24)))[0]


@pytest.mark.parametrize("layout", ["load", "link"])
@pytest.mark.parametrize("save", [save_llama, save_sharded])
def test_every_layout_computes_the_same(tmp_path: Path, save: Callable[[Path], Path], layout: str) -> None:
    model = save(tmp_path / "model")
    for each in ("fast", layout):
        assert export(model, tmp_path / each, "--layout", each).exit_code == 0
    np.testing.assert_allclose(logits(tmp_path / layout), logits(tmp_path / "fast"), rtol=0, atol=2e-4)
    assert np.abs(logits(tmp_path / "fast")).max() > 5


@pytest.mark.parametrize("name", ["gemma3", "llama"])
def test_a_linked_package_of_bf16_is_proven_and_audited(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """Norms that store their weight less 1 have to be written; all else is the checkpoint's."""
    model = tmp_path / "model"
    shutil.copytree(checkpoint(name), model)
    assert paritas("export", model, tmp_path / "out", "--link", "--no-power", "--quiet").exit_code == 0
    assert (tmp_path / "out" / LINKED).samefile(model / "model.safetensors")
    assert paritas("audit", tmp_path / "out", "--against", model).exit_code == 0
    written = (tmp_path / "out" / "model.onnx.data").stat().st_size
    assert written < (model / "model.safetensors").stat().st_size
    told = json.loads((tmp_path / "out" / "evidence" / "export.json").read_text())
    assert told["layout"] == "link"
    linked = told["linked"][LINKED]
    assert linked["checkpoint"] == "model.safetensors"
    assert linked["sha256"] == hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    assert "model.layers.0.mlp.down_proj.weight" in linked["initializers"]


def test_a_link_does_not_dangle(tmp_path: Path) -> None:
    model = save_llama(tmp_path / "model")
    assert export(model, tmp_path / "out", "--link").exit_code == 0
    before = logits(tmp_path / "out")
    shutil.rmtree(model)
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    assert np.array_equal(logits(tmp_path / "elsewhere"), before)


def test_a_checkpoint_of_links_is_linked_to_what_they_lead_to(tmp_path: Path) -> None:
    """As the Hub's cache stores it."""
    model = save_llama(tmp_path / "model")
    (model / "model.safetensors").rename(tmp_path / "blob")
    (model / "model.safetensors").symlink_to(tmp_path / "blob")
    assert export(model, tmp_path / "out", "--link").exit_code == 0
    assert not (tmp_path / "out" / LINKED).is_symlink()
    assert (tmp_path / "out" / LINKED).samefile(tmp_path / "blob")


def test_a_linked_package_is_replaced_and_the_checkpoint_stays(tmp_path: Path) -> None:
    model = save_llama(tmp_path / "model")
    before = listing(model)
    for words in (("--link",), ("--link", "--force"), ("--force",)):
        assert export(model, tmp_path / "out", *words).exit_code == 0
        assert listing(model) == before
    assert not (tmp_path / "out" / LINKED).exists()


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_what_cannot_be_linked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    model = save_llama(tmp_path / "model")

    def no(*paths: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no)
    before = listing(tmp_path)
    refused(export(model, tmp_path / "out", "--link"), "link-impossible", "model.safetensors", "leave --link out")
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    "words", [("--target", "onnx", "--link"), ("--dtype", "int4", "--layout", "load"), ("--dtype", "int8", "--link")]
)
def test_a_layout_that_the_target_or_the_precision_has_not_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    refused(export(save_llama(tmp_path / "model"), tmp_path / "out", *words), "layout-unsupported", "--dtype fp32")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_though_nothing_is_copied(tmp_path: Path, value: float) -> None:
    tensors = llama_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    model = save_llama(tmp_path / "model", tensors=tensors)
    refused(export(model, tmp_path / "out", "--link"), "weight-not-finite", "1 NaN or Inf value", "up_proj")


def test_a_package_that_loads_at_once_says_so_to_every_runtime(tmp_path: Path) -> None:
    assert export(save_llama(tmp_path / "model"), tmp_path / "out", "--layout", "load").exit_code == 0
    package = open_package(tmp_path / "out")
    assert package.session_entries == {"session.disable_prepacking": "1"}
    operators = {node.op_type for node in onnx.load(package.model, load_external_data=False).graph.node}
    assert "FusedMatMul" in operators
    assert "MatMul" not in operators
    words = ("--greedy", "-n", "4", "--quiet", "--runtime")
    answers = {r: paritas("generate", tmp_path / "out", "Hello", *words, r).output for r in ("genai", "onnxruntime")}
    assert answers["genai"] == answers["onnxruntime"] != ""
