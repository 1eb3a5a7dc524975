"""Every number that GGUF stores, widened to fp32, against the definition of its format."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize

from paritas.checkpoint.gguf_quants import widen

Q = GGMLQuantizationType
RNG = np.random.default_rng(5)
SIMPLE = (Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1)
K_QUANTS = {Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,)}  # where a block has its fp16 scales


def stored(shape: tuple[int, ...], kind: Q, shift: float = 0.0) -> np.ndarray:
    """A random tensor as bytes of this type."""
    if kind not in K_QUANTS:
        return quantize((RNG.normal(size=shape) + shift).astype(np.float32), kind)
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = RNG.integers(0, 256, (int(np.prod(shape)) // elements, size), dtype=np.uint8)
    for at in K_QUANTS[kind]:
        scale = RNG.normal(size=len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(*shape[:-1], -1)


def plain(raw: np.ndarray, kind: Q) -> np.ndarray:
    """What the bytes mean, number by number, from the definition of the format."""
    flat = np.ascontiguousarray(raw).view(np.uint8).reshape(-1)
    if kind in (Q.F32, Q.F16):
        return flat.view("<f4" if kind == Q.F32 else "<f2").astype(np.float32)
    if kind == Q.BF16:
        return (flat.view("<u2").astype(np.uint32) << 16).view(np.float32)
    size = GGML_QUANT_SIZES[kind][1]
    return np.array([v for b in flat.reshape(-1, size) for v in BLOCKS[kind](b)], dtype=np.float32)


def half(block: np.ndarray, at: int) -> np.float32:
    return np.float32(block[at : at + 2].view("<f2")[0])


def q8_0(b: np.ndarray) -> Iterator[np.float32]:
    yield from (half(b, 0) * np.float32(q) for q in b[2:].view(np.int8))


def q4_0(b: np.ndarray) -> Iterator[np.float32]:
    yield from (half(b, 0) * np.float32(int(q) % 16 - 8) for q in b[2:])
    yield from (half(b, 0) * np.float32(int(q) // 16 - 8) for q in b[2:])


def q4_1(b: np.ndarray) -> Iterator[np.float32]:
    yield from (half(b, 0) * np.float32(int(q) % 16) + half(b, 2) for q in b[4:])
    yield from (half(b, 0) * np.float32(int(q) // 16) + half(b, 2) for q in b[4:])


def scale_and_min(q: list[int], j: int) -> tuple[int, int]:
    if j < 4:
        return q[j] & 63, q[j + 4] & 63
    return q[j + 4] & 15 | q[j - 4] >> 6 << 4, q[j + 4] >> 4 | q[j] >> 6 << 4


def q45_k(b: np.ndarray, five: bool) -> Iterator[np.float32]:
    packed = [int(x) for x in b[4:16]]
    high, low = [int(x) for x in b[16:48]], [int(x) for x in b[48 if five else 16 :]]
    for group in range(8):
        scale, least = scale_and_min(packed, group)
        d, m = half(b, 0) * np.float32(scale), half(b, 2) * np.float32(least)
        for i in range(32):
            q = low[group // 2 * 32 + i] >> 4 * (group % 2) & 15
            q += 16 * (high[i] >> group & 1) if five else 0
            yield d * np.float32(q) - m


def q6_k(b: np.ndarray) -> Iterator[np.float32]:
    low, high, scales = [int(x) for x in b[:128]], [int(x) for x in b[128:192]], b[192:208].view(np.int8)
    for i in range(256):
        part, column = i // 128, i % 128
        q = low[part * 64 + column % 64] >> 4 * (column // 64) & 15
        q |= (high[part * 32 + column % 32] >> 2 * (column // 32) & 3) << 4
        yield half(b, 208) * np.float32(scales[i // 16]) * np.float32(q - 32)


BLOCKS: dict[Q, Callable[[np.ndarray], Iterator[np.float32]]] = {
    Q.Q8_0: q8_0,
    Q.Q4_0: q4_0,
    Q.Q4_1: q4_1,
    Q.Q4_K: lambda b: q45_k(b, False),
    Q.Q5_K: lambda b: q45_k(b, True),
    Q.Q6_K: q6_k,
}


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.BF16, *BLOCKS], ids=lambda kind: kind.name)
@pytest.mark.parametrize("rows", [1, 3, 97])
def test_stored_types_mean_what_the_format_says(kind: Q, rows: int) -> None:
    raw = stored((rows, 768), kind)
    values = widen(np.ascontiguousarray(raw).view(np.uint8), kind.name)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, plain(raw, kind))


@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_a_broken_scale_is_not_hidden_and_does_not_warn(scale: float) -> None:
    raw = stored((4, 256), Q.Q6_K).copy()
    raw[2, 208:210] = np.array([scale], dtype="<f2").view(np.uint8)
    finite = np.isfinite(widen(raw, "Q6_K").reshape(4, 256))
    assert finite.all(axis=1).tolist() == [True, True, False, True]
