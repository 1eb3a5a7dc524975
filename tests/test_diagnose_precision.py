"""Packages of less than fp32: right ones have no cause, wrong ones the cause that they would have in fp32, repaired."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paritas.diagnose.diagnosis import Proof
from paritas.diagnose.parameters import differences
from paritas.diagnose.repair import write
from paritas.diagnose.run import diagnose
from paritas.verify.verdict import PROVEN_FLOORS, Verdict
from rounding import changed, compensated
from test_precision import INT4, INVALID, KEPT, RIGHT, WRONG, Made, make

__all__ = ["make"]  # a fixture

Make = Callable[[Made], tuple[Path, Path]]

RIGHT_ONES = (
    "int4, symmetric",
    "int4, window and softcap",
    "fp16, biases and llama3 RoPE",
    "fp16 with int4",
    "int4 with a table of fp16",
)

# Line of test_precision's table -> code of its cause, a part of where it is.
NAMED = {
    "int4, a scale off by 1 %": ("weight-beyond-its-bits", "layers.0.self_attn.q_proj"),
    "int4, one block of other integers": ("weight-beyond-its-bits", "layers.0.self_attn.q_proj"),
    "fp16, a matrix 1 % larger": ("weight-scaled", "layers.0.self_attn.q_proj"),
    "int4, a row of zeros": ("weight-beyond-its-bits", "layers.1.mlp.down_proj"),
    "fp16, a matrix of zeros": ("weight-zeroed", "layers.0.self_attn.q_proj"),
    "int4, two layers' MLP swapped": ("weight-of-another-layer", "layers 0-1"),
    "int4, gate and up swapped": ("gate-up-swapped", "layer 2: mlp.gate_proj"),
    "fp16, two layers' attention swapped": ("weight-of-another-layer", "layers 0, 2"),
    "int4, theta 1 % larger": ("rope-theta-wrong", "layers 0-2"),
    "int4, epsilon ten times larger": ("norm-epsilon-wrong", "layers 0-2"),
    "int4, window one too long": ("window-off-by-one", "layers 0"),
    "int4, softcap dropped": ("logit-softcap-missing", "logits"),
    "int4, 1 + weight rounded to bf16": ("norm-offset-rounded", "layers 0-6"),
    "fp16, epsilon ten times larger": ("norm-epsilon-wrong", "layers 0-2"),
    "fp16, theta 1 % larger": ("rope-theta-wrong", "layers 0-2"),
    "fp16, window one too long": ("window-off-by-one", "layers 0"),
}

WRITTEN = frozenset(
    {
        "int4, a scale off by 1 %",
        "int4, a row of zeros",
        "int4, two layers' MLP swapped",
        "int4, epsilon ten times larger",
        "fp16, theta 1 % larger",
        "fp16, a matrix of zeros",
    }
)
"""Those that are written and verified as well."""


@pytest.mark.parametrize("name", RIGHT_ONES)
def test_a_right_package_has_nothing_to_diagnose(name: str, make: Make) -> None:
    found = diagnose(*make(RIGHT[name]))
    assert not found.diagnosis.diverges
    assert (found.diagnosis.causes, found.diagnosis.suspects, found.edit) == ((), (), None)
    assert differences(found.case) == ()


@pytest.mark.parametrize("name", ["builder-int4/kept-llama", "mobius-f16/kept-llama"])
def test_right_packages_of_other_exporters_have_nothing_to_diagnose(name: str) -> None:
    found = diagnose(KEPT / name, KEPT / "checkpoints" / Path(name).name)
    assert not found.diagnosis.diverges
    assert found.diagnosis.worst_floors <= PROVEN_FLOORS
    assert differences(found.case) == ()


def test_a_norm_that_its_type_cannot_hold_is_written_in_fp32(make: Make, tmp_path: Path) -> None:
    found = diagnose(*make(WRONG["fp16, 1 + weight rounded to fp16"]))
    assert {cause.suspect.code for cause in found.diagnosis.causes} == {"norm-offset-rounded"}
    assert found.diagnosis.is_proved
    assert found.edit is not None
    assert write(found.case, found.edit, tmp_path / "repaired").evidence.verdict is Verdict.PROVEN


def test_integers_that_make_up_for_their_errors_are_named_and_not_proved(make: Make) -> None:
    made = Made("llama", "ort", INT4, (changed(r"layers\.\d\.mlp.*_Q4", compensated),))
    found = diagnose(*make(made)).diagnosis
    assert found.diverges
    assert {(cause.suspect.code, cause.proof) for cause in found.causes} == {
        ("weight-beyond-its-bits", Proof.NOT_PROVED)
    }


@pytest.mark.parametrize("name", INVALID)
def test_what_is_near_no_parameter_is_named_by_its_place(name: str, make: Make) -> None:
    found = diagnose(*make(INVALID[name])).diagnosis
    assert {(cause.suspect.code, cause.proof) for cause in found.causes} == {("weight-noise", Proof.PROVED)}
    assert "layers.0.self_attn.q_proj" in found.causes[0].suspect.where


@pytest.mark.parametrize("name", NAMED)
def test_a_fault_is_named_proved_and_repaired(name: str, make: Make, tmp_path: Path) -> None:
    code, where = NAMED[name]
    found = diagnose(*make(WRONG[name]))
    assert {cause.suspect.code for cause in found.diagnosis.causes} == {code}
    assert where in found.diagnosis.causes[0].suspect.where
    assert {cause.proof for cause in found.diagnosis.causes} == {Proof.PROVED}
    assert found.edit is not None
    if name in WRITTEN:
        assert write(found.case, found.edit, tmp_path / "repaired").evidence.verdict is Verdict.PROVEN
