"""Graphs that are written out in small operators: each fact is read off the nodes, whatever they are."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tiny
from paritas.audit.finding import Finding
from paritas.audit.run import Audit, audit
from paritas.export import export
from paritas.targets import TARGETS

PEERS = Path(__file__).parent / "data" / "peers"
WRITTEN = PEERS / "optimum" / "kept-llama"
Change = Callable[[onnx.GraphProto], None]


def nodes(graph: onnx.GraphProto, operator: str, inside: str = "") -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == operator and inside in node.name]


def constant(part: str, old: float | None, change: Callable[[Any], Any]) -> Change:
    """Constants whose name contains ``part``, of the value ``old`` if it is given."""

    def write(graph: onnx.GraphProto) -> None:
        count = 0
        for node in nodes(graph, "Constant"):
            value = onnx.numpy_helper.to_array(node.attribute[0].t)
            same = old is None or (value.size == 1 and np.isclose(float(value.reshape(-1)[0]), old, rtol=1e-5, atol=0))
            if part in node.output[0] and same and value.dtype == np.float32:
                changed = np.asarray(change(value), np.float32)
                node.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(changed))
                count += 1
        assert count

    return write


def operator(old: str, new: str, inside: str = "") -> Change:
    def write(graph: onnx.GraphProto) -> None:
        for node in nodes(graph, old, inside):
            node.op_type = new

    return write


def rewired(name: str, place: int, source: str) -> Change:
    def write(graph: onnx.GraphProto) -> None:
        (node,) = (node for node in graph.node if node.name == name)
        node.input[place] = source

    return write


def reversed_keys(graph: onnx.GraphProto) -> None:
    """The first layer's keys have each head's numbers from the last to the first, which is no known way."""
    (made,) = (node for node in graph.node if node.output[0] == "/model/layers.0/self_attn/Transpose_1_output_0")
    keys = made.output[0]
    made.output[0] = "keys as they were"
    graph.initializer.append(onnx.numpy_helper.from_array(np.arange(15, -1, -1), "back"))
    node = onnx.helper.make_node("Gather", ["keys as they were", "back"], [keys], axis=3)
    graph.node.insert(list(graph.node).index(made) + 1, node)


def positions_from_zero(graph: onnx.GraphProto) -> None:
    """Rotations count from the beginning of each step."""
    (taker,) = (node for node in graph.node if node.name == "/model/rotary_emb/Unsqueeze_1")
    node = onnx.helper.make_node("Sub", [taker.input[0], "/model/Gather_output_0"], ["from zero"])
    taker.input[0] = "from zero"
    graph.node.insert(list(graph.node).index(taker), node)


def no_rotation(graph: onnx.GraphProto) -> None:
    """The first layer's queries and keys go on as they are."""
    straight = {"Add": "Transpose_output_0", "Add_1": "Transpose_1_output_0"}
    for name, source in straight.items():
        rotated = f"/model/layers.0/self_attn/{name}_output_0"
        for node in graph.node:
            for place, value in enumerate(node.input):
                if value == rotated:
                    node.input[place] = f"/model/layers.0/self_attn/{source}"


def capped(graph: onnx.GraphProto) -> None:
    """Scores of the second layer go through 7 * tanh(x / 7)."""
    (product,) = (node for node in graph.node if node.name == "/model/layers.1/self_attn/MatMul")
    scores = product.output[0]
    product.output[0] = "plain"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(7, np.float32), "cap"))
    made = [
        onnx.helper.make_node("Div", ["plain", "cap"], ["small"]),
        onnx.helper.make_node("Tanh", ["small"], ["bounded"]),
        onnx.helper.make_node("Mul", ["bounded", "cap"], [scores]),
    ]
    place = list(graph.node).index(product)
    for node in reversed(made):
        graph.node.insert(place + 1, node)


