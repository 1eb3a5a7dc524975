"""The reference's own noise: enough of it that nothing right is called wrong, nothing in it that is no rounding."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from paritas.checkpoint import open_checkpoint
from paritas.errors import Invalid
from paritas.export import export
from paritas.plan import Options
from paritas.targets import TARGETS
from paritas.verify.floor import FP64, NUDGED, SDPA, STEPS, Noise, floors, strangers
from paritas.verify.reference import Reference
from paritas.verify.run import verify
from paritas.verify.truth import find_truths
from paritas.verify.verdict import Verdict
from tiny import tiny_gemma3, tiny_llama


def noise_of(sizes: Mapping[str, float]) -> Noise:
    """Ten positions, each variant so far off."""
    want = np.ones((10, 4), np.float32)
    noise = Noise.of(want)
    for variant, size in sizes.items():
        noise.add(variant, want, want + np.float64(size))
    return noise


def test_a_variant_far_beyond_all_others_is_no_rounding() -> None:
    noise = noise_of({FP64: 2e-6, SDPA: 1e-6, STEPS: 2.9})
    assert list(strangers({"s": noise})) == [STEPS]
    assert "2.9 from the reference" in strangers({"s": noise})[STEPS]


def test_one_sequence_is_enough_to_tell_a_stranger() -> None:
    assert list(strangers({"a": noise_of({FP64: 1e-6, SDPA: 1e-6}), "b": noise_of({FP64: 1e-6, SDPA: 0.1})})) == [SDPA]


def test_a_noisy_variant_is_rounding_all_the_same() -> None:
    assert strangers({"s": noise_of({FP64: 2e-6, SDPA: 4e-4})}) == {}


def test_fp64_is_no_stranger() -> None:
    """Every fp32 variant has the same kernels; where these are far off, fp64 alone shows it."""
    assert strangers({"s": noise_of({FP64: 0.01, SDPA: 1e-6, STEPS: 1e-6})}) == {}


def test_a_window_of_one_token_is_judged_by_rounding_alone(tmp_path: Path) -> None:
    """transformers 5.24 decodes it wrongly, by more than any fault: a floor of that would prove everything."""
    tiny_gemma3(tmp_path, sliding_window=1)
    truths = find_truths(open_checkpoint(tmp_path))
    assert list(truths.refused) == [STEPS]
    for truth in truths.by_name.values():
        assert set(truth.variants) == {SDPA, FP64, *NUDGED}
        assert truth.floors.max() < 1e-4


def test_a_nudge_moves_every_matrix_by_a_last_bit_at_most(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    reference = Reference(open_checkpoint(tmp_path))
    before = {name: value.clone() for name, value in reference._model.state_dict().items()}
    reference.to_fp64()
    reference.nudge(0)
    for name, value in reference._model.state_dict().items():
        assert value.dtype is torch.float32
        moved = (value - before[name]).abs() / before[name].abs()
        assert moved.max() <= 2**-23
        assert 0.5 < (moved > 0).float().mean() < 0.8


def test_a_nudge_is_a_draw_from_the_same_noise(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    truths = find_truths(open_checkpoint(tmp_path))
    variants = [truth.variants for truth in truths.by_name.values()]
    usual = {name: np.median(np.concatenate([each[name] for each in variants])) for name in (FP64, *NUDGED)}
    for name in NUDGED:
        assert usual[FP64] / 4 < usual[name] < 4 * usual[FP64]


@pytest.mark.parametrize("target", TARGETS)
def test_a_package_of_a_shorter_context_is_asked_no_more_than_it_covers(target: str, tmp_path: Path) -> None:
    tiny_gemma3(tmp_path / "model")
    export(tmp_path / "model", tmp_path / "package", TARGETS[target], Options(context=21))
    evidence = verify(tmp_path / "package", tmp_path / "model", cache=False)
    assert evidence.verdict is Verdict.PROVEN
    assert max(len(sequence.ids) for sequence in evidence.sequences) <= 21
    (note,) = (finding for finding in evidence.findings if finding.code == "package-context")
    assert "21 of the checkpoint's 128 positions" in note.message


def test_what_transformers_refuses_in_a_configuration_is_told(tmp_path: Path) -> None:
    tiny_gemma3(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"query_pre_attn_scalar": 2.5}))
    with pytest.raises(Invalid, match="reference-unloadable") as error:
        find_truths(open_checkpoint(tmp_path))
    assert "'query_pre_attn_scalar' expected int" in error.value.fact


def test_floors_grow_with_every_variant() -> None:
    few, more = noise_of({FP64: 1e-6}), noise_of({FP64: 1e-6, NUDGED[0]: 3e-6})
    assert (floors({"s": more})["s"] > floors({"s": few})["s"]).all()
