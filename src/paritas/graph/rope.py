"""Rotary tables with transformers' bits, computed without torch.

transformers forms inverse frequencies and angles in fp32 with torch on the CPU (``modeling_rope_utils``, each
model's ``RotaryEmbedding``). One last bit of a frequency turns the angle at position 131,072 by up to 8e-3
radians, so the frequencies must be torch's own. Measured with torch 2.13 on x86-64, where its AVX2 and AVX512
kernels agree, and numpy 2.4:

* **Inverse frequencies are exact** for theta 1e4, 1e5, 5e5, 1e6, 5e6, 1e7 and dim 16, 32, 64, 96, 128, 256,
  512. Over 3,000 random thetas from 1e3 to 1e8, none of 1,920,000 entries in torch's blocks of 32 differs.
  The ``dim / 2 % 32`` entries after the last block come from the C library's ``powf``; ours are correctly
  rounded and its are not: 71 of 96,000 differ, by one last bit.
* **Angles are exact** where the frequencies are: one fp32 product.
* **Cosines and sines are correctly rounded; torch's are not.** They come from Intel MKL, whose arithmetic is
  not published. 3 to 5 of 100 entries differ, by one last bit, never by more than 6e-8.

Other kernels of torch (``ATEN_CPU_CAPABILITY=default``, another processor family) have other last bits
themselves. A difference that one last bit of a frequency explains is the reference's noise, not a fault.
"""

import math
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paritas.spec import Dynamic, Linear, Llama3, LongRope, Proportional, Rope, Yarn

Float32: TypeAlias = NDArray[np.float32]

_BLOCK: Final = 32
"""Entries torch's vector kernels take at a time: two AVX512 registers. What is left over goes to ``powf``."""

# The minimax coefficients that Sleef publishes, highest power first.
_LOG: Final = (0.240320354700088500976562, 0.285112679004669189453125, 0.400007992982864379882812)
_LOG_CUBIC: Final = 0.66666662693023681640625 + 3.69183861259614332084311e-09
_EXP: Final = (
    0.00136324646882712841033936,
    0.00836596917361021041870117,
    0.0416710823774337768554688,
    0.166665524244308471679688,
    0.499999850988388061523438,
)
_LN2_HIGH: Final = 0.693145751953125  # so short that its product with a small integer is exact
_LN2_LOW: Final = np.float32(1.428606765330187045e-06)


def inverse_frequencies(rope: Rope, length: int = 1) -> Float32:
    """Radians per position of each rotated pair, shape ``[dim / 2]``; of a LongRoPE, within its original context.

    ``length`` is that of the call, in positions, which dynamic scaling depends on.
    ``theta ** (-2i / dim)``, then scaled. Every step is transformers' own, in its order and in fp32; torch
    reads ``scalar / tensor`` as a reciprocal and a product. The module says what is exact.
    """
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    periods = _power(_base(rope, length), exponents)
    match rope.scaling:
        case None | Dynamic():
            return np.float32(1) / periods
        case Linear(factor):
            return np.float32(1) / periods / np.float32(factor)
        case Llama3():
            return _llama3(np.float32(1) / periods, rope.scaling)
        case Yarn():
            return _yarn(periods, rope.theta, rope.scaling)
        case LongRope(short):
            return np.float32(1) / (np.array(short, np.float32) * periods)
        case Proportional():
            return _proportional(rope.theta, exponents, rope.scaling)


def far(rope: Rope) -> Rope:
    """The RoPE of a call that reaches beyond a LongRoPE's original context, as one that never changes."""
    assert isinstance(rope.scaling, LongRope)
    return replace(rope, scaling=replace(rope.scaling, short=rope.scaling.long))


def switch(rope: Rope | None, context: int) -> int | None:
    """The length beyond which every position of a call is rotated otherwise; None if it is not within ``context``."""
    original = rope.scaling.original_context if rope and isinstance(rope.scaling, LongRope) else context
    return original if original < context else None


def tables(rope: Rope, start: int, stop: int) -> tuple[Float32, Float32]:
    """Cosine and sine, as :func:`table` gives them."""
    return table(rope, np.cos, start, stop), table(rope, np.sin, start, stop)


def table(rope: Rope, turned: np.ufunc, start: int, stop: int) -> Float32:
    """``turned``, np.cos or np.sin, at positions ``start`` to ``stop - 1``, of shape ``[stop - start, dim / 2]``.

    The angle (radians) is the fp32 product of position and frequency; its cosine and sine are taken in fp64
    and rounded once, so they may differ from torch's by one last bit (6e-8). The attention factor, where there is
    one, multiplies them in fp32. A caller bounds memory by asking for a block of rows: no more than two fp32
    arrays of the block's shape are held.
    """
    positions = np.arange(start, stop, dtype=np.float32)
    angles = positions[:, None] * inverse_frequencies(rope)
    turned(angles, out=angles, dtype=np.float64, casting="same_kind")
    if rope.attention_factor != 1.0:
        angles *= np.float32(rope.attention_factor)
    return angles