def window(graph: onnx.GraphProto) -> None:
    """A query sees 5 keys, in every layer: key > query - 5 is added to the mask."""
    (mask,) = nodes(graph, "LessOrEqual")
    key, query = mask.input
    mask.output[0] = "earlier"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(5), "five"))
    made = [
        onnx.helper.make_node("Sub", [query, "five"], ["first"]),
        onnx.helper.make_node("Greater", [key, "first"], ["near"]),
        onnx.helper.make_node("And", ["earlier", "near"], ["/model/LessOrEqual_output_0"]),
    ]
    place = list(graph.node).index(mask)
    for node in reversed(made):
        graph.node.insert(place + 1, node)


# Change -> code, where, a part of the message.
CHANGES: Mapping[str, tuple[Change, str, str, str]] = {
    "scale": (
        constant("layers.1/self_attn", 0.5, lambda value: value * 1.1),
        "attention-scale-wrong",
        "layer 1",
        "multiplied by 0.3025, the checkpoint says 0.25",
    ),
    "cap": (capped, "attention-softcap-wrong", "layer 1", "capped at 7, the checkpoint caps none"),
    "window": (window, "window-wrong", "layers 0-1", "a query sees 5 keys"),
    "causality": (
        rewired("/model/And", 1, "/model/Cast_6_output_0"),
        "mask-not-causal",
        "layers 0-1",
        "later keys",
    ),
    "padding": (
        rewired("/model/And_1", 1, "/model/And_output_0"),
        "mask-shows-padding",
        "layers 0-1",
        "padding",
    ),
    "theta": (
        constant("onnx::Expand", None, lambda value: value**1.1),
        "rope-table-wrong",
        "layers 0-1",
        "use theta 11720, the checkpoint says theta 5000",
    ),
    "attention factor": (
        constant("rotary_emb/Constant", 1.0, lambda value: value * 1.2),
        "rope-table-wrong",
        "layers 0-1",
        "an attention factor of 1.2",
    ),
    "positions": (
        positions_from_zero,
        "positions-wrong",
        "layers 0-1",
        "put at positions 0 and 1",
    ),
    "rotation": (no_rotation, "rope-missing", "layer 0", "without a rotation"),
    "epsilon of one norm": (
        constant("layers.1/input_layernorm", 3e-5, lambda value: value * 2),
        "norm-epsilon-wrong",
        "layer 1",
        "1 norms have epsilon 6e-05",
    ),
    "activation": (
        operator("Sigmoid", "Relu", "layers.1"),  # x * relu(x)
        "activation-wrong",
        "layer 1",
        "is relu2, the checkpoint says silu",
    ),
}


def changed(folder: Path, change: Change) -> Path:
    shutil.copytree(WRITTEN, folder)
    model = onnx.load(folder / "model.onnx")
    change(model.graph)
    onnx.save(model, folder / "model.onnx")
    return folder


def errors(found: Audit) -> list[Finding]:
    return [finding for finding in found.findings if finding.severity == "error"]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_written_out_graph_is_found(name: str, tmp_path: Path) -> None:
    change, code, where, message = CHANGES[name]
    found = errors(audit(changed(tmp_path / "changed", change), PEERS / "checkpoints" / "kept-llama"))
    assert [finding.code for finding in found] == [code], found
    assert where in found[0].where
    assert message in found[0].message


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    found = audit(changed(tmp_path / "changed", reversed_keys), PEERS / "checkpoints" / "kept-llama")
    assert errors(found) == []
    (note,) = (finding for finding in found.findings if finding.severity == "note")
    assert (note.code, note.where) == ("attention-not-audited", "layer 0")
    assert "scale, order of norm and rotation" in note.message


# Operators whose queries and keys are rotated before them, in small operators.


def unrolled(graph: onnx.GraphProto, interleaved: bool = False) -> None:
    """Each RotaryEmbedding written out; ``interleaved``, as if pairs lay side by side."""
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([2]), "unrolled.2"))
    for node in nodes(graph, "RotaryEmbedding"):
        heads = next(a.i for a in node.attribute if a.name == "num_heads")
        made = _unrolled(node, heads, interleaved)
        place = list(graph.node).index(node)
        graph.node.remove(node)
        for each in reversed(made):
            graph.node.insert(place, each)


