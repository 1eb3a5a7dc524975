"""A package appears whole or not at all: full disks, Ctrl-C, crashes, impossible outputs; what was there stays."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import CONTEXT, export, listing, paritas, refused, save_llama, save_sharded
from paritas.package import staging
from paritas.package.staging import publish
from paritas.package.staging import staging as stage


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_llama(tmp_path / "model")


@pytest.fixture
def old(model: Path) -> Path:
    """A package that was there before."""
    out = model.with_name("out")
    assert export(model, out, "--context", CONTEXT // 2).exit_code == 0
    return out


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Where a package goes


def test_parents_are_made(model: Path) -> None:
    out = model.parent / "not" / "yet" / "there"
    assert export(model, out).exit_code == 0
    assert names(out.parent) == ["there"]


@pytest.mark.parametrize("words", [("-o", "out"), ("out",), ("--output", "./x/../out/")])
def test_relative_outputs(model: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.chdir(model.parent)
    assert paritas("export", "model", *words, "--no-verify").exit_code == 0
    assert names(model.parent) == ["model", "out"]


def test_home(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(model.parent))
    assert paritas("export", "~/model", "--out=~/out", "--no-verify").exit_code == 0
    assert names(model.parent) == ["model", "out"]


def test_here(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here := model.parent / "here").mkdir()
    monkeypatch.chdir(here)
    refused(export(model, Path()), "output-exists", "here")
    assert export(model, Path(), "--force").exit_code == 0
    assert (here / "model.onnx").is_file()


def test_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "mödel dir 模型 v1.0 [x] [/b]"
    model = save_sharded(folder / "ein *")
    out = folder / "päckchen 100% {name}"
    assert export(model, out).exit_code == 0
    assert names(folder) == sorted(["ein *", out.name])
    assert paritas("inspect", out).exit_code == 0
    assert f"# {out.name}, ONNX" in (out / "README.md").read_text(encoding="utf-8")


def test_files_are_utf8_on_every_system(model: Path) -> None:
    """No file is written in whatever encoding the system prefers (Windows has its own)."""
    strict = [sys.executable, "-X", "warn_default_encoding", "-W", "error::EncodingWarning", "-m", "paritas"]
    words = ("export", model, model.with_name("päckchen"), "--no-verify")
    done = subprocess.run([*strict, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "# päckchen, ONNX" in (model.with_name("päckchen") / "README.md").read_text(encoding="utf-8")


def test_links_of_a_hub_cache_become_files(model: Path) -> None:
    blobs, snapshot = model.parent / "blobs", model.parent / "snapshot"
    model.rename(blobs)
    snapshot.mkdir()
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(f"../blobs/{file.name}")
    assert export(snapshot, model.parent / "out").exit_code == 0
    files = [path for path in (model.parent / "out").rglob("*") if not path.is_dir()]
    assert [path for path in files if path.is_symlink() or not path.is_file()] == []
    assert {"model.onnx", "model.onnx.data", "tokenizer.json"} <= {path.name for path in files}


def test_inside_the_checkpoint(model: Path) -> None:
    before = listing(model)
    assert export(model, model / "onnx").exit_code == 0
    shutil.rmtree(model / "onnx")
    assert listing(model) == before


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_are_the_users(model: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        assert export(model, model.parent / "out").exit_code == 0
    finally:
        os.umask(before)
    for path in (model.parent / "out", *(model.parent / "out").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~mask, path


# Where it cannot go


def foreign(folder: Path) -> Path:
    (folder / "out" / "holiday").mkdir(parents=True)
    (folder / "out" / "model.onnx").touch()
    return folder / "out"


def packaged_checkpoint(folder: Path) -> Path:
    (folder / "model" / "model.onnx").touch()
    return folder / "model"


def touched(folder: Path) -> Path:
    (folder / "out").touch()
    return folder / "out"


def linked(folder: Path) -> Path:
    (folder / "real").mkdir()
    (folder / "out").symlink_to("real")
    return folder / "out"


def dangling(folder: Path) -> Path:
    (folder / "out").symlink_to("nowhere")
    return folder / "out"


NOWHERE: list[tuple[str, Callable[[Path], Path], str, str]] = [
    ("a folder of other things", foreign, "output-not-a-package", "holds holiday"),
    ("the checkpoint", lambda f: f / "model", "output-not-a-package", "model.safetensors"),
    ("the checkpoint, with a graph in it", packaged_checkpoint, "output-not-a-package", "model.safetensors"),
    ("around the checkpoint", lambda f: f, "output-not-a-package", "holds model"),
    ("the root", lambda f: Path("/"), "output-not-a-package", "it holds"),
    ("a file", touched, "output-not-a-package", "a file"),
    ("a link", linked, "output-not-a-package", "a symbolic link"),
    ("a link to nowhere", dangling, "output-not-a-package", "a symbolic link"),
    ("under a file", lambda f: touched(f) / "x", "output-unwritable", "Not a directory"),
    ("deep under a file", lambda f: touched(f) / "x" / "y" / "z", "output-unwritable", "Not a directory"),
    ("in /proc", lambda f: Path("/proc/out"), "output-unwritable", "/proc"),
    ("too long a name", lambda f: f / ("x" * 250), "output-unwritable", "File name too long"),
]


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "force"])
@pytest.mark.parametrize(("place", "code", "fragment"), [case[1:] for case in NOWHERE], ids=[c[0] for c in NOWHERE])
def test_refused(model: Path, place: Callable[[Path], Path], code: str, fragment: str, force: tuple[str, ...]) -> None:
    out = place(model.parent)
    before = listing(model.parent)
    refused(export(model, out, *force), code, fragment)
    assert listing(model.parent) == before


def test_an_old_package_wants_a_word(model: Path, old: Path) -> None:
    before = listing(model.parent)
    refused(export(model, old), "output-exists", str(old), "--force")
    assert listing(model.parent) == before


def test_force_replaces_a_package(model: Path, old: Path) -> None:
    before = listing(old)
    result = export(model, old, "--force")
    assert result.exit_code == 0, result.output
    assert listing(old) != before
    assert json.loads((old / "genai_config.json").read_text())["model"]["context_length"] == CONTEXT
    assert names(model.parent) == ["model", "out"]


def test_force_that_fails_keeps_it(model: Path, old: Path) -> None:
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[:-4] + np.float32("nan").tobytes())
    before = listing(model.parent)
    refused(export(model, old, "--force"), "weight-not-finite")
    assert listing(model.parent) == before


# Full disks


def mounted(folder: Path, *options: str) -> Generator[Path]:
    """A file system of its own; without the right to mount one, the test says that it did not run."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    yield from mounted(tmp_path / "small", "-o", "size=512k")


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Generator[Path]:
    yield from mounted(tmp_path / "locked", "-o", "ro")


