"""FP8 weights (E4M3) with an fp32 factor for each block, as transformers' ``FineGrainedFP8Config`` stores them.

Source: transformers 5.24, ``integrations/finegrained_fp8.py`` (``Fp8Dequantize``).
"""

from collections.abc import Mapping
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.base import Tensor
from paritas.checkpoint.quantisation import Quantisation
from paritas.checkpoint.safetensors import SafetensorsTensor

_WEIGHT, _SCALE, _ACTIVATION = ".weight", ".weight_scale_inv", ".activation_scale"


def fp8(given: Quantisation) -> Mapping[str, Tensor]:
    """The tensors, every weight with a factor for its blocks dequantised.

    What activations were to be quantised by is left out: the dequantised model has no quantised activations.
    """
    given.must_be(["activation_scheme"], "dynamic", "static", None)
    given.must_be(["scale_fmt"], "float", None)
    given.must_be(["expert_dtype"], "fp8", None)
    given.must_be(["fmt", "format"], "e4m3", None)
    given.ignore("modules_to_not_convert", "modules_to_convert", "ignored_layers", "dequantize")
    block = _block(given)
    made: dict[str, Tensor] = {}
    consumed = [name for name in given.tensors if name.endswith(_ACTIVATION)]
    for module, found in given.groups(_SCALE, _WEIGHT):
        weight, scale = found[_WEIGHT], found[_SCALE]
        blocks = (1, 1) if block is None else tuple(-(-n // b) for n, b in zip(weight.shape, block, strict=True))
        if block is None:
            given.check(scale, scale.shape if scale.size == 1 else (1, 1))
        else:
            given.check(scale, blocks)
        made[module + _WEIGHT] = BlockScaled(weight, scale, block or weight.shape)
        consumed.append(scale.name)
    return given.replaced(made, consumed)


def _block(given: Quantisation) -> tuple[int, int] | None:
    """Rows and columns of a block; None if a weight has one factor."""
    value: Any = given.values.get("weight_block_size", [128, 128])
    given.ignore("weight_block_size")
    if value is None:
        return None
    sizes = cast(list[Any], value) if isinstance(value, list) else []
    if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise given.unsupported(f"weight_block_size is {value!r}", ["two numbers"])
    return sizes[0], sizes[1]


class BlockScaled(Tensor):
    """E4M3 values [outputs, inputs], each times the factor of its block."""

    def __init__(self, weight: SafetensorsTensor, scale: SafetensorsTensor, block: tuple[int, ...]) -> None:
        self.name, self.shape, self.dtype, self.place = weight.name, weight.shape, weight.dtype, weight.place
        self._weight, self._scale, self._block = weight, scale, block

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows ``[start, stop)``; every E4M3 value is exact in fp32, and the product is one fp32 multiplication."""
        values = self._weight.codes(start, stop).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        height, width = self._block
        factors = self._scale.rows(0, max(1, *self._scale.shape[:1], 1)).reshape(-(-self.shape[0] // height), -1)
        of_rows = factors[np.arange(start, stop) // height]
        return values * of_rows[:, np.arange(self.shape[1]) // width]
