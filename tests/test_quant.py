"""Quantisers: what the integers stand for, how far that is from the weights, and that ONNX Runtime reads the same."""

import tracemalloc

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from paritas.checkpoint import Tensor
from paritas.errors import ParitasError
from paritas.preflight import memory_forecast
from paritas.quant.grid import Grid, blocked
from paritas.quant.packing import SCRATCH_BYTES, Packed, quantised
from paritas.quant.recipe import Recipe, recipe
from paritas.weights import BLOCK_BYTES, Blocks, Float, Method, Stored, Weight

MICROSOFT = "com.microsoft"
HOW = st.builds(
    Blocks,
    bits=st.sampled_from((4, 8)),
    block=st.sampled_from((16, 32, 64, 128)),
    symmetric=st.booleans(),
    method=st.sampled_from(Method),
    scales=st.sampled_from((Float.FP32, Float.FP16)),
)
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 200))


@st.composite
def matrices(draw: st.DrawFn) -> NDArray[np.float32]:
    """Numbers of the sizes that weights have, with rows of zeros, outliers, one sign alone."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, columns = draw(SHAPES)
    values = random.standard_normal((rows, columns)) * 10.0 ** draw(st.integers(-2, 1))
    values *= np.where(random.random((rows, columns)) < draw(st.sampled_from((0.0, 0.05))), 50, 1)
    if draw(st.booleans()):
        values = np.abs(values) * draw(st.sampled_from((-1, 1)))
    values[random.random(rows) < draw(st.sampled_from((0.0, 0.3)))] = 0
    return values.astype(np.float32)


def steps(values: NDArray[np.float32], grid: Grid, how: Blocks) -> NDArray[np.float64]:
    """The distance of each number from what is stored for it, in steps of its block."""
    scales = np.abs(grid.scales.astype(np.float64))[:, :, None]
    off = np.abs(grid.values(how.bits).astype(np.float64) - blocked(values, how.block))
    return np.divide(off, scales, out=off.copy(), where=scales > 0)


@settings(deadline=None, max_examples=150)
@given(matrices(), HOW)
def test_every_integer_is_the_nearest_and_clips_little(values: NDArray[np.float32], how: Blocks) -> None:
    grid = quantised(values, how)
    off, highest = steps(values, grid, how), 2**how.bits - 1
    inside = (grid.integers > 0) & (grid.integers < highest)
    slack = 1e-3
    assert (off[inside] <= 0.5 + slack).all()
    assert off.max() <= {4: 2.0, 8: 8.5}[how.bits] + slack
    if how.method is Method.RTN and how.scales is Float.FP32:
        assert off.max() <= 1.0 + slack  # clipped by one step on the shorter side, and no more
    zero_rows = ~values.any(axis=1)
    assert not grid.values(how.bits)[zero_rows].any()


@settings(deadline=None, max_examples=60)
@given(matrices(), HOW)
def test_what_fills_up_a_row_changes_nothing(values: NDArray[np.float32], how: Blocks) -> None:
    filled = np.pad(values, ((0, 0), (0, -values.shape[1] % how.block)))
    one, other = quantised(values, how), quantised(filled, how)
    assert np.array_equal(one.integers, other.integers)
    assert np.array_equal(one.scales, other.scales)
    if one.zeros is not None and other.zeros is not None:
        assert np.array_equal(one.zeros, other.zeros)
    assert (one.zeros is None) == (other.zeros is None) == how.symmetric
    beyond = one.values(how.bits).reshape(len(values), -1)[:, values.shape[1] :]
    assert not beyond.any()


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_search_explains_more_of_the_weighted_squares(symmetric: bool) -> None:
    random = np.random.default_rng(5)
    values = (random.standard_t(5, (64, 256)) * random.uniform(0.01, 0.1, (64, 1))).astype(np.float32)
    errors: dict[Method, float] = {}
    for method in Method:
        how = Blocks(4, 32, symmetric=symmetric, method=method)
        x, got = blocked(values, 32), quantised(values, how).values(4)
        weights = x * x + (x * x).mean(axis=2, keepdims=True)
        errors[method] = float((weights * (got - x) ** 2).sum())
    assert errors[Method.SEARCH] < (0.95 if symmetric else 0.75) * errors[Method.RTN]


class Memory(Tensor):
    """A checkpoint tensor that lies in memory."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        self.name, self.shape, self.dtype, self.place = "w", values.shape, "F32", "memory"
        self._values = values

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        return self._values[start:stop]


def packed(values: NDArray[np.float32], how: Blocks) -> tuple[Packed, dict[str, NDArray[np.generic]]]:
    """The tensors of a matrix, as the file has them; scales are asked for first, which no order forbids."""
    made = Packed(Stored(Memory(values)).stored_as(how))

    def whole(weight: Weight) -> NDArray[np.generic]:
        return np.concatenate(list(weight.blocks())).reshape(weight.shape).astype(weight.dtype)

    parts = {"scales": whole(made.scales), "integers": whole(made.integers)}
    if made.zeros is not None:
        parts["zeros"] = whole(made.zeros)
    return made, parts


def asked(
    node: onnx.NodeProto, parts: dict[str, NDArray[np.generic]], **given: NDArray[np.generic]
) -> NDArray[np.float32]:
    """What ONNX Runtime makes of the parts."""
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}
    inputs = [helper.make_tensor_value_info(n, kinds[v.dtype], v.shape) for n, v in given.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, (None, None))
    stored = [numpy_helper.from_array(values, name) for name, values in parts.items()]
    graph = helper.make_graph([node], "one", inputs, [output], stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, given)[0])


