"""Every way to keep keys and values, in one small decoder, held against the same decoder in numpy."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from paritas.errors import Invalid
from paritas.runtime.package import open_package
from paritas.runtime.ports import read_ports
from paritas.runtime.session import RawSession
from test_runtime import CONTEXT, FLOOR, HEADS, WIDTH, Tables, ids, worst

ROOM, VOCAB, WINDOW = 32, 40, 6

# How a layout keeps what it is given: the cache's shape, the inputs that tell where the call is, and the nodes.
KEEPS: dict[str, tuple[str, str, str]] = {
    "tokens-before-heads": (
        f"[b, p, {HEADS}, {WIDTH}]",
        "",
        """
        "present.0.{0}" = Concat<axis = 1>("past.0.{0}", {0}_heads)
        {0}_all = Transpose<perm = [0, 2, 1, 3]>("present.0.{0}")
        """,
    ),
    "fixed-scattered": (
        f"[b, {HEADS}, {ROOM}, {WIDTH}]",
        ", int64[b] where_to_write",
        """
        "present.0.{0}" = TensorScatter<axis = 2>("past.0.{0}", {0}_new, where_to_write)
        {0}_all = Identity("present.0.{0}")
        """,
    ),
    "fixed-tokens-first": (
        f"[b, {ROOM}, {HEADS}, {WIDTH}]",
        ", int64[b] where_to_write",
        """
        "present.0.{0}" = TensorScatter<axis = 1>("past.0.{0}", {0}_heads, where_to_write)
        {0}_all = Transpose<perm = [0, 2, 1, 3]>("present.0.{0}")
        """,
    ),
    "fixed-placed": (
        f"[b, {HEADS}, {ROOM}, {WIDTH}]",
        ", int64[n] cache_position, int64 num_logits_to_keep",
        """
        {0}_places = Reshape(cache_position, one_row)
        {0}_sizes = Shape({0}_new)
        {0}_targets = Expand({0}_places, {0}_sizes)
        "present.0.{0}" = ScatterElements<axis = 2>("past.0.{0}", {0}_targets, {0}_new)
        {0}_all = Identity("present.0.{0}")
        """,
    ),
    "merged": (
        f"[b, {HEADS}, p, {WIDTH}]",
        ", bool[1] use_cache_branch",
        """
        "present.0.{0}" = If(use_cache_branch) <
            then_branch = later () => (float[b, 2, t, 16] {0}_long) {{
                {0}_long = Concat<axis = 2>("past.0.{0}", {0}_new)
            }},
            else_branch = first () => (float[b, 2, t, 16] {0}_short) {{ {0}_short = Identity({0}_new) }}
        >
        {0}_all = Identity("present.0.{0}")
        """,
    ),
}
ATTEND = """
    sizes = Shape<start = 2, end = 3>(key_all)
    total = Squeeze(sizes)
    every = Range(zero, total, one)
    asked = Unsqueeze(position_ids, one_three)
    seen = LessOrEqual(every, asked)
    mixed = Attention(query_new, key_all, value_all, seen)
    mixed_tokens = Transpose<perm = [0, 2, 1, 3]>(mixed)
    mixed_flat = Reshape(mixed_tokens, join)
    """
FLAT = f"""
    "present.0.key" = TensorScatter<axis = 1>("past.0.key", key_placed, write)
    "present.0.value" = TensorScatter<axis = 1>("past.0.value", value_placed, write)
    mixed_flat = Attention<q_num_heads = {HEADS}, kv_num_heads = {HEADS}, is_causal = 1>(
        query_placed, "present.0.key", "present.0.value", , , , filled)
    """
WINDOWED = f"""
    counted = ReduceSum<keepdims = 0>(attention_mask, one_axis)
    less = Sub(counted, one)
    last = Cast<to = 6>(less)
    columns = Shape<start = 1, end = 2>(attention_mask)
    whole = Squeeze(columns)
    total = Cast<to = 6>(whole)
    mixed_flat, "present.0.key", "present.0.value" = com.microsoft.GroupQueryAttention<
        num_heads = {HEADS}, kv_num_heads = {HEADS}, local_window_size = {WINDOW}, sliding_window_cache = 1>(
        query_placed, key_placed, value_placed, "past.0.key", "past.0.value", last, total)
    """


def write(file: Path, cache: str, inputs: str, body: str, batch: str = "b", new: str = "n") -> Tables:
    """One layer over embedded tokens and positions; ``body`` makes ``mixed_flat`` and the presents."""
    heads = "".join(
        f"""
        {half}_flat = Gather({half}, input_ids)
        {half}_placed = Add({half}_flat, places)
        {half}_heads = Reshape({half}_placed, split)
        {half}_new = Transpose<perm = [0, 2, 1, 3]>({half}_heads)
        """
        for half in ("query", "key", "value")
    )
    graph = f"""<ir_version: 11, opset_import: ["" : 24, "com.microsoft" : 1]>
    decoder (
        int64[{batch}, {new}] input_ids, int64[{batch}, {new}] position_ids{inputs},
        float{cache} "past.0.key", float{cache} "past.0.value"
    ) => (float[b, n, {VOCAB}] logits, float{cache} "present.0.key", float{cache} "present.0.value") {{
        places = Gather(position, position_ids)
        {heads}
        {body}
        logits = MatMul(mixed_flat, head)
    }}"""
    model = onnx.parser.parse_model(graph)
    tables = Tables(VOCAB)
    constants = {
        **vars(tables),
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "one_axis": np.array([1], np.int64),
        "one_three": np.array([1, 3], np.int64),
        "one_row": np.array([1, 1, -1, 1], np.int64),
        "split": np.array([0, 0, HEADS, WIDTH], np.int64),
        "join": np.array([0, 0, HEADS * WIDTH], np.int64),
    }
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    onnx.save(model, file)
    return tables


def kept(file: Path, layout: str, **sizes: str) -> Tables:
    """That decoder with a layout of :data:`KEEPS`, flat, or windowed."""
    if layout == "fixed-flat":
        return write(file, f"[b, {ROOM}, {HEADS * WIDTH}]", ", int64[b] write, int64[b] filled", FLAT, **sizes)
    if layout == "windowed":
        return write(file, f"[b, {HEADS}, p, {WIDTH}]", ", int64[b, t] attention_mask", WINDOWED, **sizes)
    cache, inputs, nodes = KEEPS[layout]
    return write(file, cache, inputs, nodes.format("key") + nodes.format("value") + ATTEND, **sizes)


def right(tables: Tables, tokens: np.ndarray, window: int = CONTEXT) -> np.ndarray:
    """Logits ``[length, vocab]`` if a token sees itself and the ``window - 1`` before it."""
    starts = (max(0, end - window) for end in range(1, len(tokens) + 1))
    rows = []
    for end, start in enumerate(starts, start=1):
        position = tables.position
        tables.position = position[start:]
        rows.append(tables.logits(tokens[start:end])[-1])
        tables.position = position
    return np.stack(rows)


LAYOUTS = [*KEEPS, "fixed-flat", "windowed"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_pass_chunks_and_steps_are_the_decoder_in_every_layout(tmp_path: Path, layout: str) -> None:
    tables = kept(tmp_path / "model.onnx", layout)
    runtime = RawSession(open_package(tmp_path), threads=1)
    tokens = ids(24, VOCAB)
    truth = right(tables, tokens[0], WINDOW if layout == "windowed" else CONTEXT)
    whole, _ = runtime.forward(tokens)
    assert worst(whole[0], truth) < FLOOR
    parts, state = [], None
    for start, stop in [(0, 5), (5, 12), *((i, i + 1) for i in range(12, 24))]:
        logits, state = runtime.forward(tokens[:, start:stop], state)
        parts.append(logits[0])
    assert worst(np.concatenate(parts), truth) < FLOOR


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("length", [4, 17, 30])
def test_what_a_cache_holds_comes_in_one_layout(tmp_path: Path, layout: str, length: int) -> None:
    tables = kept(tmp_path / "model.onnx", layout)
    runtime = RawSession(open_package(tmp_path))
    tokens = ids(length, VOCAB)
    _, state = runtime.forward(tokens)
    keys, values = runtime.held(state)
    count = 13 if layout == "windowed" and length == 30 else length  # 17 are dropped once there are more than 22
    for table, half in ((tables.key, keys), (tables.value, values)):
        wanted = (table[tokens] + tables.position[:length]).reshape(1, length, HEADS, WIDTH).swapaxes(1, 2)
        assert half.shape == (1, HEADS, count, WIDTH)
        assert np.array_equal(half, wanted[:, :, length - count :])


def test_a_windowed_cache_drops_several_tokens_at_a_time_if_it_has_room(tmp_path: Path) -> None:
    tables = kept(tmp_path / "model.onnx", "windowed")
    model = onnx.load(tmp_path / "model.onnx")
    for value in (*model.graph.input, *model.graph.output):
        if value.name.split(".")[0] in ("past", "present"):
            value.type.tensor_type.shape.dim[2].dim_value = WINDOW + 4
    onnx.save(model, tmp_path / "model.onnx")
    runtime = RawSession(open_package(tmp_path))
    tokens = ids(30, VOCAB)
    state, counts = None, []
    for place in range(30):
        logits, state = runtime.forward(tokens[:, place : place + 1], state)
        (keys, _) = runtime.held(state)
        counts.append(keys.shape[2])
        newest = (tables.key[tokens[0, place]] + tables.position[place]).reshape(HEADS, WIDTH)
        assert np.array_equal(keys[0, :, -1], newest)
    assert worst(logits[0], right(tables, tokens[0], WINDOW)[-1:]) < FLOOR
    assert counts == [*range(1, 11), *([6, 7, 8, 9, 10] * 4)]


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout.startswith("fixed")])
def test_a_cache_of_a_fixed_length_has_room_for_so_many_tokens(tmp_path: Path, layout: str) -> None:
    kept(tmp_path / "model.onnx", layout)
    runtime = RawSession(open_package(tmp_path))
    assert runtime.ports.capacity == ROOM
    tokens = ids(ROOM, VOCAB)
    _, state = runtime.forward(tokens)
    with pytest.raises(Invalid, match=f"graph-room: the graph has room for {ROOM} tokens, not for {ROOM + 1}"):
        runtime.forward(tokens[:, :1], state)


def test_a_graph_that_takes_one_token_is_given_them_one_by_one(tmp_path: Path) -> None:
    tables = kept(tmp_path / "model.onnx", "fixed-scattered", batch="1", new="1")
    runtime = RawSession(open_package(tmp_path))
    tokens = ids(9, VOCAB)
    logits, state = runtime.forward(tokens)
    assert state.length == 9
    assert worst(logits[0], right(tables, tokens[0])) < FLOOR
    with pytest.raises(Invalid, match="graph-batch: the graph takes 1 rows at a time, not 2"):
        runtime.forward(np.repeat(tokens, 2, axis=0))


def test_rows_of_a_batch_are_the_rows_alone(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        tables = kept(tmp_path / "model.onnx", layout)
        runtime = RawSession(open_package(tmp_path))
        tokens = np.concatenate([ids(9, VOCAB), ids(9, VOCAB, seed=2)])
        first, state = runtime.forward(tokens[:, :8])
        last, _ = runtime.forward(tokens[:, 8:], state)
        for row, logits in zip(tokens, np.concatenate([first, last], axis=1), strict=True):
            assert worst(logits, right(tables, row, WINDOW if layout == "windowed" else CONTEXT)) < FLOOR, layout


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        (", int64[b] mystery", "nothing in the graph tells what it counts"),
        (", int64 mystery", "nothing in the graph tells what it counts"),
        (", bool[1] mystery", "neither ids, mask, positions"),
        (", float[b, 1, n, t] attention_mask", "neither ids, mask, positions"),
    ],
)
def test_an_input_whose_meaning_nothing_tells_is_refused(tmp_path: Path, inputs: str, told: str) -> None:
    cache, _, nodes = KEEPS["tokens-before-heads"]
    write(tmp_path / "model.onnx", cache, inputs, nodes.format("key") + nodes.format("value") + ATTEND)
    with pytest.raises(Invalid, match="graph-input-unknown") as caught:
        read_ports(tmp_path / "model.onnx")
    assert told in caught.value.fact


def test_a_number_that_two_operators_take_differently_is_refused(tmp_path: Path) -> None:
    both = FLAT.replace("filled)", "write)")
    write(tmp_path / "model.onnx", f"[b, {ROOM}, {HEADS * WIDTH}]", ", int64[b] write", both)
    with pytest.raises(Invalid, match="tokens in the cache and tokens in the cache after this call"):
        read_ports(tmp_path / "model.onnx")


def test_a_state_of_a_fixed_size_goes_from_call_to_call(tmp_path: Path) -> None:
    """Logits that count the tokens seen so far; a convolution's state goes the same way."""
    graph = f"""<ir_version: 10, opset_import: ["" : 23]>
    decoder (int64[b, n] input_ids, float[b, {VOCAB}] "past.3.seen") => (
        float[b, n, {VOCAB}] logits, float[b, {VOCAB}] "present.3.seen"
    ) {{
        depth = Constant<value_int = {VOCAB}>()
        zero_one = Constant<value_floats = [0.0, 1.0]>()
        axis = Constant<value_ints = [1]>()
        which = Constant<value_int = 1>()
        last = Constant<value_int = -1>()
        each = OneHot(input_ids, depth, zero_one)
        counted = CumSum(each, which)
        before = Unsqueeze("past.3.seen", axis)
        logits = Add(counted, before)
        "present.3.seen" = Gather<axis = 1>(logits, last)
    }}"""
    onnx.save(onnx.parser.parse_model(graph), tmp_path / "model.onnx")
    runtime = RawSession(open_package(tmp_path))
    (state,) = runtime.ports.states
    assert (state.past, state.present, state.fresh) == ("past.3.seen", "present.3.seen", (VOCAB,))
    tokens = ids(12, VOCAB)
    _, first = runtime.forward(tokens[:, :7])
    logits, _ = runtime.forward(tokens[:, 7:], first)
    assert np.array_equal(logits[0, -1], np.bincount(tokens[0], minlength=VOCAB))
    assert runtime.held(first) == ()
