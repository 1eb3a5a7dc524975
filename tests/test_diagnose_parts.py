"""Faults in wiring, mixtures of experts and packed parts, beyond the corpus: each named, proved both ways, repaired."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mutants.graphs import after, another_type, attributes, both, bypass, in_turn, of, using, values
from mutants.mutant import Change
from paritas.audit.sources import Source
from paritas.checkpoint import Tensor
from paritas.diagnose.activations import applied, library
from paritas.diagnose.routing import Rule, rule_of
from paritas.diagnose.skips import norms_alone
from paritas.diagnose.slices import has_rows_of, place_of
from paritas.diagnose.streams import streams
from paritas.diagnose.why import explain
from paritas.diagnose.xielu import Xielu, xielu_of
from paritas.export import export
from paritas.plan import Options
from paritas.targets import TARGETS
from paritas.verify.verdict import PROVEN_FLOORS
from rounding import rounded
from test_diagnose_why import case_of, proved

Array = np.ndarray[Any, Any]


def first_zero(stack: Array) -> Array:
    return np.concatenate([0 * stack[:1], stack[1:]])


def halves_exchanged(stack: Array) -> Array:
    """Rows of gate and up in turn, the other one first."""
    return stack.reshape(len(stack), -1, 2, *stack.shape[2:])[:, :, ::-1].reshape(stack.shape)


# Fault -> checkpoint, target, change, code of its cause.
FAULTS: Mapping[str, tuple[str, str, Change, str]] = {
    "a norm left out before the MLP": (
        "llama",
        "onnx",
        bypass(using(r"layers\.1\.post_attention_layernorm")),
        "norm-missing",
    ),
    "the stream halved": (
        "qwen3",
        "onnx",
        after(both(of("Add"), using(r"layers\.1\.mlp\.down_proj")), "Mul", np.float32(0.5)),
        "residual-stream-scaled",
    ),
    "rows of gate and up in the other order": (
        "mixtral",
        "ort",
        values(r"layers\.0\.mlp\.experts\.gate_up_proj", halves_exchanged),
        "experts-gate-up-misplaced",
    ),
    "an expert of zeros": (
        "qwen3_moe",
        "onnx",
        values(r"layers\.3\.mlp\.experts\.down_proj\.weight", first_zero),
        "expert-weights-wrong",
    ),
    "biases of experts left out": (
        "gpt_oss",
        "ort",
        values(r"mlp\.experts\.down_proj\.bias", np.zeros_like),
        "expert-weights-wrong",
    ),
    "scores as they are": (
        "olmoe",
        "onnx",
        another_type(of("Softmax"), "Identity"),
        "router-scoring-wrong",
    ),
    "an expert too many": ("gpt_oss", "ort", attributes(of("MoE"), k=4), "router-experts-count-wrong"),
    "numbers of xIELU": ("apertus", "onnx", values(r"act_fn\.alpha_p", lambda a: a + 0.25), "activation-number-wrong"),
    "logits through fp16": (
        "llama",
        "onnx",
        in_turn(
            after(lambda node: "logits" in node.output, "Cast", to=onnx.TensorProto.FLOAT),
            after(lambda node: "logits.before.Cast" in node.output, "Cast", to=onnx.TensorProto.FLOAT16),
        ),
        "logit-rounded",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_proved_and_repaired(name: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    source, target, change, code = FAULTS[name]
    export(checkpoint(source), tmp_path / "package", TARGETS[target], Options())
    package = rounded(tmp_path / "package", tmp_path / "wrong", change)
    why = explain(case_of(package, checkpoint(source)))
    assert proved(why) == {code}
    assert why.witness.floors > PROVEN_FLOORS


def test_sums_that_modules_take_are_seen(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Also those of a layer whose two branches take one stream, and those with a multiplier."""
    for name, taker, wanted in (
        ("gpt_neox", "model.layers.1.post_attention_layernorm", {"model.layers.1.in": 1.0}),
        (
            "granite",
            "model.layers.1.post_attention_layernorm",
            {"model.layers.1.in": 1.0, "model.layers.1.self_attn.o_proj": 0.27},
        ),
    ):
        export(checkpoint(name), tmp_path / name, TARGETS["onnx"], Options())
        case = case_of(tmp_path / name, checkpoint(name))
        paths = list(dict.fromkeys(s.held.rpartition(".")[0] for s in case.slots if s.held.endswith(".weight")))
        assert streams(case.live, paths, "model.norm", "lm_head").sums[taker] == pytest.approx(wanted, rel=1e-6)


def test_rules_of_routers_are_told_apart() -> None:
    scores = np.random.default_rng(1).normal(size=(12, 6))
    for rule in (Rule("softmax", 2, True), Rule("softmax", 3, False), Rule("sigmoid", 2, True), Rule("none", 1, False)):
        assert rule_of(scores, rule.weights(scores)) == (rule, 1.0)
        found = rule_of(scores, 2.5 * rule.weights(scores), (rule,))
        assert found is not None
        assert found == (rule, pytest.approx(2.5))
    assert rule_of(scores, np.random.default_rng(2).random((12, 6))) is None


def test_numbers_of_xielu_are_read_off_a_line() -> None:
    line = np.linspace(-6, 6, 241, dtype=np.float32)
    made = np.where(line > 0, 0.7 * line**2, 1.3 * (np.expm1(line) - line)) + 0.5 * line
    found = xielu_of(line, made.astype(np.float32))
    assert found is not None
    assert (found.square, found.negative, found.linear) == pytest.approx((0.7, 1.3, 0.5), rel=1e-4)
    assert isinstance(found, Xielu)
    assert all(
        xielu_of(line, applied(library()[word], line)) is None
        for word in library()
        if word not in ("relu2", "elu", "none")
    )


def test_skip_norms_without_names_are_taken_apart() -> None:
    make = onnx.helper.make_node
    operator = "SkipSimplifiedLayerNormalization"
    nodes = [make(operator, ["x", f"y{n}", "w"], [f"normed{n}", "", "", f"sum{n}"]) for n in range(2)]
    proto = onnx.helper.make_model(onnx.helper.make_graph(nodes, "two", [], []))
    sums = {f"sum{n}": node for n, node in enumerate(proto.graph.node)}
    copies = norms_alone(proto, sums, {"normed0", "sum0", "normed1", "sum1"})
    assert copies.keys() == {"normed0", "normed1"}
    copied = [node for node in proto.graph.node if node.output[0] in copies.values()]
    assert len({node.name for node in copied}) == len(copied) == 2  # ONNX Runtime refuses two of one name


class InMemory(Tensor):
    """A tensor of no file."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.name, self.shape, self.dtype, self.place = "packed.weight", values.shape, "F32", "memory"
        self._values = values

    def rows(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        return self._values[start:stop]


def test_parts_of_a_tensor_are_found_by_their_rows_however_they_are_rounded() -> None:
    random = np.random.default_rng(3)
    whole = random.normal(size=(24, 32)).astype(np.float32)
    source = Source("packed.weight", InMemory(whole))
    rounded = np.round(whole * 8) / 8
    assert place_of(rounded[8:16], source) == 8
    assert place_of(rounded[::3], source) is None  # its rows alternate with others'
    assert has_rows_of(rounded[::3], source)
    assert not has_rows_of(random.normal(size=(8, 32)).astype(np.float32), source)
