"""MXFP4 experts of gpt-oss: blocks of 32 E2M1 values with one power of two.

Source: OCP Microscaling Formats v1.0; transformers 5.24, ``integrations/mxfp4.py`` (``convert_moe_packed_tensors``).
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.base import Tensor
from paritas.checkpoint.quantisation import Quantisation
from paritas.checkpoint.safetensors import SafetensorsTensor

_BLOCKS, _SCALES = "_blocks", "_scales"
_BYTES = 16  # of a block: two values each
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_VALUES = np.concatenate([_E2M1, -_E2M1])


def mxfp4(given: Quantisation) -> Mapping[str, Tensor]:
    """The tensors, the experts dequantised."""
    given.ignore("modules_to_not_convert", "dequantize")
    made: dict[str, Tensor] = {}
    consumed: list[str] = []
    for name, found in given.groups(_BLOCKS, _SCALES):
        blocks, scales = found[_BLOCKS], found[_SCALES]
        if len(blocks.shape) != 4 or blocks.shape[3] != _BYTES:
            raise given.wrong(
                f"{blocks.name} is {list(blocks.shape)}, and should be experts of rows of blocks of 16 bytes"
            )
        given.check(scales, blocks.shape[:3])
        made[name] = Experts(name, blocks, scales)
        consumed += [blocks.name, scales.name]
    return given.replaced(made, consumed)


class Experts(Tensor):
    """A matrix for each expert, [experts, inputs, outputs], stored as [experts, outputs, blocks of inputs]."""

    def __init__(self, name: str, blocks: SafetensorsTensor, scales: SafetensorsTensor) -> None:
        experts, outputs, count, _ = blocks.shape
        self.name, self.shape, self.dtype, self.place = name, (experts, count * 32, outputs), "MXFP4", blocks.place
        self._blocks, self._scales = blocks, scales

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Experts ``[start, stop)``: value times two to the power of its block's, both exact in fp32."""
        codes = self._blocks.codes(start, stop)
        values = np.empty((*codes.shape[:3], 32), np.float32)
        values[..., 0::2], values[..., 1::2] = _VALUES[codes & 15], _VALUES[codes >> 4]
        exponents = self._scales.codes(start, stop).astype(np.int32) - 127
        whole = np.ldexp(values, exponents[..., np.newaxis])
        return whole.reshape(len(codes), self.shape[2], self.shape[1]).transpose(0, 2, 1)
