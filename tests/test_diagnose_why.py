"""Wrong packages: the cause is named, proved both ways and minimal, and repaired to the gate. Right ones have none."""

import re
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import test_mutants as mutants
from paritas.checkpoint import open_checkpoint
from paritas.diagnose import repair
from paritas.diagnose.case import Case, open_case
from paritas.diagnose.diagnosis import Proof
from paritas.diagnose.difference import broken
from paritas.diagnose.edit import Edit
from paritas.diagnose.kinds import KINDS
from paritas.diagnose.parameters import differences
from paritas.diagnose.why import Why, explain
from paritas.errors import ParitasError
from paritas.export import export
from paritas.plan import Options
from paritas.runtime.package import open_package
from paritas.targets import TARGETS
from paritas.verify.loading import load_reference
from paritas.verify.truth import Truths, find_truths
from paritas.verify.verdict import PROVEN_FLOORS, Verdict

DATA = Path(__file__).parent / "data" / "peers"
Change = Callable[[onnx.GraphProto], None]

# Fault of test_mutants -> code of its cause, and layers where it is.
NAMED: Mapping[str, tuple[str, str]] = {
    "local layers inherit the global factor": ("rope-factor-inherited", "layers 0-1, 3-4, 6"),
    "positions start again at each step": ("positions-forget-the-past", ""),
    "window ignored": ("window-dropped", "layers 0-1, 3-4, 6"),
    "window on every layer": ("window-on-global-layer", "layers 2, 5"),
    "padding is seen": ("mask-shows-padding", "layers 0-6"),
    "later tokens are seen": ("mask-not-causal", "layers 0-6"),
    "scale from head_dim": ("attention-scale-from-head-dim", "layers 0-6"),
    "QK-norm dropped": ("qk-norm-missing", "layers 0-6"),
    "QK-norm after RoPE": ("qk-norm-after-rope", "layers 0-6"),
    "qkv bias missing": ("bias-missing", "layers 0-2"),
    "1 + weight rounded to bf16": ("norm-offset-rounded", "layers 0-6"),
    "GELU by the error function": ("activation-gelu-exact", "layers 0-6"),
    "softcap dropped": ("logit-softcap-missing", "logits"),
    "gate and up swapped": ("gate-up-swapped", "layers 0-6"),
}

# Faults that hide each other: neither repair alone comes near.
PAIRS: Mapping[tuple[str, str], set[str]] = {
    ("1 + weight rounded to bf16", "embedding scale rounded to two decimals"): {
        "norm-offset-rounded",
        "embedding-scale-rounded",
    },
    ("window ignored", "1 + weight rounded to bf16"): {"window-dropped", "norm-offset-rounded"},
    ("positions start again at each step", "softcap dropped"): {"positions-forget-the-past", "logit-softcap-missing"},
}


def in_weights(pattern: str, change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Change:
    """Every initializer whose name matches, changed."""

    def write(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            if re.search(pattern, tensor.name):
                values = change(onnx.numpy_helper.to_array(tensor).copy()).astype(np.float32)
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))

    return write


def exchanged(one: str, other: str) -> Change:
    """Two initializers hold each other's values, in every layer that has both."""

    def write(graph: onnx.GraphProto) -> None:
        named = {tensor.name: tensor for tensor in graph.initializer}
        for name in [name for name in named if one in name and name.replace(one, other) in named]:
            first, second = named[name], named[name.replace(one, other)]
            first.raw_data, second.raw_data = second.raw_data, first.raw_data

    return write


def in_attributes(operator: str, **values: Any) -> Change:
    """Attributes of every operator of a name."""

    def write(graph: onnx.GraphProto) -> None:
        for node in [node for node in graph.node if node.op_type == operator]:
            kept = [attribute for attribute in node.attribute if attribute.name not in values]
            del node.attribute[:]
            node.attribute.extend([*kept, *(onnx.helper.make_attribute(k, v) for k, v in values.items())])

    return write


def repeated_after(row: int) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    return lambda table: table[np.minimum(np.arange(len(table)), row)]


