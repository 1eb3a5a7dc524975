"""Rotary tables against transformers' own rotary modules, built from configs as published."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, Phi3Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from paritas.config import Config
from paritas.graph.rope import far, inverse_frequencies, stacked_table, switch, tables
from paritas.spec import Linear, Llama3, LongRope, Rope

ROWS = 16_384
LAST_BIT = 2.0**-24  # of a cosine in [0.5, 1)

same_kernels = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in {"AVX2", "AVX512"},
    reason="torch's last bits are those of its AVX2 and AVX512 kernels",
)


@dataclass(frozen=True)
class Case:
    name: str
    rope: Rope
    positions: int
    module: Callable[[], torch.nn.Module]
    layer_type: str | None = None


def gemma3(head_dim: int, scaling: Linear | None) -> Callable[[], torch.nn.Module]:
    full: dict[str, object] = {"rope_type": "default", "rope_theta": 1e6}
    if scaling:
        full |= {"rope_type": "linear", "factor": scaling.factor}
    sliding = {"rope_type": "default", "rope_theta": 1e4}
    return lambda: Gemma3RotaryEmbedding(
        Gemma3TextConfig(
            head_dim=head_dim,
            num_hidden_layers=6,
            rope_parameters={"full_attention": full, "sliding_attention": sliding},
        )
    )


def llama(head_dim: int, **rope: object) -> Callable[[], torch.nn.Module]:
    return lambda: LlamaRotaryEmbedding(LlamaConfig(head_dim=head_dim, rope_parameters=rope))


def llama3(head_dim: int, factor: float) -> Callable[[], torch.nn.Module]:
    return llama(
        head_dim,
        rope_type="llama3",
        rope_theta=500_000.0,
        factor=factor,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )


def gemma3_cases(name: str, dim: int, scaling: Linear | None, positions: int) -> Iterator[Case]:
    module = gemma3(dim, scaling)
    yield Case(f"{name}-full", Rope(1e6, dim, scaling), positions, module, "full_attention")
    yield Case(f"{name}-sliding", Rope(1e4, dim), positions, module, "sliding_attention")


CASES = [
    *gemma3_cases("gemma3-270m-1b", 256, None, 32_768),
    *gemma3_cases("gemma3-4b-12b", 256, Linear(8.0), 131_072),
    *gemma3_cases("gemma3-27b", 128, Linear(8.0), 131_072),
    Case("llama-3.2-1b", Rope(5e5, 64, Llama3(32.0, 1.0, 4.0, 8192)), 131_072, llama3(64, 32.0)),
    Case("llama-3.2-3b", Rope(5e5, 128, Llama3(32.0, 1.0, 4.0, 8192)), 131_072, llama3(128, 32.0)),
    Case("llama-3.1-8b", Rope(5e5, 128, Llama3(8.0, 1.0, 4.0, 8192)), 131_072, llama3(128, 8.0)),
    Case("smollm2-135m", Rope(1e5, 64), 131_072, llama(64, rope_type="default", rope_theta=100_000.0)),
    Case("smollm2-1.7b", Rope(130_000.0, 64), 8192, llama(64, rope_type="default", rope_theta=130_000.0)),
]
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@same_kernels
@by_name
def test_frequencies_are_the_bits_of_the_module(case: Case) -> None:
    module, prefix = case.module(), f"{case.layer_type}_" if case.layer_type else ""
    theirs = getattr(module, f"{prefix}inv_freq").numpy()
    ours = inverse_frequencies(case.rope)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours.view(np.int32), theirs.view(np.int32))
    assert getattr(module, f"{prefix}attention_scaling") == 1.0


@same_kernels
@by_name
def test_tables_are_the_modules_to_one_last_bit_at_every_position(case: Case) -> None:
    module, pairs = case.module(), case.rope.dim // 2
    arguments = () if case.layer_type is None else (case.layer_type,)
    differing = 0
    for start in range(0, case.positions, ROWS):
        stop = min(start + ROWS, case.positions)
        with torch.no_grad():
            theirs = module(torch.zeros(1), torch.arange(start, stop)[None], *arguments)
        for mine, full in zip(tables(case.rope, start, stop), theirs, strict=True):
            assert mine.dtype == np.float32
            assert mine.shape == (stop - start, pairs)
            half = full[0, :, :pairs].numpy()
            difference = np.abs(mine - half)
            assert difference.max() <= LAST_BIT
            differing += np.count_nonzero(difference)
    assert differing <= 0.06 * 2 * case.positions * pairs


@same_kernels
@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5, 1e6, 5e6, 1e7])
@pytest.mark.parametrize("dim", [16, 32, 64, 96, 128, 256, 512])
def test_frequencies_of_every_common_theta_and_width(theta: float, dim: int) -> None:
    theirs = llama(dim, rope_type="default", rope_theta=theta)().inv_freq.numpy()
    ours = inverse_frequencies(Rope(theta, dim))
    np.testing.assert_array_equal(ours.view(np.int32), theirs.view(np.int32))
    scaled = llama(dim, rope_type="linear", rope_theta=theta, factor=3.0)().inv_freq.numpy()
    ours = inverse_frequencies(Rope(theta, dim, Linear(3.0)))
    np.testing.assert_array_equal(ours.view(np.int32), scaled.view(np.int32))


@same_kernels
@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5, 1e6, 5e6, 1e7])
@pytest.mark.parametrize("dim", [16, 32, 64, 96, 128, 256, 512])
@pytest.mark.parametrize(
    "scaling",
    [Llama3(8.0, 1.0, 4.0, 8192), Llama3(32.0, 1.0, 4.0, 8192), Llama3(2.5, 1.5, 3.7, 1000)],
    ids=["factor 8", "factor 32", "factor 2.5"],
)
def test_llama3_bands_of_every_common_theta_and_width(theta: float, dim: int, scaling: Llama3) -> None:
    theirs = llama(
        dim,
        rope_type="llama3",
        rope_theta=theta,
        factor=scaling.factor,
        low_freq_factor=scaling.low_freq_factor,
        high_freq_factor=scaling.high_freq_factor,
        original_max_position_embeddings=scaling.original_context,
    )()
    ours = inverse_frequencies(Rope(theta, dim, scaling))
    np.testing.assert_array_equal(ours.view(np.int32), theirs.inv_freq.numpy().view(np.int32))


@same_kernels
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("context", [32, 4096, 32_768])
@pytest.mark.parametrize("dim", [16, 64, 96, 128])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"beta_fast": 2.5, "beta_slow": 0.5, "truncate": False},
        {"mscale": 1.3, "mscale_all_dim": 0.7},
        {"mscale": 1.3},
        {"attention_factor": 1.23},
        {"factor": 1.0},
    ],
    ids=["plain", "betas", "both mscales", "one mscale", "attention factor", "factor 1"],
)
def test_yarn_of_every_width_and_option(context: int, dim: int, more: dict[str, object]) -> None:
    for theta in (5e3, 1e4, 5e5, 1e6):
        said = {"rope_type": "yarn", "rope_theta": theta, "factor": 4.0, "original_max_position_embeddings": context}
        module = llama(dim, **said | more)()
        rope = Config({"rope_parameters": said | more}).rope(dim, 1e4, 4 * context)
        np.testing.assert_array_equal(inverse_frequencies(rope), module.inv_freq.numpy())
        assert rope.attention_factor == module.attention_scaling


@same_kernels
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [1.0, 0.75, 0.5])
@pytest.mark.parametrize(("original", "context"), [(64, 256), (4096, 131_072), (4096, 4096)])
def test_longrope_on_both_sides_of_its_switch(part: float, original: int, context: int) -> None:
    head_dim = 96
    pairs = int(head_dim * part) // 2
    factors = {"short_factor": np.linspace(1, 2, pairs).tolist(), "long_factor": np.geomspace(1, 60, pairs).tolist()}
    said = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": part, **factors}
    rope = Config({"rope_parameters": dict(said)}).rope(head_dim, 1e4, context, default_partial=1.0, original=original)
    config = Phi3Config(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=context,
        original_max_position_embeddings=original,
        rope_parameters=said,
    )
    module = Phi3RotaryEmbedding(config)
    assert rope.attention_factor == module.attention_scaling
    for length, side in ((original, rope), (original + 1, far(rope))):
        cos, sin = module(torch.zeros(1), torch.arange(length)[None])
        np.testing.assert_array_equal(inverse_frequencies(side), module.inv_freq.numpy())
        for mine, full in zip(tables(side, 0, length), (cos, sin), strict=True):
            assert np.abs(mine - full[0, :, :pairs].numpy()).max() <= 2 * LAST_BIT * rope.attention_factor


@same_kernels
@pytest.mark.parametrize("factor", [1.1, 2.5, 3.3, 4.0])
@pytest.mark.parametrize("dim", [16, 64, 128])
def test_dynamic_scaling_at_every_kind_of_length(factor: float, dim: int) -> None:
    said = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": factor}
    rope = Config({"rope_parameters": said}).rope(dim, 1e4, 64)
    for length in (1, 63, 64, 65, 71, 120):
        module = LlamaRotaryEmbedding(LlamaConfig(head_dim=dim, max_position_embeddings=64, rope_parameters=dict(said)))
        module(torch.zeros(1), torch.arange(length)[None])
        np.testing.assert_array_equal(inverse_frequencies(rope, length), module.inv_freq.numpy())


def test_a_graph_holds_the_near_rows_before_the_far_ones() -> None:
    rope = Rope(1e4, 8, LongRope((1.0, 1.5, 2.0, 2.5), (2.0, 4.0, 8.0, 16.0), 16, 1.2))
    assert (switch(rope, 64), switch(rope, 16), switch(rope, 8), switch(Rope(1e4, 8), 64)) == (16, None, None, None)
    halves = (np.cos, np.sin)
    for turned, near, beyond in zip(halves, tables(rope, 0, 16), tables(far(rope), 0, 64), strict=True):
        whole = stacked_table(rope, 64, turned, 0, 80)
        np.testing.assert_array_equal(whole, np.concatenate([near, beyond]))
        for block in ((0, 10), (10, 20), (16, 17), (30, 80)):
            np.testing.assert_array_equal(stacked_table(rope, 64, turned, *block), whole[slice(*block)])


def test_a_row_does_not_depend_on_the_block_it_is_asked_in() -> None:
    rope = Rope(5e5, 64, Llama3(32.0, 1.0, 4.0, 8192))
    whole = tables(rope, 0, 1000)
    for start, stop in ((0, 1), (0, 7), (7, 1000), (999, 1000)):
        for block, full in zip(tables(rope, start, stop), whole, strict=True):
            np.testing.assert_array_equal(block, full[start:stop])


def test_position_zero_turns_nothing_and_no_rows_are_no_rows() -> None:
    cos, sin = tables(Rope(1e4, 16), 0, 1)
    assert (cos == 1).all()
    assert (sin == 0).all()
    cos, sin = tables(Rope(1e4, 16), 5, 5)
    assert cos.shape == sin.shape == (0, 8)
