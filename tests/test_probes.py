"""What is asked and what it finds: every probe on a model of a few lines with one fault, and on transformers' own."""

import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, PreTrainedConfig, Qwen3MoeConfig

from paritas.checkpoint import open_checkpoint
from paritas.errors import Invalid
from paritas.export import export
from paritas.runtime.decoder import Decoder
from paritas.runtime.package import open_package
from paritas.targets import TARGETS
from paritas.verify import breaking, judging, report
from paritas.verify.evidence import CheckpointRecord, Evidence, PowerRecord, ProbeRecord
from paritas.verify.floor import FP64, SDPA
from paritas.verify.planning import make_plan
from paritas.verify.power import blind_spots
from paritas.verify.probes import Manner, changed_positions, chunks
from paritas.verify.reference import Facts
from paritas.verify.report import render
from paritas.verify.run import judge as judge_package
from paritas.verify.text import RandomIds
from paritas.verify.truth import Ids, Truth, Truths, find_truths
from paritas.verify.verdict import PROVEN_FLOORS, Verdict
from tiny import randomize

VOCAB, POSITIONS = 50, 256
RAW = ("onnxruntime",)


@dataclass
class ToyState:
    ids: NDArray[np.int64]
    mask: NDArray[np.int64]

    @property
    def length(self) -> int:
        return self.ids.shape[1]


