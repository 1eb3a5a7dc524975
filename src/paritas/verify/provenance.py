"""What was compared, by whom and on what: hashes, versions, the machine. No path and no name of a user."""

import hashlib
import importlib.metadata
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from paritas.checkpoint import Checkpoint
from paritas.runtime.package import Package
from paritas.verify.evidence import CheckpointRecord, Environment, FileRecord
from paritas.verify.store import file_sha256

_OWN = ("evidence",)  # what we write ourselves is not part of what was verified


def now() -> str:
    """UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment() -> Environment:
    """Versions and the machine."""
    return Environment(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu(),
        torch=_version("torch") or "",
        transformers=_version("transformers") or "",
        onnxruntime=_version("onnxruntime") or "",
        onnxruntime_genai=_version("onnxruntime-genai"),
    )


def checkpoint_record(checkpoint: Checkpoint, class_name: str) -> CheckpointRecord:
    """The checkpoint's name and one hash over what its numbers come from."""
    return CheckpointRecord(name=checkpoint.name, reference=class_name, sha256=checkpoint_sha256(checkpoint))


def checkpoint_sha256(checkpoint: Checkpoint) -> str:
    """One hash over the names and contents of config.json and the tensor files, and of its adapter's."""
    path = checkpoint.path
    files = [path] if path.is_file() else [path / "config.json", *sorted(path.glob("*.safetensors"))]
    if checkpoint.adapter is not None:
        files += [checkpoint.adapter / "adapter_config.json", *sorted(checkpoint.adapter.glob("*.safetensors"))]
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.name}\0{file_sha256(file)}\n".encode())
    return whole.hexdigest()


def package_records(package: Package) -> tuple[FileRecord, ...]:
    """The package's files. A graph that was given alone stands for itself and the data that it names."""
    alone = package.genai_config is None
    files: Iterable[Path] = (package.model, *package.data) if alone else package.folder.rglob("*")
    return tuple(
        FileRecord(name=name, sha256=file_sha256(file))
        for name, file in sorted((file.relative_to(package.folder).as_posix(), file) for file in files)
        if file.is_file() and name.split("/")[0] not in _OWN
    )


def graph_sha256(package: Package) -> str:
    """One hash over the graph and the data that it names."""
    whole = hashlib.sha256()
    for file in (package.model, *package.data):
        whole.update(f"{file.name}\0{file_sha256(file)}\n".encode())
    return whole.hexdigest()


def version(distribution: str) -> str:
    """The version of an installed distribution; empty if it is not installed."""
    return _version(distribution) or ""


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's own name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