# Fault put into the graph of a right package -> checkpoint, target, code of its cause, a part of where it is.
IN_GRAPHS: Mapping[str, tuple[str, str, Change, str, str]] = {
    "a weight of zeros": (
        "llama",
        "ort",
        in_weights(r"1\.mlp\.up_proj", np.zeros_like),
        "weight-zeroed",
        "layers.1.mlp",
    ),
    "a norm of ones": ("llama", "onnx", in_weights("2.input_layernorm", np.ones_like), "norm-weight-lost", "layers.2"),
    "a weight negated": (
        "llama",
        "ort",
        in_weights(r"0\.self_attn\.v_proj", np.negative),
        "weight-negated",
        "layers.0",
    ),
    "biases of k and v exchanged": ("llama-biased", "ort", exchanged("k_proj.b", "v_proj.b"), "bias-misplaced", "0-2"),
    "q and k norms exchanged": ("gemma3", "onnx", exchanged("q_norm", "k_norm"), "qk-norms-swapped", "layers 0-6"),
    "a head that is the embedding": (
        "llama-biased",
        "onnx",
        lambda graph: in_weights("lm_head", lambda _: table_of(graph))(graph),
        "head-tied-wrongly",
        "lm_head.weight",
    ),
    "tables in fp16": (
        "llama",
        "ort",
        in_weights(r"(cos|sin)$", lambda table: table.astype(np.float16)),
        "rope-table-rounded",
        "layers 0-2",
    ),
    "tables that end": (
        "llama",
        "onnx",
        in_weights(r"(cos|sin)$", repeated_after(40)),
        "rope-table-ends",
        "layers 0-2",
    ),
    "pairs side by side": (
        "llama",
        "ort",
        in_attributes("GroupQueryAttention", rotary_interleaved=1),
        "rope-pairing-wrong",
        "layers 0-2",
    ),
    "no rotation": ("llama", "ort", in_attributes("GroupQueryAttention", do_rotary=0), "rope-missing", "layers 0-2"),
    "scores capped": (
        "llama",
        "ort",
        in_attributes("GroupQueryAttention", softcap=3.0),
        "attention-softcap-unwanted",
        "layers 0-2",
    ),
    "the scale twice": (
        "llama",
        "ort",
        in_attributes("GroupQueryAttention", scale=1 / 16),
        "attention-scale-wrong",
        "layers 0-2",
    ),
}


def table_of(graph: onnx.GraphProto) -> np.ndarray[Any, Any]:
    return next(onnx.numpy_helper.to_array(t) for t in graph.initializer if t.name == "model.embed_tokens.weight")


# Kept package of another exporter -> codes of its causes; none if it is right.
PEERS: Mapping[tuple[str, str], set[str]] = {
    ("builder", "kept-gemma2"): {"norm-offset-rounded", "embedding-scale-rounded"},
    ("builder", "kept-llama"): set(),
    ("mobius", "kept-llama"): set(),
    ("mobius-static", "kept-llama"): set(),
    ("mobius-cpu", "kept-gemma3"): {
        "window-dropped",
        "rope-of-another-layer",
        "logit-softcap-missing",
        "attention-scale-from-head-dim",
        "embedding-scale-rounded",
    },
    ("mobius", "kept-mistral"): {"window-dropped"},
    ("builder", "kept-phi"): {"norm-epsilon-default"},
    ("builder", "kept-yarn"): {"rope-bands-ignored"},
    ("optimum", "kept-llama"): set(),
    ("optimum", "kept-gemma2"): {"attention-softcap-missing"},
}


@cache
def reference(folder: Path) -> tuple[Truths, Any]:
    """What transformers says of a checkpoint, and the model itself."""
    found = open_checkpoint(folder)
    return find_truths(found, power=False), load_reference(found)[0]


def case_of(package: Path, folder: Path) -> Case:
    return open_case(open_package(package), open_checkpoint(folder), *reference(folder))


@pytest.fixture
def wrong(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[Case, Why]]:
    """The package with some faults of test_mutants, and its diagnosis."""

    def run(*names: str) -> tuple[Case, Why]:
        faults = [mutants.MUTANTS[name] for name in names]
        folder = checkpoint(faults[0].checkpoint)
        with monkeypatch.context() as patch:
            for each in faults:
                each.fault(patch)
            drop = tuple(pattern for each in faults for pattern in each.drop)
            export(folder, tmp_path / "package", TARGETS[faults[0].target], Options(drop=drop))
        case = case_of(tmp_path / "package", folder)
        return case, explain(case)

    return run


def proved(why: Why) -> set[str]:
    """Codes of the causes, each proved both ways."""
    assert {cause.proof for cause in why.causes} <= {Proof.PROVED}, why.causes
    assert why.proved.repaired <= PROVEN_FLOORS
    assert why.proved.reproduced <= PROVEN_FLOORS
    return {cause.suspect.code for cause in why.causes}


@pytest.mark.parametrize("name", NAMED)
def test_a_fault_is_named_proved_and_repaired(
    name: str, wrong: Callable[..., tuple[Case, Why]], record_property: Callable[[str, object], None]
) -> None:
    _, why = wrong(name)
    code, where = NAMED[name]
    record_property("measured", in_words(why))
    assert proved(why) == {code}
    assert where in why.causes[0].suspect.where
    assert why.causes[0].suspect.message
    assert why.causes[0].suspect.explanation


