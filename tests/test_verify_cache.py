"""What the reference said is kept by content: taken when nothing changed, asked anew when anything did."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paritas.checkpoint import open_checkpoint
from paritas.export import export
from paritas.targets import TARGETS
from paritas.verify import memory, store
from paritas.verify.evidence import Evidence, read
from paritas.verify.run import verify

RAW = ("onnxruntime",)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARITAS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "reference"


@pytest.fixture
def package(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    export(checkpoint("llama"), tmp_path / "package", TARGETS["ort"])
    return tmp_path / "package"


def told(evidence: Evidence) -> object:
    """All but what differs from one run to the next."""
    values = json.loads(evidence.to_json())
    for probe in values["probes"]:
        del probe["seconds"]
    del values["created"], values["settings"]["remembered"]
    return values


def test_a_second_verification_needs_no_torch(
    package: Path, checkpoint: Callable[[str], Path], cache: Path, tmp_path: Path
) -> None:
    first = verify(package, checkpoint("llama"), runtimes=RAW)
    assert not first.settings.remembered
    program = f"""
import sys
from pathlib import Path
from paritas.verify.run import verify
verify(Path({str(package)!r}), Path({str(checkpoint("llama"))!r}), runtimes={RAW}).write(Path({str(tmp_path)!r}))
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    second = read(tmp_path / "evidence" / "evidence.json")
    assert second.settings.remembered
    assert told(second) == told(first)


@pytest.mark.parametrize("damage", ["array", "text", "sums", "cut", "missing", "another", "pickle"])
def test_a_damaged_entry_is_made_again(
    damage: str, package: Path, checkpoint: Callable[[str], Path], cache: Path
) -> None:
    first = verify(package, checkpoint("llama"), runtimes=RAW)
    (entry,) = cache.iterdir()
    spoil(entry, damage)
    again = verify(package, checkpoint("llama"), runtimes=RAW)
    assert not again.settings.remembered
    assert told(again) == told(first)
    assert verify(package, checkpoint("llama"), runtimes=RAW).settings.remembered


def spoil(entry: Path, damage: str) -> None:
    array = entry / "logits-0.npy"
    content = bytearray(array.read_bytes())
    match damage:
        case "array":
            content[-1] ^= 1
            array.write_bytes(content)
        case "cut":
            array.write_bytes(content[:-4])
        case "text":
            text = (entry / "record.json").read_text()
            (entry / "record.json").write_text(text.replace("Llama", "Lama"))
        case "sums":
            (entry / "sums.json").write_text("{")
        case "missing":
            array.unlink()
        case "another":
            shutil.copy(array, entry / "logits-99.npy")
        case _:
            np.save(array, np.array([{}], object), allow_pickle=True)


def test_without_the_cache_nothing_is_kept(package: Path, checkpoint: Callable[[str], Path], cache: Path) -> None:
    assert not verify(package, checkpoint("llama"), runtimes=RAW, cache=False).settings.remembered
    assert not cache.exists()


def test_answers_with_power_are_answers_without_it(
    package: Path, checkpoint: Callable[[str], Path], cache: Path
) -> None:
    opened = open_checkpoint(checkpoint("llama"))
    first = memory.recall_truths(opened, power=True)
    assert first.power
    again = memory.recall_truths(opened, power=False)
    assert again.ids.remembered
    assert not again.power
    assert len(list(cache.iterdir())) == 1
    assert not memory.recall_truths(opened, context=64, power=False).ids.remembered
    assert not memory.recall_truths(opened, context=64, power=True).ids.remembered


def test_the_key_depends_on_all_that_the_answer_does(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint("llama"), folder)
    keys = [memory.cache_key(open_checkpoint(folder), None), memory.cache_key(open_checkpoint(folder), 64)]
    for file in ("generation_config.json", "tokenizer_config.json", "config.json"):
        values = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**values, "_note": file}))
        keys.append(memory.cache_key(open_checkpoint(folder), None))
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    keys.append(memory.cache_key(open_checkpoint(folder), None))
    monkeypatch.setattr(memory.provenance, "_version", lambda distribution: "0")
    keys.append(memory.cache_key(open_checkpoint(folder), None))
    assert len(set(keys)) == len(keys)


def test_a_copy_of_a_checkpoint_has_its_key_and_keeps_its_own_name(
    package: Path, checkpoint: Callable[[str], Path], cache: Path, tmp_path: Path
) -> None:
    verify(package, checkpoint("llama"), runtimes=RAW)
    shutil.copytree(checkpoint("llama"), tmp_path / "copy")
    evidence = verify(package, tmp_path / "copy", runtimes=RAW)
    assert evidence.settings.remembered
    assert evidence.checkpoint.name == "copy"


def test_what_was_used_longest_ago_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LIMIT", 10_000)
    entry = store.Entry("{}", {"a": np.zeros(500)})
    assert store.save(tmp_path, "one", entry)
    assert store.save(tmp_path, "two", entry)
    assert store.load(tmp_path, "one") is not None  # used again, so now two is the older
    assert store.save(tmp_path, "three", entry)
    assert {folder.name for folder in tmp_path.iterdir()} == {"one", "three"}
    assert not store.save(tmp_path, "four", store.Entry("{}", {"a": np.zeros(5000)}))


def test_a_disk_that_refuses_costs_time_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not store.save(tmp_path / "file" / "cache", "one", store.Entry("{}", {}))
    assert store.load(tmp_path / "file" / "cache", "one") is None
