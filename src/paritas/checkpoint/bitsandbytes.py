"""bitsandbytes: 8 bits with a factor for each row, or 4 bits (NF4, FP4) with one for each block of numbers.

Source: bitsandbytes 0.50, ``functional.py`` (``QuantState``, ``dequantize_4bit``, ``int8_vectorwise_dequant``).
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.base import Tensor
from paritas.checkpoint.quantisation import Quantisation, Whole, stored
from paritas.checkpoint.safetensors import SafetensorsTensor

_ROW_SCALES, _FORMAT, _STATE = ".SCB", ".weight_format", ".quant_state.bitsandbytes__"
_IGNORED = (
    *("load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit", "llm_int8_threshold", "llm_int8_skip_modules"),
    *("llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "bnb_4bit_compute_dtype"),
    *("bnb_4bit_quant_storage", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant"),
)
"""How bitsandbytes computes; what the numbers stand for is in the tensors."""


def bitsandbytes(given: Quantisation) -> Mapping[str, Tensor]:
    """The tensors, every weight with a state of bitsandbytes beside it dequantised.

    Raises:
        ParitasError: ``quantisation-tensor``.
    """
    given.ignore(*_IGNORED)
    made: dict[str, Tensor] = {}
    consumed: list[str] = []
    for name in given.tensors:
        if name.endswith(_ROW_SCALES):
            weight = _weight(given, f"{name.removesuffix(_ROW_SCALES)}.weight")
            given.check(given.tensors[name], weight.shape[:1])
            made[weight.name] = Rows(weight, stored(given.tensors[name]))
            consumed += [name, f"{name.removesuffix(_ROW_SCALES)}{_FORMAT}"]
        elif _STATE in name:
            weight = _weight(given, name.partition(_STATE)[0])
            parts = {each: tensor for each, tensor in given.tensors.items() if each.startswith(f"{weight.name}.")}
            made[weight.name] = _blocks(given, weight, parts)
            consumed += parts
    if not made:
        raise given.wrong("no tensor has a state of bitsandbytes beside it")
    return given.replaced(made, consumed)


def _weight(given: Quantisation, name: str) -> SafetensorsTensor:
    if name not in given.tensors:
        raise given.wrong(f"there is no {name}")
    return stored(given.tensors[name])


def _blocks(given: Quantisation, weight: SafetensorsTensor, parts: Mapping[str, Tensor]) -> Tensor:
    named = {name.removeprefix(f"{weight.name}."): stored(tensor) for name, tensor in parts.items()}
    state = next(tensor for name, tensor in named.items() if name.startswith("quant_state."))
    try:
        values: dict[str, Any] = json.loads(state.codes().tobytes())
        shape, block = tuple(map(int, values["shape"])), int(values["blocksize"])
        nested = "nested_absmax" in named
        inner = (int(values["nested_blocksize"]), float(values["nested_offset"])) if nested else None
        absmax, code = named["absmax"], named["quant_map"].read()
        factors = absmax.read() if inner is None else _nested(named, *inner)
    except (ValueError, KeyError, TypeError) as error:
        raise given.wrong(f"{state.name} does not describe {weight.name}: {error!r}") from None
    size = math.prod(shape)
    if weight.size != -(-size // 2) or factors.size != -(-size // block) or code.size != 16:
        found = f"{weight.size:,} bytes of codes, {factors.size:,} factors and {code.size} values"
        raise given.wrong(f"{weight.name} of {list(shape)} has {found}")
    return Blocks(weight, shape, code, factors, block)


def _nested(named: Mapping[str, SafetensorsTensor], block: int, offset: float) -> NDArray[np.float32]:
    """Factors that are quantised themselves, to 8 bits."""
    codes = named["absmax"].codes().reshape(-1)
    outer = np.repeat(named["nested_absmax"].read().reshape(-1), block)[: codes.size]
    return named["nested_quant_map"].read()[codes] * outer + np.float32(offset)


class Rows(Tensor):
    """Integers of 8 bits [outputs, inputs], each row times its greatest value / 127."""

    def __init__(self, weight: SafetensorsTensor, scale: SafetensorsTensor) -> None:
        self.name, self.shape, self.dtype, self.place = weight.name, weight.shape, weight.dtype, weight.place
        self._weight, self._scale = weight, scale

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows ``[start, stop)``."""
        values: NDArray[np.float32] = self._weight.codes(start, stop).astype(np.float32)
        values *= self._scale.rows(start, stop)[:, np.newaxis]
        values *= np.float32(1 / 127)
        return values


class Blocks(Whole):
    """Sixteen values, by codes of 4 bits, high ones first; each block of numbers times its factor."""

    def __init__(
        self,
        weight: SafetensorsTensor,
        shape: tuple[int, ...],
        values: NDArray[np.float32],
        factors: NDArray[np.float32],
        block: int,
    ) -> None:
        super().__init__(weight.name, shape, "4 bits", weight.place)
        self._weight, self._values, self._factors, self._block = weight, values, factors.reshape(-1), block

    def dequantise(self) -> NDArray[np.float32]:
        """All of it."""
        codes = self._weight.codes().view(np.uint8).reshape(-1)
        size = math.prod(self.shape)
        whole = self._values[np.stack([codes >> 4, codes & 15], axis=1).reshape(-1)[:size]]
        whole *= np.repeat(self._factors, self._block)[:size]
        return whole.reshape(self.shape)