@pytest.mark.parametrize("name", IN_GRAPHS)
def test_a_fault_of_a_graph_is_named_proved_and_repaired(
    name: str, checkpoint: Callable[[str], Path], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    source, target, change, code, where = IN_GRAPHS[name]
    export(checkpoint(source), tmp_path / "package", TARGETS[target], Options())
    model = onnx.load(tmp_path / "package" / "model.onnx")
    change(model.graph)
    onnx.save(model, tmp_path / "package" / "model.onnx")
    why = explain(case_of(tmp_path / "package", checkpoint(source)))
    record_property("measured", in_words(why))
    assert proved(why) == {code}
    assert where in why.causes[0].suspect.where


@pytest.mark.parametrize("names", PAIRS, ids=" + ".join)
def test_two_faults_that_hide_each_other_are_both_found(
    names: tuple[str, str], wrong: Callable[..., tuple[Case, Why]], record_property: Callable[[str, object], None]
) -> None:
    _, why = wrong(*names)
    record_property("measured", in_words(why))
    assert proved(why) == PAIRS[names]
    alone = [e for e in why.experiments if e.side == "package" and len(e.codes) == 1]
    assert all(experiment.after > PROVEN_FLOORS for experiment in alone)


@pytest.mark.parametrize(("exporter", "name"), PEERS, ids="/".join)
def test_a_kept_package_of_another_exporter(exporter: str, name: str, tmp_path: Path) -> None:
    case = case_of(DATA / exporter / name, DATA / "checkpoints" / name)
    why = explain(case)
    assert proved(why) == PEERS[exporter, name]
    if why.causes:
        done = repair.write(case, why.repair(case), tmp_path / "repaired")
        assert done.evidence.verdict is Verdict.PROVEN
        assert set(done.lines) == set(why.repair(case).lines)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["llama", "llama-biased", "llama-linear", "gemma3"])
def test_a_right_package_has_no_cause_and_no_suspect(
    name: str, target: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    export(checkpoint(name), tmp_path / "package", TARGETS[target], Options())
    case = case_of(tmp_path / "package", checkpoint(name))
    why = explain(case)
    assert (why.causes, why.suspects, why.experiments) == ((), (), ())
    assert differences(case) == ()  # nothing that differs, whether it matters or not


def test_what_is_put_into_the_reference_is_taken_back(wrong: Callable[..., tuple[Case, Why]]) -> None:
    for names in (("QK-norm dropped",), ("window ignored", "1 + weight rounded to bf16")):
        case, _ = wrong(*names)
        ids = np.arange(7, 27)[None]
        before, _ = case.live.forward(ids)
        with broken(differences(case)):
            within, _ = case.live.forward(ids)
        after, _ = case.live.forward(ids)
        assert not np.array_equal(before, within)
        assert np.array_equal(before, after)
        shutil.rmtree(case.package.folder)


def test_a_repaired_package_is_written_whole_and_the_old_one_is_left_alone(
    wrong: Callable[..., tuple[Case, Why]], tmp_path: Path
) -> None:
    case, why = wrong("1 + weight rounded to bf16", "softcap dropped")
    old = {path.name: path.read_bytes() for path in case.package.folder.iterdir() if path.is_file()}
    done = repair.write(case, why.repair(case), tmp_path / "repaired")
    assert done.evidence.verdict is Verdict.PROVEN
    assert {path.name: path.read_bytes() for path in case.package.folder.iterdir() if path.is_file()} == old
    new = {path.name for path in done.out.iterdir()}
    assert new == (set(old) - {"evidence"}) | {repair.NOTE}
    assert len((done.out / "model.onnx.data").read_bytes()) == len(old["model.onnx.data"])
    graph = onnx.load(done.out / "model.onnx", load_external_data=False).graph
    outside = [t.name for t in graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    assert "model.layers.0.input_layernorm.weight" in outside
    note = (done.out / repair.NOTE).read_text()
    assert "initializer model.layers.0.input_layernorm.weight" in note
    assert "cap of the logits at 5: inserted" in note
    with pytest.raises(ParitasError, match="output-exists"):
        repair.write(case, why.repair(case), tmp_path / "repaired")
    assert repair.write(case, why.repair(case), tmp_path / "repaired", force=True).out.exists()


def test_a_repair_that_does_not_reach_the_gate_is_not_written(
    wrong: Callable[..., tuple[Case, Why]], tmp_path: Path
) -> None:
    case, _ = wrong("softcap dropped")
    with pytest.raises(ParitasError, match="repair-not-proven"):
        repair.write(case, Edit(case.view), tmp_path / "repaired")
    assert [path.name for path in tmp_path.iterdir()] == ["package"]


def test_kinds_have_names_and_say_how_exporters_come_to_them() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(codes) == len(set(codes))
    assert len(codes) >= 40
    assert all(kind.explanation.endswith(".") for kind in KINDS)


def in_words(why: Why) -> str:
    causes = ", ".join(f"{cause.suspect.code} {cause.proof}" for cause in why.causes)
    return (
        f"{why.witness.floors:,.0f} floors, repaired {why.proved.repaired:.1f}, broken {why.proved.reproduced:.1f}, "
        f"{len(why.experiments)} experiments, {sum(why.seconds.values()):.1f} s: {causes}"
    )
