"""The parts of a verification, each alone: comparison, floor, verdict, probes. No model is run here."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paritas.errors import Exit, Invalid
from paritas.verify.compare import compare
from paritas.verify.floor import FP64, SDPA, Noise, floors
from paritas.verify.planning import LOGITS_LIMIT, NEW_TOKENS, make_plan
from paritas.verify.probes import Manner
from paritas.verify.reference import Facts
from paritas.verify.text import RandomIds
from paritas.verify.verdict import EXITS, Place, Verdict, combine, judge, signature

# --- comparison


def logits(positions: int, vocab: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(positions, vocab)).astype(np.float32)


@pytest.mark.parametrize("positions", [1, 31, 32, 33, 100])
def test_the_worst_place_is_found_in_every_block(positions: int) -> None:
    want = logits(positions, 50)
    got = want.copy()
    got[positions - 1, 17] += 1
    comparison = compare("s", want, got, np.full(positions, 0.01))
    assert comparison.worst == comparison.first_bad == positions - 1
    assert comparison.vocab_ids[positions - 1] == 17
    assert comparison.ratios[positions - 1] == pytest.approx(100, rel=1e-5)
    assert (comparison.ratios[:-1] == 0).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_is_infinitely_far(value: float) -> None:
    want = logits(40, 50)
    got = want.copy()
    got[35, 3] = value
    comparison = compare("s", want, got, np.full(40, 1e9))
    assert comparison.first_nonfinite == comparison.first_bad == 35
    assert judge(float(comparison.ratios.max())) is Verdict.DIVERGES


@pytest.mark.parametrize(("shape", "code"), [((9, 51), "vocabulary-differs"), ((1, 50), "logits-shape")])
def test_other_shapes_are_not_compared(shape: tuple[int, int], code: str) -> None:
    with pytest.raises(Invalid) as error:
        compare("s", logits(9, 50), logits(*shape), np.ones(9))
    assert error.value.code == code


def test_tokens_are_identical_near_ties_or_different() -> None:
    want = np.zeros((4, 5), np.float32)
    want[:, 2] = 1.0
    want[1, 3] = 1.0 - 1e-5  # the reference itself hardly prefers 2
    got = want.copy()
    got[1, 3] = 1.0 + 1e-5
    got[2, 4] = 1.5  # a fault: five hundred floors
    comparison = compare("s", want, got, np.full(4, 1e-3), prompt=1, greedy=[2, 2, 2, 2])
    tokens = comparison.tokens
    assert tokens is not None
    assert (tokens.identical, tokens.near_ties, tokens.different, tokens.first) == (2, 1, 1, 2)


def test_a_large_error_does_not_make_every_token_a_near_tie() -> None:
    want = np.zeros((1, 5), np.float32)
    want[0, 2] = 1.0
    tokens = compare("s", want, -want, np.full(1, 1e-4), prompt=1, greedy=[2]).tokens
    assert tokens is not None
    assert tokens.different == 1


# --- floor


def test_the_floor_is_the_greatest_variant_and_at_least_the_spacing() -> None:
    want = np.full((3, 4), 2.0, np.float32)
    noise = Noise.of(want)
    spacing = float(np.spacing(np.float32(2.0)))
    np.testing.assert_array_equal(noise.own, [spacing] * 3)
    for variant, size in ((SDPA, 1e-5), (FP64, 3e-5)):
        noise.add(variant, want, want.astype(np.float64) + np.array([[0.0], [size], [size / 10]]))
    np.testing.assert_allclose(noise.own, [spacing, 3e-5, 3e-6], rtol=1e-6)


def test_a_variant_that_stops_early_says_nothing_of_the_rest() -> None:
    want = np.full((3, 4), 2.0, np.float32)
    noise = Noise.of(want)
    noise.add("steps", want, want[:2] + np.float32(1e-3))
    assert np.isnan(noise.variants["steps"][2])
    assert noise.own[2] == np.spacing(np.float32(2.0))


def test_no_floor_is_below_what_nine_tenths_of_the_positions_show() -> None:
    want = np.ones((100, 4), np.float32)
    noise = Noise.of(want)
    sizes = np.linspace(1e-5, 1e-4, 100)
    sizes[0] = 1.0  # a sink: one position's noise is not another's excuse
    noise.add(FP64, want, want + sizes[:, None])
    found = floors({"s": noise})["s"]
    assert found[0] == pytest.approx(1.0)
    assert found[1] == pytest.approx(np.quantile(sizes, 0.9), rel=0.02)
    assert (found >= sizes - 1e-9).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_reference_that_is_not_finite_is_no_reference(value: float) -> None:
    want = logits(5, 6)
    want[3, 2] = value
    with pytest.raises(Invalid) as error:
        Noise.of(want)
    assert error.value.code == "reference-not-finite"
    assert "position 3" in error.value.fact


# --- verdict


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (0, Verdict.PROVEN),
        (5, Verdict.PROVEN),
        (5.01, Verdict.UNEXPLAINED),
        (12, Verdict.UNEXPLAINED),
        (12.01, Verdict.DIVERGES),
        (np.inf, Verdict.DIVERGES),
        (np.nan, Verdict.DIVERGES),
    ],
)
def test_gates(ratio: float, verdict: Verdict) -> None:
    assert judge(ratio) is verdict


@given(st.lists(st.sampled_from(Verdict)))
def test_a_pass_needs_a_probe_that_passed_and_none_that_did_not(verdicts: list[Verdict]) -> None:
    proven = combine(verdicts) is Verdict.PROVEN
    assert proven == (Verdict.PROVEN in verdicts and set(verdicts) <= {Verdict.PROVEN, Verdict.NOT_TESTED})
    assert (EXITS[combine(verdicts)] is Exit.PROVEN) == proven


def test_a_known_fault_outweighs_a_runtime_that_could_not_be_asked() -> None:
    assert combine([Verdict.INVALID, Verdict.DIVERGES, Verdict.PROVEN]) is Verdict.DIVERGES
    assert combine([Verdict.INVALID, Verdict.UNEXPLAINED]) is Verdict.INVALID


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({}, None),
        ({"short": 0, "window": 0}, "position 0"),
        ({"short": 1, "decode": 1}, "RoPE"),
        ({"window": 512, "decode": 512}, "sliding-window"),
        ({"window": 513}, "sliding-window"),
        ({"window": 300}, "over distance"),
        ({"decode": 505}, "cache"),
        ({"decode": 505, "greedy": 14}, "cache"),
        ({"greedy": 14}, "cache"),
        ({"padding": 0}, "padded rows"),
        ({"causality": 3}, "causal mask"),
        ({"padding-right": 2}, "padded rows"),
        ({"chunks": 40}, "prefill in parts"),
        ({"switch": 1, "switch-decode": 64, "end": 80}, "long RoPE"),
        ({"switch-decode": 64}, "rotated before"),
        ({"window": 64, "switch": 64}, "long RoPE, which begins there"),
        ({"end": 4000}, "end too early"),
        ({"decode": 30, "chunks": 30, "end": 90}, "cache"),
        ({"cache": 0}, None),
        ({"cache": 0, "short": 1}, "RoPE, or"),
    ],
)
def test_signatures(bad: dict[str, int], says: str | None) -> None:
    probes = ("short", "window", "decode", "greedy", "padding", "causality", "padding-right", "chunks", "cache")
    places = [Place(probe, bad.get(probe)) for probe in (*probes, "switch", "switch-decode", "end")]
    found = signature(places, [512], [64])
    assert found is says is None or (found is not None and says is not None and says in found)


# --- probes


def plan_of(
    vocab: int = 1000, positions: int | None = 4096, windows: Sequence[int] = (), switches: tuple[int, ...] = ()
):
    return make_plan(Facts(vocab, positions, tuple(windows), frozenset(), switches), RandomIds(vocab))


def test_every_switch_is_crossed() -> None:
    plan = plan_of(switches=(64, 512))
    lengths = {sequence.name: (sequence.prefill, len(sequence.ids)) for sequence in plan.sequences}
    assert {"switch", "switch-decode", "switch-2", "switch-decode-2"} <= {probe.id for probe in plan.probes}
    for name, switch in (("switch-decode", 64), ("switch-decode-2", 512)):
        assert lengths[name][0] <= switch < lengths[name][1]
    assert signature([Place("short", None), Place("switch-2", 512), Place("switch-decode-2", 512)], [], (64, 512)) == (
        "only beyond the length at which RoPE changes: long RoPE"
    )


def test_a_model_of_one_position_is_asked_what_can_be_asked() -> None:
    plan = plan_of(positions=1)
    assert {len(sequence.ids) for sequence in plan.sequences} == {1}
    obstacles = {probe.id: probe.obstacle for probe in plan.probes}
    assert obstacles["short"] is None
    assert obstacles["decode"] == obstacles["causality"] == "there is room for one token alone"


@given(
    positions=st.one_of(st.none(), st.integers(16, 9000)),
    windows=st.lists(st.integers(1, 5000), max_size=2, unique=True).map(sorted),
)
def test_no_sequence_is_longer_than_the_model(positions: int | None, windows: list[int]) -> None:
    plan = plan_of(positions=positions, windows=windows)
    room = positions or 1 << 30
    by_name = {s.name: s for s in plan.sequences}
    for sequence in plan.sequences:
        assert 0 < sequence.prefill <= sequence.stop <= len(sequence.ids) <= room
    assert all(len(ids) + NEW_TOKENS <= room for _, ids in plan.prompts)
    inside = [window for window in windows if window < room]
    if inside and "window" in by_name:
        assert len(by_name["window"].ids) > inside[-1]
        assert by_name["window"].prefill <= inside[-1] < by_name["window"].stop
    known = set(by_name) | {name for name, _ in plan.prompts}
    assert all(set(p.sequences) <= known for p in plan.probes if p.obstacle is None)


def test_rows_of_the_padded_batch_differ_in_length_and_cross_a_small_window() -> None:
    plan = plan_of(windows=[8])
    rows = [s for s in plan.sequences if s.name.startswith("row")]
    assert len({len(row.ids) for row in rows}) == 2
    assert all(len(row.ids) > 16 for row in rows)


def test_a_window_that_does_not_fit_into_memory_is_not_tested_and_says_why() -> None:
    vocab = 262_144
    assert (4096 + 4096 // 3) * vocab * 4 > LOGITS_LIMIT
    probes = {p.id: p for p in plan_of(vocab, 131_072, [4096]).probes}
    assert "GiB" in (probes["window"].obstacle or "")
    assert "GiB" in (probes["decode"].obstacle or "")
    assert probes["short"].obstacle is None


def test_a_window_of_a_small_real_model_is_tested() -> None:
    probes = {p.id: p for p in plan_of(262_144, 32_768, [512]).probes}
    assert probes["window"].obstacle is None
    assert probes["causality"].manner is Manner.CHANGED_TOKENS


def test_random_ids_are_the_same_every_time() -> None:
    assert RandomIds(1000).prompt("a b") == RandomIds(1000).prompt("a b")
    assert RandomIds(1000).prompt("a b") != RandomIds(1000).prompt("a c")
    assert max(RandomIds(7).running(500)) <= 6
