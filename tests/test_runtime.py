"""The runtimes, on small decoders written here, held against the same decoder in numpy."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from paritas.errors import Invalid, ParitasError, Unsupported
from paritas.runtime.chat import ChatTokenizer
from paritas.runtime.decoder import Decoder
from paritas.runtime.genai import GenAISession
from paritas.runtime.generate import generate
from paritas.runtime.package import Package, open_package
from paritas.runtime.padding import left_padding_obstacle
from paritas.runtime.ports import read_ports
from paritas.runtime.proto import operators
from paritas.runtime.sampling import Greedy, Multinomial, of_package
from paritas.runtime.session import RawSession
from test_chat import CHATML, byte_level, save

HEADS, WIDTH, CONTEXT = 2, 16, 160
FLOOR = 1e-5  # logits here are of size 1; fp32 sums of 16 terms


class Tables:
    """The weights of one attention layer over embedded tokens and positions; every one of them random."""

    def __init__(self, vocab: int) -> None:
        random = np.random.default_rng(0)
        make = lambda *shape: random.normal(0, 0.7, shape).astype(np.float32)  # noqa: E731
        self.query, self.key, self.value = (make(vocab, HEADS * WIDTH) for _ in range(3))
        self.position, self.head = make(CONTEXT, HEADS * WIDTH), make(HEADS * WIDTH, vocab)

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """``[length, vocab]`` of ``ids`` ``[length]``."""
        query, key, value = (
            (table[ids].astype(np.float64) + self.position[: len(ids)]).reshape(-1, HEADS, WIDTH)
            for table in (self.query, self.key, self.value)
        )
        scores = np.einsum("qhd,khd->hqk", query, key) / WIDTH**0.5
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, value).reshape(len(ids), -1) @ self.head


NAMES = ("past_key_values.{}.key", "past_key_values.{}.value", "present.{}.key", "present.{}.value")
SPELLINGS = [
    NAMES,
    ("past_key_{}", "past_value_{}", "present_key_{}", "present_value_{}"),
    ("past.{}.key", "past.{}.value", "present.{}.key", "present.{}.value"),
    ("past_key_values_key_cache_{}", "past_key_values_value_cache_{}", "key_cache_{}_out", "value_cache_{}_out"),
    ("cache.{}.k", "cache.{}.v", "new_cache.{}.k", "new_cache.{}.v"),
    tuple(f"{name}.{{}}.decoder.{half}" for name in ("past_key_values", "present") for half in ("key", "value")),
]


POSITIONS = {
    "input": "",
    "derived": """
        counted = CumSum(attention_mask, one)
        from_zero = Sub(counted, one)
        clipped = Max(from_zero, zero)
        last = Neg(new)
        position_ids = Slice(clipped, last, end, one_axis)
        """,
}


def decoder(
    file: Path,
    vocab: int = 40,
    *,
    names: tuple[str, str, str, str] = NAMES,
    layer: int = 0,
    integer: str = "int64",
    cache: str = "float",
    logits: str = "float",
    positions: str = "derived",
) -> Tables:
    """Write that decoder to ``file``, its weights beside it; positions are an input or derived from the mask."""
    tables = Tables(vocab)
    past_key, past_value, present_key, present_value = (name.format(layer) for name in names)
    shape = f"[batch, {HEADS}, past, {WIDTH}]"
    position_input = f", {integer}[batch, new] position_ids" if positions == "input" else ""
    heads = "".join(
        f"""
        {half}_flat = Gather({half}, input_ids)
        {half}_placed = Add({half}_flat, seen)
        {half}_heads = Reshape({half}_placed, split)
        {half}_new = Transpose<perm = [0, 2, 1, 3]>({half}_heads)
        """
        for half in ("query", "key", "value")
    )
    graph = f"""<ir_version: 10, opset_import: ["" : 23]>
    decoder (
        {integer}[batch, new] input_ids, {integer}[batch, total] attention_mask{position_input},
        {cache}{shape} "{past_key}", {cache}{shape} "{past_value}"
    ) => ({logits}[batch, new, {vocab}] logits, {cache}{shape} "{present_key}", {cache}{shape} "{present_value}") {{
        new = Shape<start = 1, end = 2>(input_ids)
        {POSITIONS[positions]}
        seen = Gather(position, position_ids)
        {heads}
        keep = Cast<to = {TensorProto.BOOL}>(attention_mask)
        keep_heads = Unsqueeze(keep, one_two)
        rows = Concat<axis = 0>(one_axis, one_axis, new, one_axis)
        keep_rows = Expand(keep_heads, rows)
        key_before = Cast<to = 1>("{past_key}")
        value_before = Cast<to = 1>("{past_value}")
        mixed, key_after, value_after = Attention<is_causal = 1>(
            query_new, key_new, value_new, keep_rows, key_before, value_before)
        "{present_key}" = Cast<to = {_element(cache)}>(key_after)
        "{present_value}" = Cast<to = {_element(cache)}>(value_after)
        mixed_tokens = Transpose<perm = [0, 2, 1, 3]>(mixed)
        mixed_flat = Reshape(mixed_tokens, join)
        wide = MatMul(mixed_flat, head)
        logits = Cast<to = {_element(logits)}>(wide)
    }}"""
    model = onnx.parser.parse_model(graph)
    counts = np.int64 if integer == "int64" else np.int32
    constants = {
        **vars(tables),
        "one": np.array(1, counts),
        "zero": np.array(0, counts),
        "end": np.array([2**31 - 1], np.int64),
        "one_axis": np.array([1], np.int64),
        "one_two": np.array([1, 2], np.int64),
        "split": np.array([0, 0, HEADS, WIDTH], np.int64),
        "join": np.array([0, 0, HEADS * WIDTH], np.int64),
    }
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    onnx.save(model, file, save_as_external_data=True, location=f"{file.name}.data", size_threshold=1024)
    return tables


def _element(name: str) -> int:
    return getattr(TensorProto, name.upper())


def config(folder: Path, vocab: int = 40, **search: Any) -> None:
    """A genai_config.json for that decoder."""
    names = dict(zip(("past_key", "past_value", "present_key", "present_value"), NAMES, strict=True))
    names = {f"{name}_names": pattern.format("%d") for name, pattern in names.items()}
    values = {
        "model": {
            "type": "decoder",
            "vocab_size": vocab,
            "context_length": CONTEXT,
            "eos_token_id": [2, 4],
            "pad_token_id": 0,
            "decoder": {
                "filename": "model.onnx",
                "head_size": WIDTH,
                "num_key_value_heads": HEADS,
                "num_hidden_layers": 1,
                "inputs": {name: value for name, value in names.items() if name.startswith("past")},
                "outputs": {name: value for name, value in names.items() if name.startswith("present")},
            },
        },
        "search": {"max_length": CONTEXT, "past_present_share_buffer": False, **search},
    }
    (folder / "genai_config.json").write_text(json.dumps(values))


def ids(count: int, vocab: int = 40, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(5, vocab, (1, count))


def worst(ours: np.ndarray, right: np.ndarray) -> float:
    assert ours.dtype == np.float32
    assert ours.shape == right.shape
    return float(np.abs(ours - right).max())


def load(kind: str, package: Package) -> Decoder:
    return RawSession(package, threads=1) if kind == "onnxruntime" else GenAISession(package, threads=1)


BOTH = pytest.mark.parametrize("kind", ["onnxruntime", "onnxruntime-genai"])


@BOTH
def test_one_pass_chunks_and_steps_are_the_decoder(tmp_path: Path, kind: str) -> None:
    tables = decoder(tmp_path / "model.onnx")
    config(tmp_path)
    runtime = load(kind, open_package(tmp_path))
    assert runtime.runtime == kind
    assert runtime.version[0].isdigit()
    tokens = ids(24)
    tokens[0, 10] = 2  # forced tokens that end a text must not end the run
    right = tables.logits(tokens[0])
    whole, state = runtime.forward(tokens)
    assert worst(whole[0], right) < FLOOR
    assert state.length == 24
    parts, state = [], None
    for start, stop in [(0, 7), (7, 12), *((i, i + 1) for i in range(12, 24))]:
        logits, state = runtime.forward(tokens[:, start:stop], state)
        parts.append(logits[0])
    assert worst(np.concatenate(parts), right) < FLOOR


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("integer", ["int64", "int32"])
def test_left_padded_rows_are_the_rows_alone(tmp_path: Path, positions: str, integer: str) -> None:
    tables = decoder(tmp_path / "model.onnx", positions=positions, integer=integer)
    runtime = RawSession(open_package(tmp_path))
    assert (runtime.ports.position_ids is None) == (positions == "derived")
    short, long = ids(9), ids(14, seed=2)
    padded = np.concatenate([np.zeros((1, 5), np.int64), short], axis=1)
    batch = np.concatenate([padded, long])
    mask = np.ones_like(batch)
    mask[0, :5] = 0
    logits, state = runtime.forward(batch[:, :10], None, mask[:, :10])
    parts = [logits]
    for i in range(10, 14):
        logits, state = runtime.forward(batch[:, i : i + 1], state, mask[:, : i + 1])
        parts.append(logits)
    logits = np.concatenate(parts, axis=1)
    assert worst(logits[0, 5:], tables.logits(short[0])) < FLOOR
    assert worst(logits[1], tables.logits(long[0])) < FLOOR


def test_two_texts_may_go_on_from_one_state(tmp_path: Path) -> None:
    tables = decoder(tmp_path / "model.onnx")
    runtime = RawSession(open_package(tmp_path))
    tokens = ids(8)[0]
    _, state = runtime.forward(tokens[None, :7])
    for last in (tokens[7], 11, tokens[7]):
        logits, _ = runtime.forward(np.array([[last]]), state)
        assert worst(logits[0], tables.logits(np.array([*tokens[:7], last]))[-1:]) < FLOOR


@pytest.mark.parametrize(("cache", "logits", "near"), [
    ("float16", "float16", 2e-2),
    ("bfloat16", "bfloat16", 2e-1),
    ("bfloat16", "float", 1e-1),
])  # fmt: skip
def test_narrow_caches_and_logits_come_back_as_fp32(tmp_path: Path, cache: str, logits: str, near: float) -> None:
    tables = decoder(tmp_path / "model.onnx", cache=cache, logits=logits)
    runtime = RawSession(open_package(tmp_path))
    tokens = ids(6)
    first, state = runtime.forward(tokens[:, :5])
    second, _ = runtime.forward(tokens[:, 5:], state)
    right = tables.logits(tokens[0])
    assert worst(first[0], right[:5]) < near
    assert worst(second[0], right[5:]) < near
    if logits == "bfloat16":
        assert not (first.view(np.uint32) & 0xFFFF).any()


@pytest.mark.parametrize("names", SPELLINGS, ids=[names[0] for names in SPELLINGS])
@pytest.mark.parametrize("layer", [0, 17])
def test_caches_are_found_under_any_names(tmp_path: Path, names: tuple[str, str, str, str], layer: int) -> None:
    tables = decoder(tmp_path / "model.onnx", names=names, layer=layer)
    runtime = RawSession(open_package(tmp_path))
    (cache,) = runtime.ports.caches
    given = (cache.past_key, cache.past_value, cache.present_key, cache.present_value)
    assert given == tuple(name.format(layer) for name in names)
    assert (cache.layer, cache.kv_heads, cache.head_dim, cache.dtype) == (layer, HEADS, WIDTH, np.float32)
    assert runtime.ports.vocab == 40
    tokens = ids(6)
    _, state = runtime.forward(tokens[:, :4])
    logits, _ = runtime.forward(tokens[:, 4:], state)
    assert worst(logits[0], tables.logits(tokens[0])[4:]) < FLOOR


def test_outputs_without_types_are_found(tmp_path: Path) -> None:
    decoder(tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    for value in model.graph.output:
        value.ClearField("type")
    onnx.save(model, tmp_path / "model.onnx")
    ports = read_ports(tmp_path / "model.onnx")
    assert (ports.logits, len(ports.caches), ports.vocab) == ("logits", 1, None)


def _value(name: str, kind: int, *dims: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


F, I = TensorProto.FLOAT, TensorProto.INT64  # noqa: E741
IDS, LOGITS = _value("input_ids", I, "b", "n"), _value("logits", F, "b", "n", 9)
KEY, VALUE = _value("past.0.key", F, "b", 2, "p", 4), _value("past.0.value", F, "b", 2, "p", 4)
PRESENT = [_value("present.0.key", F, "b", 2, "t", 4), _value("present.0.value", F, "b", 2, "t", 4)]


def write(file: Path, inputs: list[Any], outputs: list[Any], *nodes: onnx.NodeProto) -> Path:
    """A graph that is read and never run."""
    node = nodes or (helper.make_node("Identity", ["input_ids"], ["x"]),)
    onnx.save(helper.make_model(helper.make_graph(list(node), "g", inputs, outputs)), file)
    return file


@pytest.mark.parametrize(
    ("inputs", "outputs", "code", "fact"),
    [
        ([IDS, _value("past_0", F, 2, "b", 2, "p", 4)], [LOGITS], "graph-input-unknown", "past_0"),
        ([IDS, _value("past_conv.0", F, "b", 8, 3)], [LOGITS], "graph-input-unknown", "past_conv.0"),
        ([IDS, _value("pixel_values", F, 1, 3, 8, 8)], [LOGITS], "graph-input-unknown", "pixel_values"),
        ([IDS, _value("position_ids", I, 3, "b", "n")], [LOGITS], "graph-input-unknown", "position_ids"),
        ([IDS, _value("decoder_ids", I, "b", "n")], [LOGITS], "graph-input-unknown", "decoder_ids"),
        ([_value("inputs_embeds", F, "b", "n", 8)], [LOGITS], "graph-input-unknown", "inputs_embeds"),
        ([_value("attention_mask", I, "b", "n")], [LOGITS], "graph-no-input-ids", "token ids"),
        ([IDS], [_value("a", F, 1, 2, 3), _value("b", F, 1, 2, 3)], "graph-no-logits", "a, b"),
        ([IDS], [_value("pooled", F, "b", 8)], "graph-no-logits", "pooled"),
        ([IDS, KEY, VALUE], [LOGITS, PRESENT[0]], "graph-cache-unpaired", "past.0.value"),
        ([IDS, KEY], [LOGITS, *PRESENT], "graph-cache-unpaired", "layer 0"),
        ([IDS, KEY, VALUE, _value("past_k_0", F, "b", 2, "p", 4)], [LOGITS], "graph-cache-unpaired", "past_k_0"),
        ([IDS, _value("past.0.key", F, 1, 2, 64, 4), VALUE], [LOGITS, *PRESENT], "graph-cache-layout", "fixed"),
        ([IDS, _value("past.0.key", F, "b", "p", 2, 4), VALUE], [LOGITS, *PRESENT], "graph-cache-layout", "layer 0"),
        ([IDS, _value("past.0.key", F, "b", "p", "h", 4), VALUE], [LOGITS, *PRESENT], "graph-cache-layout", "kv_heads"),
        ([IDS, _value("past.0.key", F, "b", 2, "p", 8), VALUE], [LOGITS, *PRESENT], "graph-cache-layout", "layer 0"),
    ],
)  # fmt: skip
def test_what_is_no_decoder_is_invalid_with_the_reason(
    tmp_path: Path, inputs: list[Any], outputs: list[Any], code: str, fact: str
) -> None:
    with pytest.raises(Invalid) as caught:
        read_ports(write(tmp_path / "model.onnx", inputs, outputs))
    assert caught.value.code == code
    assert fact in caught.value.fact


@pytest.mark.parametrize(
    ("projection", "shape", "width"),
    [("MatMul", (64, 8), 16), ("MatMulNBits", (8, 2, 16), 16), ("MatMul", (66, 8), None), ("Relu", (), None)],
)
@pytest.mark.parametrize("gated", [False, True])
def test_a_head_width_left_free_is_found_at_the_attention(
    tmp_path: Path, projection: str, shape: tuple[int, ...], width: int | None, gated: bool
) -> None:
    """ORT GenAI's builder leaves the last size of its caches free."""
    pasts = [_value(f"past.0.{half}", F, "b", 2, "p", "kv_cache_dim") for half in ("key", "value")]
    nodes = [
        helper.make_node("GroupQueryAttention", ["q", "", "", "past.0.key", "past.0.value"], ["a"], num_heads=4),
        helper.make_node("Mul", ["a", "gate"], ["gated"]),
        helper.make_node(projection, ["gated" if gated else "a", "w"], ["o"]),
    ]
    if projection == "MatMulNBits":
        nodes[-1].attribute.append(helper.make_attribute("K", 64))
    file = write(tmp_path / "model.onnx", [IDS, *pasts], [LOGITS, *PRESENT], *nodes)
    model = onnx.load(file)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), "w"))
    onnx.save(model, file)
    if width is None:
        with pytest.raises(Invalid, match="graph-cache-layout"):
            read_ports(file)
        assert read_ports(file, head_size=24).caches[0].head_dim == 24
    else:
        assert read_ports(file, head_size=24).caches[0].head_dim == width


