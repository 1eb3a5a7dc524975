"""Real models in the released onnx-genai, by the metadata that an export writes: the reference's tokens."""

import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import wheel
from paritas.checkpoint import open_checkpoint
from paritas.export import export
from paritas.lint.run import lint
from paritas.plan import Options
from paritas.targets import TARGETS
from paritas.verify.loading import load_reference

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]

MODELS = Path(os.environ.get("PARITAS_MODELS", ".models"))
PROMPTS = ("The capital of France is", "Gravity is the force that", "Once upon a time there was a small village")
NEW = 24


@pytest.mark.parametrize("model", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3-270m"])
def test_the_wheel_goes_on_with_the_reference_tokens(model: str, tmp_path: Path) -> None:
    import torch

    checkpoint = open_checkpoint(MODELS / model)
    export(checkpoint, tmp_path / "package", TARGETS["ort"], Options(context=2048))
    found = lint(tmp_path / "package")
    assert found.findings == ()
    (answers,) = wheel.generate([(tmp_path / "package", PROMPTS, {"max_tokens": NEW, "temperature": 0.0})], tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "package" / "tokenizer.json"))
    reference, _ = load_reference(checkpoint)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        wanted = reference.generate(ids, max_new_tokens=NEW, do_sample=False, repetition_penalty=1.0)
        assert answer == wanted[0, ids.shape[1] :].tolist()
    (tmp_path / "package" / "model.onnx.data").unlink()  # a gigabyte
