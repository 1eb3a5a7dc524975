"""``--adapter``: LoRA adapters written by PEFT, held against PEFT's own merge; and what is refused."""

import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

import quantised
import tiny
from checkpoints import export, paritas, refused
from paritas.checkpoint import open_checkpoint
from paritas.checkpoint.adapter import WEIGHTS, adapted
from paritas.verify.run import verify
from paritas.verify.verdict import Verdict

Folder = Callable[[str], Path]
CONFIG = "adapter_config.json"
LAYERS = ["q_proj", "v_proj", "down_proj"]
KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "plain": ("llama", {"r": 4, "lora_alpha": 9, "target_modules": LAYERS}),
    "patterns": (
        "llama",
        {
            "r": 4,
            "lora_alpha": 9,
            "use_rslora": True,
            "target_modules": LAYERS,
            "rank_pattern": {"down_proj": 3, "layers.1.self_attn.q_proj": 2},
            "alpha_pattern": {r"layers\.[02]\.self_attn\.v_proj": 5},
        },
    ),
    "dora": ("llama-biased", {"r": 3, "lora_alpha": 7, "use_dora": True, "target_modules": [*LAYERS, "lm_head"]}),
    "ends": ("llama-biased", {"r": 3, "target_modules": ["k_proj", "embed_tokens"], "modules_to_save": ["lm_head"]}),
    "bias": ("llama-biased", {"r": 3, "bias": "all", "target_modules": ["o_proj"]}),
    "multimodal": ("gemma3-multimodal-hub", {"r": 3, "target_modules": r".*language_model.*\.(o_proj|up_proj)"}),
}


@pytest.fixture(scope="session")
def adapter(checkpoint: Folder, shared_folder: Path) -> Callable[[str], tuple[Path, Path, Path]]:
    """Kind -> base, adapter and PEFT's own merge of them, each on disk."""

    def build(kind: str) -> tuple[Path, Path, Path]:
        base, values = KINDS[kind]
        folder = shared_folder / "adapters" / kind
        found = (checkpoint(base), folder / "adapter", folder / "merged")
        if not found[1].exists():
            _train(*found, values)
        return found

    return build


def _train(base: Path, adapter: Path, merged: Path, values: Mapping[str, Any]) -> None:
    """Every number of the adapter is random; PEFT writes it, reads it again and merges it."""
    auto = AutoModelForImageTextToText if "multimodal" in base.name else AutoModelForCausalLM
    generator = torch.Generator().manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT asks transformers for what is deprecated, and tells what it saves
        model = get_peft_model(auto.from_pretrained(base, dtype=torch.float32), LoraConfig(**values))
        with torch.no_grad():
            for name, each in model.named_parameters():
                if each.requires_grad:
                    each.normal_(0, tiny.spread(name, each), generator=generator)
        model.save_pretrained(adapter)
        again = PeftModel.from_pretrained(auto.from_pretrained(base, dtype=torch.float32), str(adapter))
        again.merge_and_unload().save_pretrained(merged)


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_is_merged_as_peft_merges_it(kind: str, adapter: Any) -> None:
    base, folder, merged = adapter(kind)
    ours, theirs, before = adapted(open_checkpoint(base), folder), open_checkpoint(merged), open_checkpoint(base)
    changed = 0
    for name, tensor in ours.tensors.items():
        found, original = tensor.read(), before.tensors[name].read()
        wanted = theirs.tensors[name].read() if name in theirs.tensors else original
        assert np.abs(found - wanted).max() <= 4 * np.spacing(np.abs(wanted).max()), name
        assert np.array_equal(tensor.rows(1, 3), found[1:3])
        changed += not np.array_equal(found, original)
    names = (name for name in load_file(folder / WEIGHTS) if not name.endswith("base_layer.weight"))
    assert changed == len({name.partition(".lora_")[0] for name in names})


@pytest.mark.parametrize(
    ("kind", "target"),
    [("patterns", "ort"), ("dora", "onnx"), pytest.param("multimodal", "ort", marks=pytest.mark.slow)],
)
def test_an_export_with_an_adapter_is_proven_against_pefts_merge_live_and_on_disk(
    kind: str, target: str, adapter: Any, tmp_path: Path
) -> None:
    base, folder, merged = adapter(kind)
    words = ["--target", target, "--json", *(["--text-only"] if kind == "multimodal" else [])]
    done = paritas("export", base, tmp_path / "package", "--adapter", folder, *words)
    assert json.loads(done.stdout)["verdict"] == "proven", done.output
    record = json.loads((tmp_path / "package" / "evidence" / "export.json").read_text())
    assert record["source"] == f"{base.name} + {folder.name}"
    runtimes = ("onnxruntime",)
    assert verify(tmp_path / "package", merged, runtimes=runtimes, power=False).verdict is Verdict.PROVEN
    assert verify(tmp_path / "package", base, runtimes=runtimes, power=False).verdict is Verdict.DIVERGES
    assert paritas("audit", tmp_path / "package", "--against", base, "--adapter", folder).exit_code == 0
    assert paritas("audit", tmp_path / "package", "--against", base).exit_code == 1