def _unrolled(node: onnx.NodeProto, heads: int, interleaved: bool) -> list[onnx.NodeProto]:
    x, cos, sin, ids = node.input
    name = node.output[0]

    def value(word: str) -> str:
        return f"{name}.{word}"

    def made(kind: str, inputs: list[str], word: str, **values: Any) -> onnx.NodeProto:
        return onnx.helper.make_node(kind, inputs, [value(word)], **values)

    def shape(word: str, numbers: list[int]) -> onnx.NodeProto:
        return onnx.helper.make_node("Constant", [], [value(word)], value_ints=numbers)

    found = [
        shape("split", [0, 0, heads, 8, 2] if interleaved else [0, 0, heads, 2, 8]),
        shape("whole", [0, 0, heads * 16]),
        shape("axis", [4 if interleaved else 3]),
        shape("zero", [0]),
        shape("one", [1]),
        shape("two", [2]),
        made("Reshape", [x, value("split")], "heads"),
        made("Slice", [value("heads"), value("zero"), value("one"), value("axis")], "first"),
        made("Slice", [value("heads"), value("one"), value("two"), value("axis")], "second"),
    ]
    for word, table in (("cos", cos), ("sin", sin)):
        found += [
            made("Gather", [table, ids], f"{word}.rows"),
            shape(f"{word}.axes", [2, 4] if interleaved else [2, 3]),
            made("Unsqueeze", [value(f"{word}.rows"), value(f"{word}.axes")], word),
        ]
    found += [
        made("Mul", [value("first"), value("cos")], "a"),
        made("Mul", [value("second"), value("sin")], "b"),
        made("Sub", [value("a"), value("b")], "left"),
        made("Mul", [value("second"), value("cos")], "c"),
        made("Mul", [value("first"), value("sin")], "d"),
        made("Add", [value("c"), value("d")], "right"),
        made("Concat", [value("left"), value("right")], "both", axis=4 if interleaved else 3),
        onnx.helper.make_node("Reshape", [value("both"), value("whole")], [name]),
    ]
    return found


@pytest.fixture(scope="module")
def plain(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "package"
    export(checkpoint("gemma3"), folder, TARGETS["onnx"])
    return folder


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_rotation_before_an_operator_is_read(
    interleaved: bool, plain: Path, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(plain, tmp_path / "package")
    model = onnx.load(plain / "model.onnx", load_external_data=False)
    unrolled(model.graph, interleaved)
    assert not nodes(model.graph, "RotaryEmbedding")
    onnx.save(model, tmp_path / "package" / "model.onnx")
    found = audit(tmp_path / "package", checkpoint("gemma3")).findings
    assert [(each.code, each.where) for each in found] == (
        [("rope-pairing-wrong", "layers 0-6")] if interleaved else []
    )


# Graphs that cannot run, and tables that are taken otherwise in longer calls.


def test_an_attribute_that_the_runtime_does_not_know(
    plain: Path, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(plain, tmp_path / "package")
    model = onnx.load(plain / "model.onnx", load_external_data=False)
    nodes(model.graph, "Attention")[2].attribute.append(onnx.helper.make_attribute("window", 8))
    onnx.save(model, tmp_path / "package" / "model.onnx")
    (found,) = errors(audit(tmp_path / "package", checkpoint("gemma3")))
    assert found.code == "operator-attribute-unknown"
    assert "has no attribute window" in found.message


LONG = {
    "rope_type": "longrope",
    "rope_theta": 5_000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.5 + 0.7 * i for i in range(8)],
    "original_max_position_embeddings": 32,
}


@pytest.mark.parametrize("target", TARGETS)
def test_both_tables_of_a_longrope_are_read_and_the_switch_between_them(target: str, tmp_path: Path) -> None:
    folder, package = tmp_path / "checkpoint", tmp_path / "package"
    tiny.tiny_llama(folder, rope_parameters=dict(LONG), max_position_embeddings=128)
    export(folder, package, TARGETS[target])
    assert audit(package, folder).findings == ()
    other = tmp_path / "other"
    tiny.tiny_llama(other, rope_parameters={**LONG, "long_factor": [1.6 + 0.7 * i for i in range(8)]})
    found = {each.code for each in errors(audit(package, other))}
    assert found == {"rope-table-wrong"}