def stacked_table(rope: Rope, context: int, turned: np.ufunc, start: int, stop: int) -> Float32:
    """Rows ``start`` to ``stop - 1`` of the table of cosines, or of sines, that a graph holds.

    Those of positions ``0`` to ``context - 1``. Where the RoPE has a :func:`switch`, that many rows for calls within
    it come first, and ``context`` rows for calls beyond it follow.
    """
    border = switch(rope, context)
    if border is None:
        return table(rope, turned, start, stop)
    near = table(rope, turned, min(start, border), min(stop, border))
    return np.concatenate([near, table(far(rope), turned, max(start - border, 0), max(stop - border, 0))])


def _base(rope: Rope, length: int) -> float:
    """theta; of dynamic scaling, as transformers forms it for a call of ``length`` positions."""
    if not isinstance(rope.scaling, Dynamic):
        return rope.theta
    factor, original, power = rope.scaling.factor, rope.scaling.original_context, rope.dim / (rope.dim - 2)
    if length <= original:  # Python's numbers; beyond, the length is a tensor, and all is fp32
        return rope.theta * (factor * 1.0 - (factor - 1)) ** power
    stretch = np.float32(factor) * np.float32(length) / np.float32(original) - np.float32(factor - 1)
    return float(np.float32(rope.theta) * np.float32(float(stretch) ** power))


def _proportional(theta: float, exponents: Float32, scaling: Proportional) -> Float32:
    """Frequencies of the pairs that turn, which torch computes by themselves, and zeros."""
    turning = np.float32(1) / _power(theta, exponents[: scaling.pairs])
    return np.concatenate([turning, np.zeros(exponents.size - scaling.pairs, np.float32)]) / np.float32(scaling.factor)


def _yarn(periods: Float32, theta: float, scaling: Yarn) -> Float32:
    """YaRN's ramp from kept to divided frequencies, over the pairs."""
    pairs = periods.size
    low = _pair_of_turns(scaling.beta_fast, 2 * pairs, theta, scaling)
    high = _pair_of_turns(scaling.beta_slow, 2 * pairs, theta, scaling)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    width = high - low or 0.001
    ramp = np.clip((np.arange(pairs, dtype=np.float32) - np.float32(low)) / np.float32(width), 0, 1).astype(np.float32)
    keep = (np.float32(1) - ramp).astype(np.float32)
    kept, divided = np.float32(1) / periods, np.float32(1) / (np.float32(scaling.factor) * periods)
    return (divided * (np.float32(1) - keep) + kept * keep).astype(np.float32)


def _pair_of_turns(turns: float, dim: int, theta: float, scaling: Yarn) -> float:
    """The pair that turns so often within the original context, between two pairs too."""
    return dim * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))


def _llama3(frequencies: Float32, scaling: Llama3) -> Float32:
    """Llama 3.1's bands by wavelength (positions per turn), in fp32 throughout."""
    factor, context = np.float32(scaling.factor), np.float32(scaling.original_context)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wavelengths = np.float32(1) / frequencies * np.float32(2 * math.pi)
    turns = np.float32(1) / wavelengths * context
    keep = (turns - np.float32(low)) / np.float32(high - low)
    ramp = (np.float32(1) - keep) * frequencies / factor + keep * frequencies
    longest, shortest = scaling.original_context / low, scaling.original_context / high
    outer = np.where(wavelengths > np.float32(longest), frequencies / factor, frequencies)
    return np.where((wavelengths < np.float32(shortest)) | (wavelengths > np.float32(longest)), outer, ramp)


def _power(base: float, exponents: Float32) -> Float32:
    """``base ** exponents`` in fp32: Sleef's in torch's whole blocks, correctly rounded after them."""
    base = float(np.float32(base))
    split = exponents.size // _BLOCK * _BLOCK
    rest = np.power(base, exponents[split:].astype(np.float64)).astype(np.float32)
    return np.concatenate([_sleef_power(base, exponents[:split]), rest])


def _sleef_power(base: float, exponents: Float32) -> Float32:
    """Sleef's ``exp(exponent * log(base))``, good to 1 ulp.

    Sleef carries pairs of fp32 numbers, for which fp64 stands here. The last bit of the result hangs on what
    it does in plain fp32, and that is kept: both polynomials, and ln 2 in two parts.
    """
    logs = _sleef_log(base) * exponents.astype(np.float64)
    twos = np.rint(logs.astype(np.float32) * np.float32(1 / math.log(2)))
    rest = logs - twos * np.float64(_LN2_HIGH) - twos * _LN2_LOW  # the second product is rounded to fp32
    higher = _polynomial(_EXP, rest.astype(np.float32)).astype(np.float64)
    return np.ldexp((1 + (rest + rest * rest * higher)).astype(np.float32), twos.astype(np.int32))


def _sleef_log(value: float) -> float:
    """Natural logarithm by the series of ``2 atanh``; the mantissa is brought into [0.75, 1.5)."""
    mantissa, twos = math.frexp(value)
    if mantissa < 0.75:
        mantissa, twos = mantissa * 2, twos - 1
    x = (mantissa - 1) / (mantissa + 1)
    higher = float(_polynomial(_LOG, np.array([x * x], np.float32))[0])
    return twos * math.log(2) + 2 * x + x**3 * (_LOG_CUBIC + x * x * higher)


def _polynomial(coefficients: tuple[float, ...], x: Float32) -> Float32:
    """Horner's rule in fp32 with fused multiply-add: fp64 holds the product exactly, the sum is rounded."""
    wide = x.astype(np.float64)
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = (total * wide + np.float64(np.float32(coefficient))).astype(np.float32)
    return total