def test_an_adapter_is_added_to_what_quantised_weights_stand_for(adapter: Any, tmp_path: Path) -> None:
    base, folder, _ = adapter("plain")
    quantised.write(base, tmp_path / "base", quantised.nf4)
    plain, rough = open_checkpoint(base), open_checkpoint(tmp_path / "base")
    for name in ("model.layers.1.self_attn.q_proj.weight", "model.layers.2.mlp.down_proj.weight"):
        deltas = [adapted(each, folder).tensors[name].read() - each.tensors[name].read() for each in (plain, rough)]
        assert np.abs(deltas[0]).max() > 0.1
        np.testing.assert_allclose(deltas[0], deltas[1], atol=1e-6)


def _changed(adapter: Any, kind: str, folder: Path, **values: Any) -> tuple[Path, Path]:
    """Base, and a copy of the adapter with other values in its configuration."""
    base, original, _ = adapter(kind)
    shutil.copytree(original, folder)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | values))
    return base, folder


@pytest.mark.parametrize("values", [{"use_rslora": False}, {"alpha_pattern": {}}, {"lora_alpha": 9.01}])
def test_another_scale_than_the_adapters_is_seen(values: Mapping[str, Any], adapter: Any, tmp_path: Path) -> None:
    base, wrong = _changed(adapter, "patterns", tmp_path / "wrong", **values)
    assert export(base, tmp_path / "package", "--adapter", wrong).exit_code == 0
    right = adapted(open_checkpoint(base), adapter("patterns")[1])
    found = verify(tmp_path / "package", right, runtimes=("onnxruntime",), power=False)
    assert found.verdict is Verdict.DIVERGES


@pytest.mark.parametrize(
    ("values", "code", "word"),
    [
        ({"peft_type": "LOHA"}, "adapter-unsupported", "LOHA"),
        ({"init_lora_weights": "pissa"}, "adapter-unsupported", "pissa"),
        ({"lora_bias": True}, "adapter-key-unread", "lora_bias"),
        ({"target_parameters": ["x"]}, "adapter-key-unread", "target_parameters"),
        ({"a_key_of_tomorrow": 2}, "adapter-key-unread", "a_key_of_tomorrow"),
        ({"r": 5}, "adapter-value-wrong", "4 rows"),
        ({"lora_alpha": "x"}, "adapter-value-wrong", "lora_alpha"),
        ({"rank_pattern": [1]}, "adapter-value-wrong", "rank_pattern"),
        ({"use_dora": True}, "adapter-tensor-missing", "no magnitude"),
    ],
)
def test_a_configuration_that_is_not_understood_is_refused(
    values: Mapping[str, Any], code: str, word: str, adapter: Any, tmp_path: Path
) -> None:
    base, folder = _changed(adapter, "plain", tmp_path / "adapter", **values)
    refused(export(base, tmp_path / "package", "--adapter", folder), code, word)


def _without_b(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[next(name for name in tensors if "lora_B" in name)]


def _untrained(tensors: dict[str, torch.Tensor]) -> None:
    for name in tensors:
        if "lora_B" in name:
            tensors[name].zero_()


def _of_another_layer(tensors: dict[str, torch.Tensor]) -> None:
    for name in list(tensors):
        tensors[name.replace("layers.0", "layers.9")] = tensors.pop(name)


def _wider(tensors: dict[str, torch.Tensor]) -> None:
    name = next(name for name in tensors if "lora_A" in name)
    tensors[name] = torch.cat([tensors[name]] * 2, 1)


def _with_an_embedding(tensors: dict[str, torch.Tensor]) -> None:
    tensors["base_model.model.model.embed_tokens.weight"] = torch.zeros(tiny.VOCAB, tiny.HIDDEN)


@pytest.mark.parametrize(
    ("damage", "code", "word"),
    [
        (_without_b, "adapter-tensor-missing", "A alone"),
        (_untrained, "adapter-without-effect", "B of one that was never trained is 0"),
        (_of_another_layer, "adapter-tensor-unmatched", "layers.9"),
        (lambda tensors: tensors.clear(), "adapter-tensor-unmatched", "0"),
        (_wider, "adapter-shape", "A [4, "),
        (_with_an_embedding, "adapter-tied-head", "embed_tokens"),
    ],
)
def test_weights_that_are_not_the_bases_are_refused(
    damage: Callable[[dict[str, torch.Tensor]], None], code: str, word: str, adapter: Any, tmp_path: Path
) -> None:
    base, folder = _changed(adapter, "plain", tmp_path / "adapter")
    tensors = load_file(folder / WEIGHTS)
    damage(tensors)
    save_file(tensors, folder / WEIGHTS)
    refused(export(base, tmp_path / "package", "--adapter", folder), code, word)


def test_a_folder_without_an_adapter_or_without_its_weights_is_refused(adapter: Any, tmp_path: Path) -> None:
    base, folder = _changed(adapter, "plain", tmp_path / "adapter")
    refused(export(base, tmp_path / "package", "--adapter", base), "adapter-missing", CONFIG)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    refused(export(base, tmp_path / "package", "--adapter", folder), "adapter-missing", "could run code")


def test_the_tokenizer_that_was_trained_with_an_adapter_goes_into_the_package(adapter: Any, tmp_path: Path) -> None:
    base, folder = _changed(adapter, "plain", tmp_path / "adapter")
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert adapted(open_checkpoint(base), folder).tokenizer_files == open_checkpoint(base).tokenizer_files
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, folder)
    assert export(base, tmp_path / "package", "--adapter", folder).exit_code == 0
    assert (tmp_path / "package" / "chat_template.jinja").read_text() == "{{ messages[0]['content'] }}"
