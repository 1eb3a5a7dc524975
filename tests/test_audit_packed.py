"""The audit of right packages whose weights are parts of tensors, or of many; and of one with parts exchanged."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from paritas.audit.run import Audit, audit
from paritas.export import export
from paritas.targets import TARGETS

RIGHT = ("cohere", "falcon", "falcon-new", "gpt_neox", "gpt_neox-pythia", "olmo-clip", "stablelm-12b")


def made(checkpoint: Path, out: Path, target: str = "ort") -> Path:
    export(checkpoint, out, TARGETS[target])
    return out


def faults(found: Audit) -> set[str]:
    return {finding.code for finding in found.findings if finding.severity != "note"}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_package_has_no_fault(
    name: str, target: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    assert faults(audit(made(checkpoint(name), tmp_path / "package", target), checkpoint(name))) == set()


def test_heads_exchanged_in_a_part_of_a_packed_tensor(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    package = made(checkpoint("falcon-new"), tmp_path / "package")
    tensors = onnx.load(package / "model.onnx", load_external_data=False).graph.initializer
    where = next(
        {e.key: e.value for e in t.external_data} for t in tensors if t.name.endswith("0.self_attn.q_proj.weight")
    )
    stored = np.memmap(package / where["location"], np.float32, "r+", int(where["offset"]), (96, 96))
    stored[:, :32] = np.concatenate([stored[:, 16:32], stored[:, :16]], axis=1)
    stored.flush()
    assert "weight-unexplained" in faults(audit(package, checkpoint("falcon-new")))
