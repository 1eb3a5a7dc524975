"""GPTQ: integers of 4 or 8 bits along the inputs, a scale and a zero point for each group of inputs and each output.

Source: AutoGPTQ and GPTQModel, ``qlinear`` in torch: weight = scale * (code - zero). In the first version of the format
(``gptq``, not ``gptq_v2``) zero points are stored less 1.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.base import Tensor
from paritas.checkpoint.quantisation import Quantisation, Whole, stored, unpacked
from paritas.checkpoint.safetensors import SafetensorsTensor

CODES, ZEROS, SCALES, GROUPS = ".qweight", ".qzeros", ".scales", ".g_idx"
IGNORED = (
    *("act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_percent"),
    *("dataset", "desc_act", "disable_exllama", "exllama_config", "is_marlin_format", "lm_head", "max_input_length"),
    *("meta", "model_file_base_name", "model_name_or_path", "model_seqlen", "module_name_preceding_first_block"),
    *("modules_in_block_to_quantize", "modules_to_not_convert", "pack_dtype", "pad_token_id", "static_groups", "sym"),
    *("tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama"),
)
"""How the numbers were found, or how a library runs them: what they stand for is in the tensors."""


def gptq(given: Quantisation) -> Mapping[str, Tensor]:
    """The tensors, every module with packed integers dequantised.

    Raises:
        Unsupported: ``quantisation-unsupported``: other bits, another layout, bits that differ by module.
        ParitasError: ``quantisation-tensor``.
    """
    bits = given.integer("bits", 4, allowed=(4, 8))
    less = 0 if given.must_be(["checkpoint_format", "format"], "gptq", "gptq_v2", None) == "gptq_v2" else 1
    size = given.optional("group_size")
    given.must_be(["dynamic"], None, {})
    given.ignore(*IGNORED)
    made: dict[str, Tensor] = {}
    consumed: list[str] = []
    for module, found in given.groups(CODES, ZEROS, SCALES):
        inputs, outputs = found[CODES].shape[0] * 32 // bits, found[CODES].shape[1]
        count = found[SCALES].shape[0]
        given.check(found[SCALES], (count, outputs))
        given.check(found[ZEROS], (count, outputs * bits // 32))
        order = _order(given, module, inputs, count, size)
        zeros = unpacked(found[ZEROS].codes(), bits, axis=1).astype(np.float32) + less
        if less and zeros.max() > 2**bits - 1:  # 0 less 1: its readers make 0 or 2**bits of it
            raise given.unsupported(f"{module}{ZEROS} has zero points of 0, which the first version cannot store")
        made[f"{module}.weight"] = Grouped(module, found[CODES], found[SCALES], zeros, order, bits)
        consumed += [each.name for each in found.values()] + [module + GROUPS]
    return given.replaced(made, consumed)


def _order(given: Quantisation, module: str, inputs: int, count: int, size: object) -> NDArray[np.intp]:
    """The group of each input: stored (``g_idx``, which ``desc_act`` mixes), or ``group_size`` inputs after another."""
    if tensor := given.tensors.get(module + GROUPS):
        given.check(tensor, (inputs,))
        order = stored(tensor).codes().astype(np.intp)
        if order.min() < 0 or order.max() >= count:
            raise given.wrong(f"{tensor.name} names group {order.max()}, and there are {count}")
        return order
    width = inputs if size == -1 else size
    if type(width) is not int or width < 1 or -(-inputs // width) != count:
        raise given.wrong(f"{module} has {count} groups of {inputs} inputs, and group_size is {size!r}")
    return np.arange(inputs) // width


class Grouped(Whole):
    """scale * (code - zero), [outputs, inputs]; stored the other way round."""

    def __init__(
        self,
        module: str,
        codes: SafetensorsTensor,
        scales: SafetensorsTensor,
        zeros: NDArray[np.float32],
        order: NDArray[np.intp],
        bits: int,
    ) -> None:
        super().__init__(f"{module}.weight", (codes.shape[1], len(order)), f"INT{bits}", codes.place)
        self._codes, self._scales, self._zeros, self._order, self._bits = codes, scales, zeros, order, bits

    def dequantise(self) -> NDArray[np.float32]:
        """All of it: the difference is exact, the product one fp32 multiplication."""
        codes = unpacked(self._codes.codes(), self._bits, axis=0)
        weight = codes.astype(np.float32)
        weight -= self._zeros[self._order]
        weight *= self._scales.read()[self._order]
        return np.ascontiguousarray(weight.T)
