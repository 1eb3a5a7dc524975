"""Checkpoints with quantised weights: the same checkpoint, whose tensors are dequantised when they are read.

One module a format reads ``quantization_config`` and the tensors that it is about; the rest stay as they are.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

from paritas.checkpoint.awq import awq
from paritas.checkpoint.base import Checkpoint, Tensor
from paritas.checkpoint.bitsandbytes import bitsandbytes
from paritas.checkpoint.compressed_tensors import compressed_tensors
from paritas.checkpoint.fp8 import fp8
from paritas.checkpoint.gptq import gptq
from paritas.checkpoint.mxfp4 import mxfp4
from paritas.checkpoint.quantisation import Quantisation
from paritas.errors import Unsupported

KEY = "quantization_config"
_FORMATS: Mapping[str, Callable[[Quantisation], Mapping[str, Tensor]]] = {
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fp8": fp8,
    "gptq": gptq,
    "mxfp4": mxfp4,
}


def dequantised(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the weights that its quantised ones stand for; one that has none is returned as it is.

    Raises:
        Unsupported: ``quantisation-unsupported``, with the method and what to do instead.
        ParitasError: ``quantisation-value-wrong``, ``quantisation-tensor``.
    """
    config = dict(checkpoint.config)
    if config.get(KEY) is None:
        return checkpoint
    stated = config.pop(KEY)
    values = cast(dict[str, Any], stated) if isinstance(stated, dict) else {}
    method = _method(values)
    if method not in _FORMATS:
        raise Unsupported(
            "quantisation-unsupported",
            f"the weights are quantised by {method or 'a method without a name'}; read are {', '.join(_FORMATS)}",
            place=f"{checkpoint.config_place}, {KEY}",
            hint="Export the checkpoint that it was made from, or load it with the library that wrote it, dequantise "
            "(transformers: model.dequantize()) and save that.",
        )
    given = Quantisation(values, f"{checkpoint.config_place}, {KEY}", checkpoint.tensors)
    tensors = _FORMATS[method](given)
    given.account()
    return dataclasses.replace(checkpoint, config=config, tensors=tensors, quantised=method)


def _method(values: Mapping[str, Any]) -> str:
    """``quant_method``; bitsandbytes' first files have none."""
    if "quant_method" not in values and (values.get("load_in_4bit") or values.get("load_in_8bit")):
        return "bitsandbytes"
    return str(values.get("quant_method") or "").lower()