@pytest.mark.parametrize("columns", [64, 72, 200])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("bits", [4, 8])
def test_onnx_runtime_reads_what_was_meant(bits: int, block: int, symmetric: bool, columns: int) -> None:
    random = np.random.default_rng(bits * block)
    values = random.standard_normal((24, columns)).astype(np.float32)
    how = Blocks(bits, block, symmetric=symmetric, accuracy=1)
    made, parts = packed(values, how)
    meant = quantised(values, how).values(bits).reshape(24, -1)
    names = ["integers", "scales", *(["zeros"] if made.zeros else [])]
    shared = {"bits": bits, "block_size": block, "domain": MICROSOFT}

    table = parts | {"integers": parts["integers"].reshape(made.table.shape)}
    gather = helper.make_node("GatherBlockQuantized", ["integers", "i", *names[1:]], ["y"], **shared)
    assert np.array_equal(asked(gather, table, i=np.arange(24)), meant)

    x = random.standard_normal((3, columns)).astype(np.float32)
    product = helper.make_node("MatMulNBits", ["x", *names], ["y"], K=columns, N=24, accuracy_level=1, **shared)
    assert np.allclose(asked(product, parts, x=x), x @ meant[:, :columns].T, rtol=1e-4, atol=1e-4)


def test_a_weight_that_is_no_number_is_refused() -> None:
    values = np.ones((3, 64), np.float32)
    values[1, 7] = np.nan
    with pytest.raises(ParitasError, match="weight-not-finite"):
        packed(values, Blocks(4, 32))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("fp32", None), Recipe()),
        (("bf16", None), Recipe("bf16", Float.BF16)),
        (
            ("int4", "block=64,symmetric=no,method=rtn"),
            Recipe("int4", Blocks(4, 64, symmetric=False)),
        ),
        (
            ("int4", "group_size=128, algo=k_quant, accuracy_level=1, keep8=lm_head+down_proj"),
            Recipe("int4", Blocks(4, 128, symmetric=False, method=Method.SEARCH, accuracy=1), ("lm_head", "down_proj")),
        ),
        (("int8", "bits=8,method=rtn"), Recipe("int8", Blocks(8, 32, method=Method.RTN))),
    ],
)
def test_words_of_a_recipe(words: tuple[str, str | None], wanted: Recipe) -> None:
    assert recipe(*words) == wanted


@pytest.mark.parametrize(
    ("dtype", "quant", "fragments"),
    [
        ("int4", "blok=32", ("blok=32", "Did you mean block")),
        ("int4", "block=48", ("block=48", "16, 32, 64, 128")),
        ("int4", "block", ("'block'", "key=value")),
        ("int4", "bits=8", ("bits=8 is not int4", "--dtype int8")),
        ("int4", "block=32,block_size=64", ("a key twice", "once")),
        ("int4", "method=gptq", ("method=gptq", "rtn or search")),
        ("int4", "symmetric=maybe", ("yes or no",)),
        ("fp16", "block=32", ("not for fp16", "--dtype int4")),
    ],
)
def test_wrong_words_of_a_recipe(dtype: str, quant: str, fragments: tuple[str, ...]) -> None:
    with pytest.raises(ParitasError, match="quant-wrong") as refusal:
        recipe(dtype, quant)
    assert all(fragment in f"{refusal.value.fact} {refusal.value.hint}" for fragment in fragments)


def test_which_matrices_keep_more() -> None:
    chosen = recipe("int4", "symmetric=yes,keep8=down_proj+*.layers.0.*,keep32=o_proj,method=rtn")
    four, eight = Blocks(4, 32), Blocks(8, 32)
    places = {
        "model.layers.1.mlp.up_proj.weight": four,
        "model.layers.1.mlp.down_proj.weight": eight,
        "model.layers.0.mlp.up_proj.weight": eight,
        "model.layers.1.self_attn.o_proj.weight": Float.FP32,
    }
    assert {name: chosen.storage(name, (64, 96)) for name in places} == places
    assert chosen.storage("model.layers.1.mlp.up_proj.weight", (64, 8)) is Float.FP32
    tied = recipe("int4", "keep8=lm_head,method=rtn,symmetric=yes").with_tied_head()
    assert tied.storage("model.embed_tokens.weight", (331, 72)) == eight
    with pytest.raises(ParitasError, match="quant-wrong"):
        recipe("int4", "keep8=donw_proj").check_names(["model.layers.0.mlp.down_proj.weight"])


@pytest.mark.parametrize("method", Method)
def test_what_quantising_holds_is_foretold(method: Method) -> None:
    how = Blocks(4, 16, symmetric=False, method=method)
    made = Packed(Stored(Memory(np.ones((40_000, 512), np.float32))).stored_as(how))
    assert made.zeros is not None
    parts = {"integers": made.integers, "scales": made.scales, "zeros": made.zeros}
    held = made.scales.bytes + made.zeros.bytes
    assert sum(each.held for each in parts.values()) == held == 40_000 * (32 * 4 + 16)
    tracemalloc.start()
    try:
        for part in parts.values():
            for _ in part.blocks():
                pass
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < most <= held + SCRATCH_BYTES + 2 * BLOCK_BYTES
    exact = memory_forecast({"matrix": Stored(Memory(np.ones((1, 1), np.float32)))})
    assert memory_forecast(parts) == exact + held + SCRATCH_BYTES
