"""compressed-tensors: packed integers of 4 or 8 bits, integers of 8, or FP8; a scale for a weight, row, group or block.

Source: compressed-tensors 0.20, ``compressors/{pack,naive}_quantized`` and ``quantization/lifecycle/forward.py``:
weight = scale * (code - zero).
"""

from collections.abc import Mapping
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.base import Tensor
from paritas.checkpoint.quantisation import Quantisation, stored, unpacked
from paritas.checkpoint.safetensors import SafetensorsTensor

_PACKED, _PLAIN, _SCALE = ".weight_packed", ".weight", ".weight_scale"
_SHAPE, _ZERO, _ORDER = ".weight_shape", ".weight_zero_point", ".weight_g_idx"
_OF_ACTIVATIONS = (".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point")
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")


def compressed_tensors(given: Quantisation) -> Mapping[str, Tensor]:
    """The tensors, every weight with a scale dequantised.

    What activations were to be quantised by is left out: the dequantised model has no quantised activations.

    Raises:
        Unsupported: ``quantisation-unsupported``: another format, rotated weights, sparse ones, a quantised cache.
        ParitasError: ``quantisation-tensor``.
    """
    given.must_be(["format"], *_FORMATS)
    given.must_be(["quantization_status"], "compressed", None)
    for key in ("kv_cache_scheme", "transform_config", "sparsity_config"):
        given.must_be([key], None, {}, {"format": "dense"})
    given.ignore("ignore", "global_compression_ratio", "version")
    block = _block(given)
    made: dict[str, Tensor] = {}
    consumed = [name for name in given.tensors if name.endswith(_OF_ACTIVATIONS)]
    for module, found in given.groups(_SCALE):
        parts = {part: given.tensors.get(module + part) for part in (_PACKED, _PLAIN, _SHAPE, _ZERO, _ORDER)}
        there = {part: stored(tensor) for part, tensor in parts.items() if tensor is not None}
        codes = _codes(given, module, there)
        made[module + _PLAIN] = Scaled(module, codes, _Grid(given, codes, found[_SCALE], there, block))
        consumed += [found[_SCALE].name, *(tensor.name for tensor in there.values())]
    return given.replaced(made, consumed)


def _block(given: Quantisation) -> tuple[int, int] | None:
    """Rows and columns of a block, where the groups of the configuration name one; all of them the same."""
    schemes = cast(dict[str, dict[str, Any]], given.optional("config_groups") or {})
    found: set[tuple[int, int]] = set()
    for scheme in schemes.values():
        if scheme.get("format") not in (None, *_FORMATS):
            raise given.unsupported(f"format is {scheme['format']!r}", _FORMATS)
        weights: dict[str, Any] = scheme.get("weights") or {}
        structure: list[int] = weights.get("block_structure") or []
        if len(structure) == 2:
            found.add((structure[0], structure[1]))
    if len(found) > 1:
        raise given.unsupported(f"blocks of {len(found)} sizes")
    return next(iter(found), None)


class _Codes:
    """Integers or E4M3 values [outputs, inputs], as they are stored."""

    def __init__(self, tensor: SafetensorsTensor, shape: tuple[int, ...], bits: int | None) -> None:
        self.tensor, self.shape, self._bits = tensor, shape, bits

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Exact in fp32; packed ones are counted from the middle of their range."""
        codes = self.tensor.codes(start, stop)
        if self._bits is not None:
            return self.centred(codes, axis=1)[:, : self.shape[1]]
        return (codes.view(ml_dtypes.float8_e4m3fn) if self.tensor.dtype == "F8_E4M3" else codes).astype(np.float32)

    def centred(self, codes: NDArray[np.int32], axis: int) -> NDArray[np.float32]:
        """Packed integers, the middle of their range at 0."""
        if self._bits is None:
            return codes.astype(np.float32)
        return unpacked(codes, self._bits, axis).astype(np.float32) - (1 << (self._bits - 1))


def _codes(given: Quantisation, module: str, there: Mapping[str, SafetensorsTensor]) -> _Codes:
    if _PACKED not in there:
        if _PLAIN not in there:
            raise given.wrong(f"{module}{_SCALE} has no {module}{_PLAIN} beside it")
        return _Codes(there[_PLAIN], there[_PLAIN].shape, None)
    if _SHAPE not in there:
        raise given.wrong(f"{module}{_PACKED} has no {module}{_SHAPE} beside it")
    packed, shape = there[_PACKED], tuple(int(size) for size in there[_SHAPE].codes())
    bits = next((bits for bits in (4, 8) if packed.shape == (shape[0], -(-shape[1] * bits // 32))), None)
    if bits is None:
        raise given.unsupported(f"{packed.name} is {list(packed.shape)} for {list(shape)}", ["4 bits", "8 bits"])
    return _Codes(packed, shape, bits)


class _Grid:
    """The scale of each number of some rows, and its zero."""

    def __init__(
        self,
        given: Quantisation,
        codes: _Codes,
        scale: SafetensorsTensor,
        there: Mapping[str, SafetensorsTensor],
        block: tuple[int, int] | None,
    ) -> None:
        outputs, inputs = codes.shape
        rows, columns = scale.shape if len(scale.shape) == 2 else (1, 1)
        self._height = 1 if rows == outputs else outputs if rows == 1 else (block or (0, 0))[0]
        width = inputs if columns == 1 else block[1] if block and rows != outputs else -(-inputs // columns)
        if not self._height or (rows, columns) != (-(-outputs // self._height), -(-inputs // width)):
            raise given.wrong(f"{scale.name} is {list(scale.shape)} for a weight of {list(codes.shape)}")
        self._scales = scale.rows(0, max(1, *scale.shape[:1], 1)).reshape(rows, columns)
        self._zeros = self._read_zeros(given, codes, there.get(_ZERO))
        self._of_input = np.arange(inputs) // width
        if order := there.get(_ORDER):
            given.check(order, (inputs,))
            self._of_input = order.codes().astype(np.intp)
            if self._of_input.min() < 0 or self._of_input.max() >= columns:
                raise given.wrong(f"{order.name} names group {self._of_input.max()}, and there are {columns}")

    def _read_zeros(
        self, given: Quantisation, codes: _Codes, tensor: SafetensorsTensor | None
    ) -> NDArray[np.float32] | None:
        if tensor is None:
            return None
        zeros = codes.centred(tensor.codes(), axis=0)[: len(self._scales)]
        if zeros.size != self._scales.size:
            raise given.wrong(f"{tensor.name} is {list(tensor.shape)} for scales of {list(self._scales.shape)}")
        return zeros.reshape(self._scales.shape)

    def applied(self, values: NDArray[np.float32], start: int, stop: int) -> NDArray[np.float32]:
        """The difference is exact, the product one fp32 multiplication."""
        of_row = np.arange(start, stop) // self._height
        if self._zeros is not None:
            values = values - self._zeros[of_row][:, self._of_input]
        return values * self._scales[of_row][:, self._of_input]


class Scaled(Tensor):
    """scale * (code - zero), [outputs, inputs]."""

    def __init__(self, module: str, codes: _Codes, grid: _Grid) -> None:
        self.name, self.shape = module + _PLAIN, codes.shape
        self.dtype, self.place = codes.tensor.dtype, codes.tensor.place
        self._codes, self._grid = codes, grid

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows ``[start, stop)``."""
        return self._grid.applied(self._codes.rows(start, stop), start, stop)
