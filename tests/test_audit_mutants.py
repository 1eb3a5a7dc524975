"""Every fault of test_mutants that the files can show is found by the audit, with its code and at its place."""

from collections.abc import Callable
from pathlib import Path

import pytest

import tiny
from paritas.audit.finding import Finding
from paritas.audit.run import audit
from paritas.export import export
from paritas.plan import Options
from paritas.targets import TARGETS
from test_mutants import MUTANTS

LOCAL, FULL, ALL = "layers 0-1, 3-4, 6", "layers 2, 5", "layers 0-6"
THREE = "layers 0-2"

# Fault -> code of its error, where, and a part of the message.
FOUND: dict[str, tuple[str, str, str]] = {
    "local layers inherit the global factor": ("rope-table-wrong", LOCAL, "theta 7000 factor 8, the checkpoint"),
    "global factor lost": ("rope-table-wrong", FULL, "theta 400000, the checkpoint says theta 400000 factor 8"),
    "global theta on local layers": ("rope-table-wrong", LOCAL, "use theta 400000, the checkpoint says theta 7000"),
    "local theta on global layers": ("rope-table-wrong", FULL, "use theta 7000 factor 8"),
    "linear scaling ignored": ("rope-table-wrong", THREE, "use theta 6000, the checkpoint says theta 6000 factor 4"),
    "llama3 scaling ignored": ("rope-table-wrong", THREE, "theta 9000 with Llama 3 scaling by 8 from 32"),
    "rows of q and k left interleaved": ("weight-rows-permuted", THREE, "6 initializers"),
    "positions start again at each step": ("positions-wrong", ALL, "12 are put at positions 0 and 1"),
    "window ignored": ("window-wrong", LOCAL, "sees every key before it, the checkpoint says a query sees 8 keys"),
    "window one too long": ("window-wrong", LOCAL, "a query sees 9 keys"),
    "window one too short": ("window-wrong", LOCAL, "a query sees 7 keys"),
    "window on every layer": ("window-wrong", FULL, "a query sees 8 keys, the checkpoint says a query sees every"),
    "padding is seen": ("mask-shows-padding", ALL, "padding"),
    "later tokens are seen": ("mask-not-causal", ALL, "later keys"),
    "scale from head_dim": ("attention-scale-wrong", ALL, "by 0.25, the checkpoint says 0.2041241"),
    "QK-norm dropped": ("qk-norm-wrong", ALL, "are not normalised"),
    "QK-norm after RoPE": ("qk-norm-after-rope", ALL, "rotated before"),
    "qkv bias missing": ("weight-unused", THREE, "9 of"),
    "output bias missing": ("weight-unused", THREE, "3 of"),
    "kv heads swapped": ("weight-rows-permuted", THREE, "12 initializers"),
    "MLP bias missing": ("weight-unused", THREE, "9 of"),
    "1 + weight rounded to bf16": ("norm-offset-rounded", ALL, "in a build of fp32"),
    "1 + weight without the 1": ("norm-offset-missing", ALL, "43 norms"),
    "epsilon ten times larger": ("norm-epsilon-wrong", ALL, "43 norms have epsilon 0.0003"),
    "embedding scale rounded to two decimals": ("embedding-scale-wrong", "embed_tokens", "8.48999977"),
    "embedding scale rounded to fp16": ("embedding-scale-wrong", "embed_tokens", "8.484375"),
    "embedding scale rounded to bf16": ("embedding-scale-wrong", "embed_tokens", "8.5"),
    "GELU by the error function": ("activation-wrong", ALL, "is gelu, the checkpoint says gelu_pytorch_tanh"),
    "GELU by tanh": ("activation-wrong", THREE, "is gelu_pytorch_tanh, the checkpoint says gelu"),
    "softcap dropped": ("logit-softcap-wrong", "logits", "not capped, the checkpoint caps them at 5"),
    "one row of the head zero": ("weight-row-zero", "lm_head.weight", f"row {tiny.VOCAB - 5}"),
    "gate and up swapped": ("weight-swapped", "up_proj", "belongs to gate_proj"),
}

# A mask that shows everything has all three faults.
ALSO = {"later tokens are seen": {"window-wrong", "mask-shows-padding"}}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_is_found_at_its_place(
    name: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mutant = MUTANTS[name]
    with monkeypatch.context() as patch:
        mutant.fault(patch)
        export(checkpoint(mutant.checkpoint), tmp_path / "package", TARGETS[mutant.target], Options(drop=mutant.drop))
    found = audit(tmp_path / "package", checkpoint(mutant.checkpoint))
    code, where, message = FOUND[name]
    errors = [finding for finding in found.findings if finding.severity == "error"]
    assert any(is_it(finding, code, where, message) for finding in errors), errors
    related = {code} | ALSO.get(name, set()) | ({"weight-unused"} if mutant.drop else set())
    assert {finding.code for finding in errors} <= related, errors
    assert found.exit_code == 1


def is_it(finding: Finding, code: str, where: str, message: str) -> bool:
    return finding.code == code and where in finding.where and message in finding.message


def test_every_fault_is_spoken_of() -> None:
    assert FOUND.keys() == MUTANTS.keys()