def no_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up while the export runs: what was free when it began is not free any more."""
    monkeypatch.setattr("paritas.preflight.shutil.disk_usage", lambda _: shutil._ntuple_diskusage(1, 0, 2**50))


def test_a_disk_too_small_is_foretold(model: Path, small_disk: Path) -> None:
    refused(export(model, small_disk / "new" / "out"), "disk-full", "524,288 are free", str(small_disk))
    assert names(small_disk) == []


def test_a_full_disk(model: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_forecast(monkeypatch)
    (small_disk / "filler").write_bytes(bytes(300_000))
    refused(export(model, small_disk / "new" / "out"), "disk-full", "No space left on device", str(small_disk))
    assert names(small_disk) == ["filler"]


def test_a_full_disk_keeps_the_old_package(model: Path, old: Path, small_disk: Path) -> None:
    shutil.copytree(old, small_disk / "out")
    before = listing(small_disk)
    with pytest.MonkeyPatch.context() as monkeypatch:
        no_forecast(monkeypatch)
        refused(export(model, small_disk / "out", "--force"), "disk-full")
    assert listing(small_disk) == before
    assert paritas("inspect", small_disk / "out").exit_code == 0


def test_a_read_only_disk(model: Path, read_only_disk: Path) -> None:
    refused(export(model, read_only_disk / "out"), "output-unwritable", "Read-only file system")


def test_too_little_room_is_foretold(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paritas.preflight.shutil.disk_usage", lambda _: shutil._ntuple_diskusage(1, 0, 12_345))
    refused(export(model, model.parent / "new" / "out"), "disk-full", "12,345 are free", str(model.parent))
    assert names(model.parent) == ["model"]


def test_too_little_memory_is_foretold(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paritas.preflight.psutil.virtual_memory", lambda: type("", (), {"available": 1000}))
    refused(export(model, model.parent / "out"), "memory-short", "1,000 are available")
    assert names(model.parent) == ["model"]


# Ctrl-C, signals and crashes, in a process of its own: the weights lie in a pipe that nobody fills

STUCK = """
import os, signal, sys, time
import paritas.weights
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background,
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and this one under nohup
def rows(self):
    print("writing", file=sys.stderr, flush=True)
    {what}
    yield
