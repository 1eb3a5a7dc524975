"""Checkpoints with quantised weights: what is read out of them, and that an export of them is proven."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantised
import tiny
from checkpoints import edit_json, export, paritas, refused
from paritas.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path, quantised.Tensors]]:
    """Format -> a checkpoint as it was, the same quantised, and what its quantised tensors stand for."""
    folder = tmp_path_factory.mktemp("quantised")

    @cache
    def build(name: str) -> tuple[Path, Path, quantised.Tensors]:
        source, write = quantised.FORMATS[name]
        plain, packed = folder / source.__name__, folder / name
        if not plain.exists():
            source(plain)
        return plain, packed, quantised.write(plain, packed, write)

    return build


@pytest.mark.parametrize("name", quantised.FORMATS)
def test_every_number_is_what_the_format_says(name: str, written: Any) -> None:
    plain, folder, meant = written(name)
    opened, source = open_checkpoint(folder), open_checkpoint(plain)
    assert opened.quantised is not None
    assert "quantization_config" not in opened.config
    assert opened.tensors.keys() == source.tensors.keys()
    assert len(meant) >= 4
    for key, tensor in opened.tensors.items():
        wanted = meant[key] if key in meant else torch.from_numpy(source.tensors[key].read())
        assert tensor.shape == tuple(wanted.shape)
        torch.testing.assert_close(torch.from_numpy(tensor.read()), wanted, rtol=2e-7, atol=0)
        assert torch.equal(torch.from_numpy(tensor.rows(1, 3)), torch.from_numpy(tensor.read()[1:3]))
        assert tensor.rows(0, 0).shape == (0, *wanted.shape[1:])


@pytest.mark.parametrize(("name", "target"), [("fp8", "ort"), ("gptq", "onnx"), ("nf4", "ort"), ("mxfp4", "onnx")])
def test_an_export_of_quantised_weights_is_proven(name: str, target: str, written: Any, tmp_path: Path) -> None:
    _, folder, _ = written(name)
    done = paritas("export", folder, tmp_path / "package", "--target", target, "--no-power", "--json")
    told = json.loads(done.stdout)
    assert told["verdict"] == "proven", done.output
    notes = [finding for finding in told["verification"]["findings"] if finding["code"] == "checkpoint-dequantised"]
    assert [open_checkpoint(folder).quantised in note["message"] for note in notes] == [True]


def test_a_scale_may_lie_in_another_shard(written: Any, tmp_path: Path) -> None:
    _, folder, meant = written("fp8")
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    (sharded / "config.json").write_bytes((folder / "config.json").read_bytes())
    tensors, where = load_file(folder / "model.safetensors"), dict[str, str]()
    for number, scales in enumerate((False, True), start=1):
        part = {name: each for name, each in tensors.items() if name.endswith("_scale_inv") is scales}
        save_file(part, sharded / f"model-0000{number}-of-00002.safetensors")
        where |= dict.fromkeys(part, f"model-0000{number}-of-00002.safetensors")
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    opened = open_checkpoint(sharded)
    for key, wanted in meant.items():
        torch.testing.assert_close(torch.from_numpy(opened.tensors[key].read()), wanted, rtol=2e-7, atol=0)


def _edited(source: Path, folder: Path, values: Mapping[str, Any]) -> Path:
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    how = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_json(folder / "config.json", quantization_config=how | values)
    return folder


@pytest.mark.parametrize(
    ("name", "values", "code", "word"),
    [
        ("gptq", {"quant_method": "quark"}, "quantisation-unsupported", "quark"),
        ("pack-quantized", {"format": "nvfp4-pack-quantized"}, "quantisation-unsupported", "nvfp4"),
        ("pack-quantized", {"transform_config": {"x": 1}}, "quantisation-unsupported", "transform_config"),
        ("float-quantized-block", {"config_groups": {}}, "quantisation-tensor", "weight_scale"),
        ("gptq", {"bits": 3}, "quantisation-unsupported", "bits is 3"),
        ("gptq", {"checkpoint_format": "marlin"}, "quantisation-unsupported", "marlin"),
        ("gptq", {"dynamic": {"x": {}}}, "quantisation-unsupported", "dynamic"),
        ("gptq", {"bits": 8}, "quantisation-tensor", "should be"),
        ("gptq", {"a_key_of_tomorrow": 1}, "quantisation-key-unread", "a_key_of_tomorrow"),
        ("gptq", {"quant_method": "fp8"}, "quantisation-tensor", ".weight_scale_inv"),
        ("awq", {"version": "gemv"}, "quantisation-unsupported", "gemv"),
        ("awq", {"group_size": 24}, "quantisation-tensor", "group_size is 24"),
        ("fp8", {"weight_block_size": [128, 128]}, "quantisation-tensor", "should be"),
        ("fp8", {"weight_block_size": 128}, "quantisation-unsupported", "two numbers"),
        ("fp8", {"scale_fmt": "ue8m0"}, "quantisation-unsupported", "ue8m0"),
    ],
)
def test_what_is_not_understood_is_refused(
    name: str, values: Mapping[str, Any], code: str, word: str, written: Any, tmp_path: Path
) -> None:
    folder = _edited(written(name)[1], tmp_path / "checkpoint", values)
    refused(export(folder, tmp_path / "package"), code, word)


@pytest.mark.parametrize(
    ("name", "ending", "change", "code", "word"),
    [
        ("gptq", ".g_idx", lambda each: each + 1, "quantisation-tensor", "names group"),
        ("gptq", ".qzeros", lambda each: each | 0xF, "quantisation-unsupported", "zero points of 0"),
        ("gptq", ".qweight", lambda each: each.float(), "tensor-dtype-unsupported", "F32"),
        ("gptq", ".scales", None, "quantisation-tensor", ".scales"),
        ("awq", ".qzeros", lambda each: each[:-1], "quantisation-tensor", "should be"),
        ("int8", ".SCB", lambda each: each[:-1], "quantisation-tensor", "should be"),
        ("nf4", ".quant_map", lambda each: each[:-1], "quantisation-tensor", "15 values"),
        ("nf4", "bitsandbytes__nf4", lambda each: each[:-1], "quantisation-tensor", "does not describe"),
        ("pack-quantized", ".weight_zero_point", lambda each: each[:-1], "quantisation-tensor", "weight_zero_point"),
        ("pack-quantized", ".weight_shape", lambda each: each * 2, "quantisation-unsupported", "4 bits"),
        ("mxfp4", "_scales", lambda each: each[..., :-1], "quantisation-tensor", "should be"),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused(
    name: str, ending: str, change: Any, code: str, word: str, written: Any, tmp_path: Path
) -> None:
    folder = _edited(written(name)[1], tmp_path / "checkpoint", {})
    tensors = load_file(folder / tiny.WEIGHTS)
    key = next(key for key in tensors if key.endswith(ending))
    damaged = tensors | {} if change is None else tensors | {key: change(tensors[key]).contiguous()}
    if change is None:
        del damaged[key]
    save_file(damaged, folder / tiny.WEIGHTS)
    refused(export(folder, tmp_path / "package"), code, word)
