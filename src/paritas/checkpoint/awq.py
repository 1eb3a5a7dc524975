"""AWQ in the layout of its GEMM kernel: 4 bits along the outputs, eight of them to an int32 in an order of their own.

Source: AutoAWQ, ``utils/packing_utils.py``: weight = scale * (code - zero).
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.base import Tensor
from paritas.checkpoint.gptq import CODES, IGNORED, SCALES, ZEROS
from paritas.checkpoint.quantisation import Quantisation, Whole, unpacked
from paritas.checkpoint.safetensors import SafetensorsTensor

_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Where in an int32 each of eight outputs in turn lies: even ones in the low half, odd ones in the high half."""


def awq(given: Quantisation) -> Mapping[str, Tensor]:
    """The tensors, every module with packed integers dequantised.

    Raises:
        Unsupported: ``quantisation-unsupported``: another layout than GEMM's, other bits, no zero points.
        ParitasError: ``quantisation-tensor``.
    """
    given.must_be(["version", "format", "checkpoint_format"], "gemm", None)
    given.integer("bits", 4, allowed=(4,))
    given.must_be(["zero_point"], True, None)
    given.ignore(*IGNORED, "do_fuse", "fuse_max_seq_len", "modules_to_fuse")
    size = given.optional("group_size", "q_group_size")
    made: dict[str, Tensor] = {}
    consumed: list[str] = []
    for module, found in given.groups(CODES, ZEROS, SCALES):
        inputs, outputs = found[CODES].shape[0], found[CODES].shape[1] * 8
        count = 1 if size == -1 else found[SCALES].shape[0]
        if size is not None and size != -1 and inputs != count * size:
            raise given.wrong(f"{module} has {count} groups of {inputs} inputs, and group_size is {size!r}")
        given.check(found[SCALES], (count, outputs))
        given.check(found[ZEROS], (count, outputs // 8))
        made[f"{module}.weight"] = Gemm(module, found[CODES], found[ZEROS], found[SCALES])
        consumed += [each.name for each in found.values()]
    return given.replaced(made, consumed)


class Gemm(Whole):
    """scale * (code - zero), [outputs, inputs]; stored the other way round."""

    def __init__(
        self, module: str, codes: SafetensorsTensor, zeros: SafetensorsTensor, scales: SafetensorsTensor
    ) -> None:
        inputs, packed = codes.shape
        super().__init__(f"{module}.weight", (packed * 8, inputs), "INT4", codes.place)
        self._codes, self._zeros, self._scales = codes, zeros, scales

    def dequantise(self) -> NDArray[np.float32]:
        """All of it: the difference is exact, the product one fp32 multiplication."""
        width = self.shape[1] // self._scales.shape[0]
        weight = _in_order(self._codes).astype(np.float32)
        groups = weight.reshape(-1, width, self.shape[0])
        groups -= _in_order(self._zeros).astype(np.float32)[:, np.newaxis]
        groups *= self._scales.read()[:, np.newaxis]
        return np.ascontiguousarray(weight.T)


def _in_order(tensor: SafetensorsTensor) -> NDArray[np.uint8]:
    codes = unpacked(tensor.codes(), 4, axis=1)
    return codes.reshape(len(codes), -1, 8)[:, :, _PLACES].reshape(codes.shape)
