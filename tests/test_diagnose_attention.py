"""Faults of rotations, masks, caches and attention beyond the corpus: named, proved both ways, repaired."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import rounding
from mutants.graphs import another_type, before, both, in_turn, inputs, of, using
from mutants.making import checkpoint as checkpoint_of
from mutants.making import make
from mutants.mutant import Mutant, Topic
from paritas.diagnose import repair
from paritas.diagnose.diagnosis import Proof
from paritas.diagnose.run import diagnose
from paritas.spec import Activation
from paritas.verify.verdict import Verdict
from test_family_mutants import LATE, in_longrope
from test_mutants import in_mlp, in_rope

FP16, FP32 = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT


def rounded_to_fp16(place: int) -> Callable[[onnx.ModelProto], None]:
    """An input of each attention operator through fp16."""
    return in_turn(before(of("Attention"), place, "Cast", to=FP16), before(of("Attention"), place, "Cast", to=FP32))


def one_later_when_decoding(model: onnx.ModelProto) -> None:
    """Positions of a call after others, one too large: as if the past had a token more."""
    (taken,) = {node.input[3] for node in model.graph.node if node.op_type == "RotaryEmbedding"}
    mask = next(value.name for value in model.graph.input if "mask" in value.name)
    names = [f"later.{number}" for number in range(6)]
    constants = {"later.one": np.array(1, np.int64)}
    nodes = [
        onnx.helper.make_node("Shape", [mask], [names[0]], start=1, end=2),
        onnx.helper.make_node("Shape", ["input_ids"], [names[1]], start=1, end=2),
        onnx.helper.make_node("Sub", [names[0], names[1]], [names[2]]),
        onnx.helper.make_node("Min", [names[2], "later.one"], [names[3]]),
        onnx.helper.make_node("Add", [taken, names[3]], [names[4]]),
    ]
    for node in model.graph.node:
        if node.op_type == "RotaryEmbedding":
            node.input[3] = names[4]
    place = next(at for at, node in enumerate(model.graph.node) if taken in node.output)
    for number, node in enumerate(nodes):
        model.graph.node.insert(place + 1 + number, node)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())


def one_owner_for_another(model: onnx.ModelProto) -> None:
    """The last layer without keys of its own attends to those of the other owner."""
    last = [node for node in model.graph.node if node.op_type == "Attention"][-1]
    number = last.input[1].split(".")[1]
    others = [node for node in model.graph.node if node.op_type == "Attention" and node.input[1].startswith("present.")]
    other = next(node.input[1].split(".")[1] for node in others if node.input[1].split(".")[1] != number)
    for place in (1, 2):
        last.input[place] = last.input[place].replace(f".{number}.", f".{other}.")


def mutant(kind: str, name: str, source: str, **given: object) -> Mutant:
    return Mutant(kind, Topic.ATTENTION, name, source, r".", **given)  # type: ignore[arg-type]


# fault, code of its cause, a part of where it is.
FAULTS = (
    (mutant("keys rounded", "llama", "onnx", graph=rounded_to_fp16(1)), "attention-rounded", "layers 0-2"),
    (mutant("cached values rounded", "llama", "onnx", graph=rounded_to_fp16(5)), "cache-rounded", "layers 0-2"),
    (
        mutant(
            "values of another layer's cache",
            "llama",
            "onnx",
            graph=inputs(
                both(of("Attention"), using(r"past_key_values\.2\.")),
                lambda names: [name.replace("past_key_values.2.value", "past_key_values.0.value") for name in names],
            ),
        ),
        "cache-of-another-layer",
        "layers.2.self_attn",
    ),
    (mutant("one later when decoding", "llama", "onnx", graph=one_later_when_decoding), "positions-wrong", "later"),
    (
        mutant("only its own key", "llama", "onnx", graph=another_type(of("Or"), "And")),
        "window-on-global",
        "layers 0-2",
    ),
    (
        mutant(
            "long factors alone",
            "llama-longrope",
            "ort",
            fault=in_longrope(lambda s: s.__class__(s.long, s.long, s.original_context, s.attention_factor)),
        ),
        "rope-long-factors-everywhere",
        "layers 0-2",
    ),
    (
        mutant("dynamic scaling dropped", "llama-dynamic", "onnx", fault=in_rope(scaling=LATE)),
        "rope-switch-ignored",
        "layers",
    ),
    (mutant("whole heads rotated", "nemotron", "ort", fault=in_rope(dim=16)), "rope-dimension-wrong", "layers 0-2"),
    (
        mutant("partial for proportional", "gemma4", "onnx", fault=in_rope("full", scaling=None, dim=8)),
        "rope-dimension-wrong",
        "layers 1, 3, 6",
    ),
    (mutant("another owner's keys", "gemma3n", "onnx", graph=one_owner_for_another), "kv-source-wrong", "self_attn"),
    (
        mutant("GELU", "mistral", "ort", rounded=rounding.dynamic, fault=in_mlp(activation=Activation.GELU)),
        "activation-wrong",
        "layers 0-2: mlp",
    ),
)


@pytest.fixture(scope="module")
def root(shared_folder: Path) -> Path:
    (shared_folder / "checkpoints").mkdir(exist_ok=True)
    return shared_folder


@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each[0].kind)
def test_a_fault_is_proved_and_repaired(fault: tuple[Mutant, str, str], root: Path, tmp_path: Path) -> None:
    one, code, where = fault
    package = make(one, tmp_path / "package", root)
    found = diagnose(package, checkpoint_of(one.checkpoint, root))
    causes = found.diagnosis.causes
    assert causes, [suspect.code for suspect in found.diagnosis.suspects]
    assert all(cause.suspect.code.startswith(code) for cause in causes), causes
    assert all(cause.proof is Proof.PROVED for cause in causes), found.diagnosis.experiments
    assert where in causes[0].suspect.where
    assert found.edit is not None
    assert repair.write(found.case, found.edit, tmp_path / "repaired").evidence.verdict is Verdict.PROVEN
