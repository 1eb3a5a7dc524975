"""Rotary tables against transformers' own rotary modules, built from configs as published."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from paritas.graph.rope import inverse_frequencies, tables
from paritas.spec import Linear, Llama3, Rope

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