paritas.weights.Stored.blocks = rows
from paritas.cli import main
main()
"""


def stuck(what: str, *words: object) -> subprocess.Popen[str]:
    """An export that has begun to write, and hangs or ends there."""
    code = STUCK.format(what=what)
    command = [sys.executable, "-c", code, "export", *map(str, words), "--no-verify"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "writing\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted(model: Path, old: Path, number: signal.Signals) -> None:
    before = listing(model.parent)
    process = stuck("time.sleep(60)", model, old, "--force", "--json")
    assert len(names(model.parent)) == 3  # the new one is on its way
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "error: interrupted\n" in err
    assert "Traceback" not in err
    assert json.loads(out)["error"]["code"] == "interrupted"
    assert listing(model.parent) == before


def test_killed(model: Path, old: Path) -> None:
    """Nothing can be tidied up by a process that is gone; the next one does it, and only for its own output."""
    before = listing(model.parent)
    other = model.parent / ".outer.partial-1"
    for process in (stuck("os._exit(9)", model, old, "--force"), stuck("time.sleep(60)", model, old, "--force")):
        process.kill()
        process.communicate(timeout=20)
    left = set(names(model.parent)) - {"model", "out"}
    assert [name.startswith(".out.partial-") for name in left] == [True]  # the second has swept up after the first
    assert {
        name: content for name, content in listing(model.parent).items() if name.split("/")[0] not in left
    } == before
    other.mkdir()
    assert export(model, old, "--force").exit_code == 0
    assert names(model.parent) == [other.name, "model", "out"]


def test_a_living_export_is_left_alone(model: Path) -> None:
    process = stuck("time.sleep(60)", model, model.parent / "out")
    try:
        assert export(model, model.parent / "out").exit_code == 0
        assert [name.startswith(".out.partial-") for name in names(model.parent)] == [True, False, False]
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert names(model.parent) == ["model", "out"]


# Taking the name


def new_package(folder: Path) -> None:
    (folder / "model.onnx").write_text("new")
    (folder / "evidence").mkdir()


def test_published_over_nothing_and_over_an_old_one(tmp_path: Path) -> None:
    for _ in range(2):
        with stage(tmp_path / "out") as folder:
            new_package(folder)
            publish(folder, tmp_path / "out")
        assert listing(tmp_path / "out") == {"evidence": b"", "model.onnx": b"new"}
        assert names(tmp_path) == ["out"]


def test_not_published_leaves_nothing(tmp_path: Path) -> None:
    with stage(tmp_path / "a" / "b" / "out") as folder:
        new_package(folder)
    assert names(tmp_path) == []


def two_renames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_exchanged_at_once", lambda new, old: False)


def test_systems_that_cannot_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_renames(monkeypatch)
    test_published_over_nothing_and_over_an_old_one(tmp_path)


@pytest.mark.parametrize("fault", [OSError(errno.EIO, "broken"), KeyboardInterrupt()], ids=["disk", "Ctrl-C"])
def test_a_rename_that_fails_takes_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    two_renames(monkeypatch)
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.onnx").write_text("old")
    rename = Path.rename

    def broken(path: Path, target: Path) -> Any:
        if ".partial-" in path.name:
            raise fault
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", broken)
    with stage(out) as folder:
        new_package(folder)
        with pytest.raises(type(fault)):
            publish(folder, out)
    assert listing(tmp_path) == {"out": b"", "out/model.onnx": b"old"}


def test_somebody_was_faster(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies at the output when the package is done was not there when it began, and is no package: it stays."""
    out = model.parent / "out"

    def occupied(*arguments: Any) -> None:
        out.mkdir()
        (out / "thesis.doc").touch()

    monkeypatch.setattr("paritas.export.check_resources", occupied)
    refused(export(model, out), "output-not-a-package", "thesis.doc")
    assert names(model.parent) == ["model", "out"]
    assert names(out) == ["thesis.doc"]


def test_flushed_before_the_name_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, rename = os.fsync, Path.rename

    def spy_sync(number: int) -> None:
        order.append(str(Path(f"/proc/self/fd/{number}").readlink()))
        sync(number)

    monkeypatch.setattr(os, "fsync", spy_sync)
    monkeypatch.setattr(Path, "rename", lambda path, target: [order.append("rename"), rename(path, target)])
    with stage(tmp_path / "out") as folder:
        new_package(folder)
        publish(folder, tmp_path / "out")
    expected = [folder / "evidence", folder / "model.onnx", folder, "rename", tmp_path]
    assert order == [str(each) for each in expected]


def test_a_checkpoint_that_shrinks_meanwhile(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shrink(*_: Any) -> None:
        os.truncate(model / "model.safetensors", 9000)

    monkeypatch.setattr("paritas.export.check_resources", shrink)
    refused(export(model, model.parent / "out"), "shard-truncated", "model.safetensors")
    assert names(model.parent) == ["model"]