class Toy:
    """Logits of a token depend on it, on its position and on all before it; ``fault`` says what is wrong with it."""

    runtime, version = "onnxruntime", "1"

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        random = np.random.default_rng(3)
        self.tokens, self.places = random.normal(size=(VOCAB, VOCAB)), random.normal(size=(POSITIONS, VOCAB))

    def forward(self, ids: NDArray[np.int64], state: Any = None, mask: Any = None) -> tuple[Any, ToyState]:
        new = ids.shape[1]
        ids = ids if state is None else np.concatenate([state.ids, ids], axis=1)
        mask = np.ones_like(ids) if mask is None else mask
        if self.fault == "refuses chunks" and state is not None and new > 1:
            raise Invalid("runtime-failed", "one token a call")
        if self.fault == "ignores the mask":
            mask = np.ones_like(ids)
        logits = np.stack([self._row(*row, new, state) for row in zip(ids, mask, strict=True)])
        return logits[:, -new:].astype(np.float32), ToyState(ids, mask)

    def _row(self, ids: NDArray[np.int64], mask: NDArray[np.int64], new: int, state: Any) -> NDArray[np.float64]:
        places = np.maximum(mask.cumsum() - 1, 0)
        if self.fault == "chunks start again" and state is not None and new > 1:
            places = np.maximum(places - state.length, 0)
        if self.fault == "short table":
            places = np.minimum(places, POSITIONS - 20)
        if self.fault == "wrong beyond 64":
            places = np.where(len(ids) > 64, places // 2, places)
        values = self.tokens[ids] * mask[:, None]
        seen = values.sum(0) - values.cumsum(0) if self.fault == "sees the future" else values.cumsum(0)
        return self.tokens[ids] + self.places[places] + 0.1 * seen


def toy_facts(**changes: Any) -> Facts:
    return replace(Facts(VOCAB, POSITIONS, (), frozenset(), (), 1000), **changes)


def toy_truths(facts: Facts) -> Truths:
    plan = make_plan(facts, RandomIds(VOCAB))
    truth: dict[str, Truth] = {}
    for sequence in plan.sequences:
        logits = Toy().forward(np.array([sequence.ids]))[0][0]
        truth[sequence.name] = Truth(sequence, logits, np.full(len(logits), 1e-5), {})
    probes = tuple(probe for probe in plan.probes if probe.id not in ("greedy", "cache"))
    checkpoint = CheckpointRecord(name="toy", reference="Toy", sha256="")
    return Truths(checkpoint, facts, Ids("random", 1), probes, truth, {})


def toy_verdicts(fault: str, facts: Facts) -> tuple[dict[str, ProbeRecord], str | None]:
    truths = toy_truths(facts)
    decoder: Decoder = Toy(fault)
    judged = judging.settled([judging.probe_record(decoder, p, truths) for p in truths.probes], truths.probes)
    records = [record for record, _ in judged]
    return {r.id: r for r in records}, judging.runtime_signature(records, facts.windows, facts.switches)


@pytest.mark.parametrize(
    ("fault", "bad", "says"),
    [
        ("", set(), None),
        ("chunks start again", {"chunks"}, "prefill in parts"),
        ("ignores the mask", {"padding"}, "padded rows"),
        ("short table", {"long", "chunks"}, "over distance"),
        ("sees the future", {"causality"}, "causal mask"),
    ],
)
def test_the_probe_finds_its_fault_and_the_signature_names_it(fault: str, bad: set[str], says: str | None) -> None:
    records, signature = toy_verdicts(fault, toy_facts())
    found = {name for name, record in records.items() if record.verdict is Verdict.DIVERGES}
    assert bad <= found if says in ("causal mask", "over distance") else bad == found
    assert signature is says is None or says in (signature or "")


def test_a_fault_of_the_last_positions_alone_is_found() -> None:
    facts = toy_facts(windows=(16,))
    records, signature = toy_verdicts("short table", facts)
    assert {name for name, record in records.items() if record.verdict is Verdict.DIVERGES} == {"end"}
    assert records["end"].first_bad is not None
    assert records["end"].first_bad.position == POSITIONS - 19
    assert "end too early" in (signature or "")


def test_a_fault_beyond_the_switch_is_found() -> None:
    records, signature = toy_verdicts("wrong beyond 64", toy_facts(switches=(64,), windows=(8,)))
    found = {name for name, record in records.items() if record.verdict is Verdict.DIVERGES}
    assert {"switch", "switch-decode"} <= found <= {"switch", "switch-decode", "end"}
    assert "long RoPE" in (signature or "")


def test_a_runtime_that_refuses_chunks_is_not_called_wrong() -> None:
    records, _ = toy_verdicts("refuses chunks", toy_facts())
    assert records["chunks"].verdict is Verdict.NOT_TESTED
    assert "one token a call" in (records["chunks"].reason or "")
    assert records["decode"].verdict is Verdict.PROVEN


@pytest.mark.parametrize("length", range(2, 600, 13))
def test_chunks_are_all_of_it_and_uneven(length: int) -> None:
    assert sum(chunks(length)) == length
    assert min(chunks(length)) > 0
    assert length < 8 or len(set(chunks(length))) == 3


def test_tokens_are_changed_at_the_end_in_the_middle_and_at_the_start() -> None:
    assert changed_positions(12) == (11, 6, 1)
    assert changed_positions(2) == (1,)


# --- planning


def planned(**facts: Any) -> dict[str, Any]:
    return {probe.id: probe for probe in make_plan(toy_facts(**facts), RandomIds(VOCAB)).probes}


def test_a_context_that_is_cheap_is_run_to_its_end() -> None:
    assert planned(positions=1024)["end"].obstacle is None
    assert planned(positions=1024, vocab=262_144)["end"].obstacle is not None
    assert planned(positions=1024, parameters=10**9)["end"].obstacle is not None
    assert "8,192" in planned(positions=8192)["end"].obstacle
    assert "end" not in planned(positions=512)  # the long sequence is there already
    assert "to the last position" in planned(positions=512)["long"].boundary


def test_the_long_sequence_is_as_long_as_it_is_cheap() -> None:
    def length(**facts: Any) -> int:
        plan = make_plan(toy_facts(positions=8192, **facts), RandomIds(VOCAB))
        return next(len(s.ids) for s in plan.sequences if s.name == "long")

    assert length() == 512
    assert length(parameters=135_000_000) == 512
    assert length(parameters=10**9) == length(vocab=10**6) == 160


def test_a_switch_beyond_the_package_is_not_tested_and_says_so() -> None:
    switch = planned(switches=(4096,), positions=1024)["switch"]
    assert "4,096" in switch.obstacle
    assert "1,024" in switch.obstacle


@pytest.mark.parametrize("switch", [6, 20, 64, 200, 300])
@pytest.mark.parametrize("windows", [(), (8,), (100,)])
def test_no_sequence_mixes_what_transformers_computes_in_two_ways(switch: int, windows: tuple[int, ...]) -> None:
    plan = make_plan(toy_facts(positions=1024, switches=(switch,), windows=windows), RandomIds(VOCAB))
    for sequence in plan.sequences:
        mixed = sequence.prefill <= switch < len(sequence.ids) and sequence.stop > sequence.prefill
        assert not mixed or sequence.stepwise, sequence.name


# --- the reference of families that we do not export


def saved(folder: Path, config: PreTrainedConfig) -> Path:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model)
    model.save_pretrained(folder)
    return folder


SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_the_reference_has_a_floor_on_both_sides_of_a_switch(kind: str, tmp_path: Path) -> None:
    if kind == "longrope":
        factors = {"short_factor": [1.0] * 6, "long_factor": [2.0 + i for i in range(6)]}
        rope = {"rope_type": kind, "rope_theta": 1e4, "original_max_position_embeddings": 64, **factors}
        config: PreTrainedConfig = Phi3Config(
            **SMALL, max_position_embeddings=128, original_max_position_embeddings=64, rope_parameters=rope
        )
    else:
        rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
        config = LlamaConfig(**SMALL, max_position_embeddings=64, rope_parameters=rope)
    truths = find_truths(open_checkpoint(saved(tmp_path / "model", config)))
    assert truths.facts.switches == (64,)
    assert truths.facts.positions == 128
    assert {"switch", "switch-decode", "end"} <= truths.by_name.keys()
    assert max(float(truth.floors.max()) for truth in truths.by_name.values()) < 1e-4
    one_pass, decoded = truths.by_name["switch"].logits, truths.by_name["switch-decode"].logits
    assert np.abs(one_pass[60] - decoded[60]).max() > 1e-3  # before the switch: other factors than in one pass


def test_experts_are_asked_in_fp64_too(tmp_path: Path) -> None:
    """transformers multiplies grouped experts in fp32 alone; one after the other it computes them in any type."""
    config = Qwen3MoeConfig(
        **SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=16, norm_topk_prob=True
    )
    truths = find_truths(open_checkpoint(saved(tmp_path / "model", config)))
    assert not truths.refused
    for truth in truths.by_name.values():
        assert 0 < np.nanmax(truth.variants[FP64]) < 1e-4
        assert SDPA in truth.variants
        assert (truth.floors > 0).all()
    assert {"the experts' weights normalised otherwise"} <= {sight.fault for sight in truths.power}


# --- caches