def _attention(op: str, domain: str, inputs: int, **attributes: int) -> onnx.NodeProto:
    return helper.make_node(op, [f"i{n}" for n in range(inputs)], ["o"], domain=domain, **attributes)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (_attention("GroupQueryAttention", "com.microsoft", 9, do_rotary=1), "do_rotary"),
        (_attention("GroupQueryAttention", "com.microsoft", 11, do_rotary=1), "do_rotary"),
        (_attention("GroupQueryAttention", "com.microsoft", 7), "attention_bias"),
        (_attention("GroupQueryAttention", "com.microsoft", 11, do_rotary=0), None),
        (_attention("Attention", "", 7), "nonpad_kv_seqlen"),
        (_attention("Attention", "", 6), None),
        (_attention("MultiHeadAttention", "com.microsoft", 6), None),
    ],
)
def test_operators_that_mask_by_length_are_an_obstacle_to_left_padding(
    tmp_path: Path, node: onnx.NodeProto, reason: str | None
) -> None:
    mask = _value("attention_mask", I, "b", "t")
    inner = helper.make_graph([node], "then", [], [LOGITS])
    branch = helper.make_node("If", ["c"], ["x"], then_branch=inner, else_branch=inner)
    for nodes in ([node], [branch]):
        obstacle = left_padding_obstacle(write(tmp_path / "model.onnx", [IDS, mask], [LOGITS], *nodes))
        assert (obstacle is None) == (reason is None)
        assert reason is None or reason in (obstacle or "")
    obstacle = left_padding_obstacle(write(tmp_path / "model.onnx", [IDS], [LOGITS], node))
    assert obstacle is not None


