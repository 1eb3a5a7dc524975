"""``paritas diagnose`` and ``paritas tap`` as a person types them, on packages of released exporters."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from checkpoints import paritas, refused
from paritas.audit.run import audit

DATA = Path(__file__).parent / "data" / "peers"
CAUSES = {
    "builder/kept-gemma2": {"norm-offset-rounded", "embedding-scale-rounded"},
    "builder/kept-mistral": {"window-dropped"},
    "builder/kept-phi": {"norm-epsilon-default"},
    "builder/kept-yarn": {"rope-bands-ignored"},
    "mobius/kept-gemma2": {"window-dropped", "window-on-global-layer", "embedding-scale-rounded"},
    "mobius/kept-mistral": {"window-dropped"},
    "mobius-cpu/kept-gemma3": {
        "window-dropped",
        "rope-of-another-layer",
        "logit-softcap-missing",
        "attention-scale-from-head-dim",
        "embedding-scale-rounded",
    },
    "optimum/kept-gemma2": {"attention-softcap-missing"},
}


def against(case: str) -> tuple[Path, str, Path]:
    return DATA / case, "--against", DATA / "checkpoints" / case.partition("/")[2]


@pytest.mark.parametrize("case", CAUSES)
def test_causes_of_released_exporters_are_named_proved_and_repaired(case: str, tmp_path: Path) -> None:
    result = paritas("diagnose", *against(case), "--repair", tmp_path / "repaired", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert {cause["code"] for cause in told["causes"]} == CAUSES[case]
    assert all(cause["proved"] for cause in told["causes"])
    assert any(region["local"] > region["unit"] for region in told["where"]["regions"] if region["local"] is not None)
    assert told["repair"]["verdict"] == "proven"
    checked = paritas("verify", tmp_path / "repaired", *against(case)[1:], "--runtime", "onnxruntime", "--json")
    assert json.loads(checked.stdout)["verdict"] == "proven"
    assert not [f for f in audit(tmp_path / "repaired", against(case)[2]).findings if f.severity == "error"]


def test_a_reproducer_needs_nothing_of_ours(tmp_path: Path) -> None:
    result = paritas("diagnose", *against("builder/kept-phi"), "--repro", tmp_path / "repro", "--quiet")
    assert result.exit_code == 1, result.output
    script = tmp_path / "repro" / "repro.py"
    ran = subprocess.run([sys.executable, "-I", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "relative difference" in ran.stdout
    assert "paritas" not in script.read_text()
    assert "norm-epsilon-default" in (tmp_path / "repro" / "README.md").read_text()


def test_what_is_right_is_left_alone(tmp_path: Path) -> None:
    result = paritas("diagnose", *against("builder/kept-llama"), "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["diverges"] is False
    refused(
        paritas("diagnose", *against("builder/kept-llama"), "--repair", tmp_path / "x", "--quiet"), "nothing-to-repair"
    )
    refused(
        paritas("diagnose", *against("builder/kept-llama"), "--repro", tmp_path / "x", "--quiet"),
        "nothing-to-reproduce",
    )
    assert not (tmp_path / "x").exists()


def test_a_verification_may_go_on_to_the_causes() -> None:
    words = (*against("builder/kept-phi"), "--runtime", "onnxruntime", "--diagnose")
    result = paritas("verify", *words, "--json")
    assert result.exit_code == 1
    assert [cause["code"] for cause in json.loads(result.stdout)["diagnosis"]["causes"]] == ["norm-epsilon-default"]


def test_values_inside(tmp_path: Path) -> None:
    package = DATA / "builder" / "kept-llama"
    result = paritas("tap", package, "--at", "*layernorm*", "--ids", "5,6,7", "--out", tmp_path / "x.npz", "--json")
    told = json.loads(result.stdout)
    assert told["undisturbed"]
    with np.load(tmp_path / "x.npz") as arrays:
        assert set(arrays) == {each["name"] for each in told["values"]}
    refused(paritas("tap", package, "--at", "logit", "--ids", "5"), "tap-value-unknown", "logits")
    refused(paritas("tap", package, "--at", "logits"), "tap-tokens-unclear")
    refused(paritas("tap", package, "--at", "logits", "--ids", "five"), "tap-token-unknown", "five")