@pytest.fixture
def package(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    export(checkpoint("llama"), tmp_path / "package", TARGETS["onnx"])
    return tmp_path / "package"


def changed(package: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    into = package.parent / "changed"
    shutil.copytree(package, into)
    model = onnx.load(into / "model.onnx")
    change(model)
    (into / "model.onnx.data").unlink()
    onnx.save(model, into / "model.onnx")
    return into


def keeps_negated_keys(model: onnx.ModelProto) -> None:
    past, present = "past_key_values.1.key", "present.1.key"
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = {past: "past", present: "now"}.get(name, name)
    model.graph.node.insert(0, helper.make_node("Neg", [past], ["past"]))
    model.graph.node.append(helper.make_node("Neg", ["now"], [present]))


def one_key_row(model: onnx.ModelProto) -> None:
    found = next(i for i in model.graph.initializer if i.name == "model.layers.1.self_attn.k_proj.weight")
    values = onnx.numpy_helper.to_array(found).copy()
    values.flat[:7] += 0.1
    found.CopyFrom(onnx.numpy_helper.from_array(values, found.name))


def cache_of(evidence: Evidence) -> ProbeRecord:
    return next(probe for probe in evidence.probes if probe.id == "cache")


def test_other_contents_with_the_right_logits_are_another_layout(judge: Any, package: Path) -> None:
    evidence = judge("llama", changed(package, keeps_negated_keys), *RAW)
    assert evidence.verdict is Verdict.PROVEN
    assert cache_of(evidence).verdict is Verdict.NOT_TESTED
    assert "otherwise" in (cache_of(evidence).reason or "")


def test_the_first_wrong_layer_is_named(judge: Any, package: Path) -> None:
    evidence = judge("llama", changed(package, one_key_row), *RAW)
    assert evidence.verdict is Verdict.DIVERGES
    assert cache_of(evidence).first_bad is not None
    assert cache_of(evidence).first_bad.sequence == "layer 1 keys"
    assert "cache-diverges" in {finding.code for finding in evidence.findings}


# --- power


@pytest.fixture(scope="module")
def gemma(checkpoint: Callable[[str], Path]) -> Truths:
    return find_truths(open_checkpoint(checkpoint("gemma3")))


def test_every_known_fault_would_be_seen(gemma: Truths) -> None:
    most: dict[str, float] = {}
    for sight in gemma.power:
        most[sight.fault] = max(sight.floors, most.get(sight.fault, 0.0))
    assert set(most) == {
        "a window of 9 for 8",
        "a window of 7 for 8",
        "an attention scale 1 % larger",
        "a norm's epsilon ten times larger",
        "GELU by its other formula",
        "no cap on the logits",
        "a RoPE base 1 % larger",
        "the embedding's scale rounded to bf16",
        "the embedding's scale rounded to two decimals",
        "1 + weight of the norms rounded to bf16",
        "one row of the head zero",
    }
    assert min(most.values()) > 10 * PROVEN_FLOORS


def test_every_fault_is_taken_back(checkpoint: Callable[[str], Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint("gemma3"), attn_implementation="eager", dtype=torch.float32)
    ids = torch.arange(7, 27)[None]
    with torch.inference_mode():
        before = model(ids).logits
        for fault in breaking.faults(model, frozenset(ids[0].tolist())):
            with fault.within():
                assert not torch.equal(model(ids).logits, before), fault.name
            assert torch.equal(model(ids).logits, before), fault.name


def test_without_power_nothing_is_measured_and_the_rest_is_the_same(checkpoint: Callable[[str], Path]) -> None:
    with_power, without = (find_truths(open_checkpoint(checkpoint("llama")), power=each) for each in (True, False))
    assert with_power.power
    assert not without.power
    for name, truth in with_power.by_name.items():
        np.testing.assert_array_equal(truth.floors, without.by_name[name].floors)


def test_where_nobody_looked_is_said() -> None:
    spots = blind_spots(toy_facts(positions=8192), {"short": 12, "long": 512}, {"padding": "left"})
    assert spots == ("positions from 512 to 8,191", "padding (left)", "batches")
    assert blind_spots(toy_facts(positions=512), {"long": 512, "padding": 24}, {}) == ("batches of more than two rows",)


def test_the_evidence_and_the_screen_tell_both(
    gemma: Truths, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    from rich.console import Console

    export(checkpoint("gemma3"), tmp_path / "package", TARGETS["ort"])
    evidence = judge_package(open_package(tmp_path / "package"), gemma, RAW)
    assert {record.fault for record in evidence.power} == {sight.fault for sight in gemma.power}
    assert any(spot.startswith("padding") for spot in evidence.blind)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render(evidence))
    text = console.export_text()
    assert "would have shown, the faintest first: GELU by its other formula" in text
    assert "and 8 more" in text
    assert "not looked at: padding" in text


def test_a_fault_that_would_have_passed_is_named() -> None:
    faint = Evidence.model_construct(power=(PowerRecord(fault="a fault", probe="short", floors=4.0),))
    assert list(report._power(faint)) == [("would not have shown", "a fault (4.0 floors)")]


def test_the_manners_all_have_a_probe() -> None:
    asked = {probe.manner for probe in planned(switches=(64,)).values()}
    assert asked == set(Manner) - {Manner.HIDDEN}  # which is asked of a package that gives hidden states