def test_operators_are_counted_by_domain(tmp_path: Path) -> None:
    nodes = [_attention("Add", "", 2), _attention("Add", "ai.onnx", 2), _attention("Gelu", "com.microsoft", 1)]
    assert operators(write(tmp_path / "g.onnx", [IDS], [LOGITS], *nodes)) == {"Add": 2, "com.microsoft.Gelu": 1}


def test_padding_and_further_calls_need_a_graph_that_knows_of_them(tmp_path: Path) -> None:
    one_hot = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 23]>
        g (int64[b, n] input_ids) => (float[b, n, 9] logits) {
            depth = Constant<value_int = 9>()
            zero_one = Constant<value_floats = [0.0, 1.0]>()
            logits = OneHot(input_ids, depth, zero_one)
        }"""
    )
    onnx.save(one_hot, tmp_path / "model.onnx")
    runtime = RawSession(open_package(tmp_path))
    tokens = np.array([[0, 3, 8]])
    logits, state = runtime.forward(tokens, None, np.ones_like(tokens))
    assert logits.argmax(-1).tolist() == tokens.tolist()
    for code, run in {
        "graph-no-mask": lambda: runtime.forward(tokens, None, np.array([[0, 1, 1]])),
        "graph-no-cache": lambda: runtime.forward(tokens, state),
    }.items():
        with pytest.raises(Invalid) as caught:
            run()
        assert caught.value.code == code


def test_logits_of_the_last_position_alone_are_refused(tmp_path: Path) -> None:
    decoder(tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    model.graph.node[-1].output[0] = "all"
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1
    model.graph.node.append(helper.make_node("Slice", ["all", "minus", "end", "one_axis"], ["logits"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), "minus"))
    onnx.save(model, tmp_path / "model.onnx")
    config(tmp_path)
    for runtime in (RawSession(open_package(tmp_path)), GenAISession(open_package(tmp_path))):
        with pytest.raises(Invalid, match="graph-last-logits"):
            runtime.forward(ids(4))


def test_what_a_runtime_says_comes_on_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    unknown = helper.make_node("Nonsense", ["input_ids"], ["logits"], domain="no.such")
    write(tmp_path / "model.onnx", [IDS], [LOGITS], unknown)
    config(tmp_path)
    package = open_package(tmp_path)
    for make in (RawSession, GenAISession):
        with pytest.raises(Invalid) as caught:
            make(package)
        assert caught.value.code == "runtime-failed"
        assert "\n" not in caught.value.fact
        assert "Nonsense" in caught.value.fact or "no.such" in caught.value.fact
    decoder(tmp_path / "model.onnx")
    runtime = RawSession(open_package(tmp_path))
    with pytest.raises(Invalid, match="runtime-failed") as caught:
        runtime.forward(np.array([[40]]))  # beyond the vocabulary
    assert len(caught.value.fact) < 600
    assert capfd.readouterr().err == ""


# ORT GenAI


def test_genai_says_what_it_cannot_do(tmp_path: Path) -> None:
    decoder(tmp_path / "model.onnx")
    config(tmp_path)
    runtime = GenAISession(open_package(tmp_path), capacity=12)
    tokens = ids(8)
    _, state = runtime.forward(tokens)
    _, newer = runtime.forward(tokens[:, :1], state)
    for code, run in {
        "genai-batch": lambda: runtime.forward(np.repeat(tokens, 2, axis=0)),
        "genai-context": lambda: runtime.forward(tokens, newer),
    }.items():
        with pytest.raises(Invalid, match=code):
            run()
    with pytest.raises(Invalid, match="a padded one"):
        runtime.forward(tokens, None, np.array([[0, 1, 1, 1, 1, 1, 1, 1]]))
    with pytest.raises(ValueError, match="gone on already"):
        runtime.forward(tokens[:, :1], state)
    with pytest.raises(TypeError):
        RawSession(open_package(tmp_path)).forward(tokens, newer)
    with pytest.raises(Invalid, match="genai-context"):
        GenAISession(open_package(tmp_path), capacity=CONTEXT + 1)


def test_a_windowed_package_has_room_for_its_window(tmp_path: Path) -> None:
    """The runtime refuses a windowed cache that is smaller than its window, however short the text."""
    tables = decoder(tmp_path / "model.onnx")
    config(tmp_path)
    values = json.loads((tmp_path / "genai_config.json").read_text())
    window = {"window_size": 20, "slide_key_value_cache": False, "slide_inputs": False, "layers": [0]}
    values["model"]["decoder"]["sliding_window"] = window
    (tmp_path / "genai_config.json").write_text(json.dumps(values))
    runtime = GenAISession(open_package(tmp_path), capacity=8)
    tokens = ids(20)
    logits, state = runtime.forward(tokens)
    assert worst(logits[0], tables.logits(tokens[0])) < FLOOR
    with pytest.raises(Invalid, match="genai-context"):
        runtime.forward(tokens[:, :1], state)


def test_genai_never_loads_code_that_a_package_names(tmp_path: Path) -> None:
    decoder(tmp_path / "model.onnx")
    config(tmp_path)
    values = json.loads((tmp_path / "genai_config.json").read_text())
    values["model"]["decoder"]["session_options"] = {"provider_options": [{"x": {"custom_ops_library": "x.so"}}]}
    (tmp_path / "genai_config.json").write_text(json.dumps(values))
    with pytest.raises(ParitasError, match="package-native-code"):
        GenAISession(open_package(tmp_path))


def test_what_genai_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder(tmp_path / "model.onnx")
    with pytest.raises(ParitasError, match="genai-config-missing"):
        GenAISession(open_package(tmp_path))
    config(tmp_path)
    values = json.loads((tmp_path / "genai_config.json").read_text())
    del values["model"]["context_length"]
    (tmp_path / "genai_config.json").write_text(json.dumps(values))
    with pytest.raises(ParitasError, match="genai-config-incomplete"):
        GenAISession(open_package(tmp_path))
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", None)
    with pytest.raises(ParitasError, match="genai-missing") as caught:
        GenAISession(open_package(tmp_path))
    assert "pip install onnxruntime-genai" in caught.value.hint


# Packages


def test_a_package_is_a_folder_or_its_graph(tmp_path: Path) -> None:
    decoder(tmp_path / "text.onnx")
    assert open_package(tmp_path).model == tmp_path / "text.onnx"
    assert open_package(tmp_path).genai_config is None
    decoder(tmp_path / "model.onnx")
    assert open_package(str(tmp_path)).model == tmp_path / "model.onnx"
    config(tmp_path)
    text = (tmp_path / "genai_config.json").read_text().replace("model.onnx", "text.onnx")
    (tmp_path / "genai_config.json").write_text(text)
    assert open_package(tmp_path).model == tmp_path / "text.onnx"
    assert open_package(tmp_path / "text.onnx").genai_config is not None
    assert open_package(tmp_path / "model.onnx").genai_config is None
    assert open_package(tmp_path).data == (tmp_path / "text.onnx.data",)


def test_files_of_the_hub_cache_are_links_into_its_blobs(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1234" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    decoder(blobs / "model.onnx")
    for file in list(blobs.iterdir()):
        blob = file.rename(blobs / f"hash-of-{file.name}")
        (snapshot / file.name).symlink_to(blob)
    assert open_package(snapshot).data == (snapshot / "model.onnx.data",)


def _external(file: Path, **entries: str) -> None:
    """Rewrite where the first external tensor of ``file`` is said to lie."""
    model = onnx.load(file, load_external_data=False)
    tensor = next(t for t in model.graph.initializer if t.external_data)
    values = {entry.key: entry.value for entry in tensor.external_data} | entries
    del tensor.external_data[:]
    tensor.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in values.items())
    onnx.save(model, file)


def _link_out(folder: Path) -> None:
    (folder / "model.onnx.data").unlink()
    (folder / "model.onnx.data").symlink_to("/etc/hostname")


BREAKS: Mapping[str, tuple[str, Callable[[Path], Any]]] = {
    "no folder": ("package-missing", lambda p: [f.unlink() for f in p.iterdir()] and p.rmdir()),
    "no graph": ("package-model-missing", lambda p: (p / "model.onnx").unlink()),
    "graph of the config": ("package-model-missing", lambda p: (p / "model.onnx").rename(p / "other.onnx")),
    "empty graph": ("package-model-broken", lambda p: (p / "model.onnx").write_bytes(b"")),
    "half a graph": ("package-model-broken", lambda p: _cut(p / "model.onnx")),
    "no JSON": ("package-config-broken", lambda p: (p / "genai_config.json").write_text('{"model": ')),
    "a list": ("package-config-broken", lambda p: (p / "genai_config.json").write_text("[]")),
    "no model": ("package-config-broken", lambda p: (p / "genai_config.json").write_text('{"search": {}}')),
    "number": ("package-config-broken", lambda p: _filename(p, 3)),
    "pipeline": ("package-pipeline", lambda p: _decoder(p, {"pipeline": [{"a": {"filename": "a.onnx"}}]})),
    "graph outside": ("package-data-hostile", lambda p: _filename(p, "../model.onnx")),
    "no data": ("package-data-missing", lambda p: (p / "model.onnx.data").unlink()),
    "half the data": ("package-data-truncated", lambda p: _cut(p / "model.onnx.data")),
    "beyond the end": ("package-data-truncated", lambda p: _external(p / "model.onnx", offset="99999999")),
    "too short": ("package-data-truncated", lambda p: _external(p / "model.onnx", length="8")),
    "negative": ("package-data-hostile", lambda p: _external(p / "model.onnx", offset="-8")),
    "absolute": ("package-data-hostile", lambda p: _external(p / "model.onnx", location="/etc/passwd")),
    "above": ("package-data-hostile", lambda p: _external(p / "model.onnx", location="x/../../data")),
    "drive": ("package-data-hostile", lambda p: _external(p / "model.onnx", location="C:\\data")),
    "backslash": ("package-data-hostile", lambda p: _external(p / "model.onnx", location="..\\data")),
    "unknown key": ("package-data-hostile", lambda p: _external(p / "model.onnx", basepath="/etc")),
    "no type": ("package-model-broken", lambda p: _retype(p / "model.onnx")),
    "link": ("package-data-hostile", _link_out),
}


def _retype(file: Path) -> None:
    model = onnx.load(file, load_external_data=False)
    next(t for t in model.graph.initializer if t.external_data).data_type = 99
    onnx.save(model, file)


def _cut(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def _decoder(folder: Path, values: Any) -> None:
    (folder / "genai_config.json").write_text(json.dumps({"model": {"decoder": values}}))


def _filename(folder: Path, name: Any) -> None:
    _decoder(folder, {"filename": name})


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_package_is_an_error_with_its_place(
    tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    decoder(folder / "model.onnx")
    config(folder)
    code, damage = BREAKS[name]
    damage(folder)
    with pytest.raises(ParitasError) as caught:
        open_package(folder)
    record_property("measured", f"{code}: {caught.value.fact}")
    assert caught.value.code == code
    assert str(folder) in caught.value.place
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_several_graphs_or_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "int4").mkdir()
    decoder(tmp_path / "int4" / "model.onnx")
    with pytest.raises(ParitasError, match=r"package-model-missing.*int4/model\.onnx"):
        open_package(tmp_path)
    for name in ("a.onnx", "b.onnx"):
        decoder(tmp_path / name)
    with pytest.raises(ParitasError, match=r"package-model-ambiguous.*a\.onnx, b\.onnx"):
        open_package(tmp_path)
    with pytest.raises(ParitasError, match="package-missing"):
        open_package(tmp_path / "a.onnx.data")


def test_graphs_may_lie_in_a_folder_of_their_own_as_transformers_js_has_them(tmp_path: Path) -> None:
    folder = tmp_path / "onnx"
    folder.mkdir()
    decoder(folder / "model_fp16.onnx", cache="float16", logits="float16")
    package = open_package(tmp_path)
    assert (package.folder, package.model) == (tmp_path, folder / "model_fp16.onnx")
    assert package.data == (folder / "model_fp16.onnx.data",)
    decoder(folder / "model_quantized.onnx")
    with pytest.raises(ParitasError, match=r"package-model-ambiguous.*model_fp16\.onnx, model_quantized\.onnx"):
        open_package(tmp_path)
    assert open_package(folder / "model_fp16.onnx").model == folder / "model_fp16.onnx"
    decoder(folder / "model.onnx")
    assert open_package(tmp_path).model == folder / "model.onnx"
    assert open_package(folder).model == folder / "model.onnx"


def test_data_may_lie_in_several_chunks(tmp_path: Path) -> None:
    tables = decoder(tmp_path / "model_fp16.onnx")
    whole = tmp_path / "model_fp16.onnx.data"
    model = onnx.load(tmp_path / "model_fp16.onnx", load_external_data=False)
    stored = [tensor for tensor in model.graph.initializer if tensor.external_data]
    for chunk, tensor in enumerate(stored):
        place = {entry.key: entry.value for entry in tensor.external_data}
        start, size = int(place["offset"]), int(place["length"])
        name = f"model_fp16.onnx_data{f'_{chunk}' if chunk else ''}"
        tensor.raw_data = whole.read_bytes()[start : start + size]
        (tmp_path / name).write_bytes(tensor.raw_data)
        onnx.external_data_helper.set_external_data(tensor, name, offset=0, length=size)
        tensor.ClearField("raw_data")
    onnx.save(model, tmp_path / "model_fp16.onnx")
    whole.unlink()
    package = open_package(tmp_path)
    assert len(package.data) == len(stored)
    assert package.data[1].name == "model_fp16.onnx_data_1"
    tokens = ids(6)
    logits, _ = RawSession(package).forward(tokens)
    assert worst(logits[0], tables.logits(tokens[0])) < FLOOR
    package.data[1].unlink()
    with pytest.raises(ParitasError, match=r"package-data-missing.*model_fp16\.onnx_data_1"):
        open_package(tmp_path)


# Sampling


@pytest.mark.parametrize("settings", [
    {},
    {"temperature": 0.6},
    {"top_k": 7},
    {"top_p": 0.8},
    {"repetition_penalty": 1.3},
    {"temperature": 1.7, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1},
    {"top_k": 1000, "top_p": 0.01},
])  # fmt: skip
def test_a_distribution_is_that_of_transformers(settings: dict[str, Any]) -> None:
    random = np.random.default_rng(3)
    logits = random.normal(0, 3, 97).astype(np.float32)
    logits[[4, 9]] = logits[50]  # ties
    seen = [3, 3, 50, 96]
    sampling = Multinomial(**settings)
    kept, probabilities = sampling.distribution(logits, seen)
    assert logits[4] == logits[50]  # left as they were
    scores = torch.tensor(logits)[None]
    context = torch.tensor([seen])
    for processor in (
        RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty),
        TemperatureLogitsWarper(sampling.temperature),
        TopKLogitsWarper(sampling.top_k or 97),
        TopPLogitsWarper(sampling.top_p),
    ):
        scores = processor(context, scores)
    right = scores.softmax(-1)[0].numpy()
    ours = np.zeros(97)
    ours[kept] = probabilities
    assert sorted(kept) == np.flatnonzero(right).tolist()
    assert np.abs(ours - right).max() < 1e-6
    assert Greedy(sampling.repetition_penalty).choose(logits, seen, random) in kept
    draws = [sampling.choose(logits, seen, random) for _ in range(200)]
    assert set(draws) <= set(kept.tolist())


def test_a_package_asks_for_what_its_search_says() -> None:
    assert of_package({}) == Greedy()
    assert of_package({"do_sample": False, "temperature": 0.3, "repetition_penalty": 1.1}) == Greedy(1.1)
    search = {"do_sample": True, "temperature": 0.3, "top_k": 40, "top_p": 0.9, "num_beams": 1}
    assert of_package(search) == Multinomial(0.3, 40, 0.9)
    with pytest.raises(Unsupported, match="num_beams 4"):
        of_package({"num_beams": 4})
    for wrong in ({"temperature": 0}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}, {"repetition_penalty": 0}):
        with pytest.raises(ParitasError, match="sampling-invalid"):
            Multinomial(**wrong)


# Generation


@pytest.fixture
def speaker(tmp_path: Path) -> Path:
    """A package with a tokenizer of 256 bytes and more, a template and random weights."""
    vocab = save(tmp_path, byte_level(), CHATML).backend_tokenizer.get_vocab_size()
    decoder(tmp_path / "model.onnx", vocab)
    config(tmp_path, vocab, do_sample=True, temperature=0.8, top_k=50)
    return tmp_path


def _truth(folder: Path, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens in numpy."""
    tables = Tables(ChatTokenizer.open(folder)._tokenizer.get_vocab_size())
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(tables.logits(np.array(tokens))[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("runtime", ["genai", "onnxruntime"])
@pytest.mark.parametrize("chat", [True, False])
def test_a_package_speaks_as_its_decoder_does(speaker: Path, runtime: Any, chat: bool) -> None:
    package = open_package(speaker)
    run = generate(package, "Hi", chat=chat, max_new_tokens=12, sampling=Greedy(), runtime=runtime)
    pieces = list(run)
    tokenizer = ChatTokenizer.open(speaker)
    expected = _truth(speaker, run.prompt, 12)
    stop = next((i for i, token in enumerate(expected) if token in (2, 4)), 12)
    assert run.tokens == expected[:stop]
    text = tokenizer.decode(run.prompt + run.tokens)[len(tokenizer.decode(run.prompt)) :]
    assert "".join(pieces) == (text.rstrip("\ufffd") if stop == 12 else text)
    assert run.prompt == (
        tokenizer.encode_chat([{"role": "user", "content": "Hi"}]) if chat else tokenizer.encode("Hi")
    )
    cost = run.statistics
    assert (cost.prompt_tokens, cost.new_tokens) == (len(run.prompt), len(run.tokens))
    assert cost.stop_reason == ("length" if stop == 12 else "eos")
    assert cost.tokens_per_second > 0
    assert list(run) == []


@pytest.mark.parametrize("runtime", ["genai", "onnxruntime"])
@pytest.mark.parametrize("as_list", [True, False])
def test_a_text_ends_where_the_package_says(speaker: Path, runtime: Any, as_list: bool) -> None:
    free = generate(open_package(speaker), "Hi", max_new_tokens=8, sampling=Greedy(), runtime="onnxruntime")
    list(free)
    third = free.tokens[2]
    file = speaker / "genai_config.json"
    values = json.loads(file.read_text())
    values["model"]["eos_token_id"] = [third, 2] if as_list else third
    file.write_text(json.dumps(values))
    run = generate(open_package(speaker), "Hi", max_new_tokens=8, sampling=Greedy(), runtime=runtime)
    list(run)
    assert run.tokens == free.tokens[: free.tokens.index(third)]
    assert run.statistics.stop_reason == "eos"


def test_without_a_genai_config_the_checkpoints_own_end_counts(speaker: Path) -> None:
    (speaker / "genai_config.json").unlink()
    run = generate(open_package(speaker), "Hi", max_new_tokens=3)
    assert run.runtime.startswith("onnxruntime 1")
    list(run)
    free = run.tokens
    (speaker / "generation_config.json").write_text(json.dumps({"eos_token_id": free[1]}))
    run = generate(open_package(speaker), "Hi", max_new_tokens=3)
    list(run)
    assert run.tokens == free[: free.index(free[1])]


def test_a_seed_gives_the_same_text_again_in_both_runtimes(speaker: Path) -> None:
    def tokens(seed: int | None, runtime: Any) -> list[int]:
        run = generate(open_package(speaker), "Hi", max_new_tokens=16, runtime=runtime, seed=seed)
        list(run)
        return run.tokens

    assert tokens(7, "auto") == tokens(7, "onnxruntime") == tokens(7, "genai")
    assert len({tuple(tokens(seed, "onnxruntime")) for seed in range(5)}) == 5


def test_a_generation_that_cannot_be_is_refused_before_anything_is_loaded(speaker: Path) -> None:
    package = open_package(speaker)
    for code, settings in {
        "prompt-too-long": {"prompt": "Hi", "max_new_tokens": CONTEXT},
        "max-tokens-invalid": {"prompt": "Hi", "max_new_tokens": 0},
        "chat-template-missing": {"prompt": "Hi", "max_new_tokens": 3},
    }.items():
        if code == "chat-template-missing":
            (speaker / "chat_template.jinja").unlink()
        with pytest.raises(ParitasError, match=code):
            generate(package, **settings)
    with pytest.raises(RuntimeError, match="every piece"):
        _ = generate(package, "Hi", chat=False, max_new_tokens=3).statistics


def test_a_cut_within_a_character_writes_no_half_of_it(speaker: Path) -> None:
    tokenizer = ChatTokenizer.open(speaker)
    for seed in range(12):  # random bytes: most cuts fall within a character
        run = generate(open_package(speaker), "Hi", max_new_tokens=3, runtime="onnxruntime", seed=seed)
        text = "".join(run)
        assert tokenizer.decode(run.tokens).rstrip("\ufffd").startswith(text.rstrip("\ufffd"))
        assert not text.endswith("\ufffd") or run.statistics.stop_reason == "eos"


def test_logits_that_are_not_numbers_are_never_spoken(speaker: Path) -> None:
    model = onnx.load(speaker / "model.onnx")
    for tensor in model.graph.initializer:
        if tensor.name == "head":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.nan, "head"))
    onnx.save(model, speaker / "model.onnx")
    with pytest.raises(Invalid, match="logits-nan"):
        list(generate(open_package(speaker), "Hi", max_new_tokens=3))


def test_running_a_package_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, paritas.runtime.generate, paritas.runtime.padding\n"
        "print([m for m in ('torch', 'transformers', 'onnxruntime_genai') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
