"""Packages of less than fp32, made of our own exports by the tools that people use, and faults put into them."""

import json
import logging
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization import matmul_nbits_quantizer as nbits
from onnxruntime.transformers.float16 import convert_float_to_float16

logging.getLogger("onnxruntime.quantization.matmul_nbits_quantizer").setLevel(logging.ERROR)

Change = Callable[[onnx.ModelProto], None]
FP32 = {"DefaultTensorType": TensorProto.FLOAT}


def rounded(source: Path, out: Path, how: Change, *faults: Change) -> Path:
    """The package ``source`` as ``how`` rounds it, then with faults; beside it what its runtime needs."""
    model = onnx.load(source / "model.onnx")
    how(model)
    for fault in faults:
        fault(model)
    out.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and not file.name.startswith("model.onnx"):
            shutil.copy(file, out)
    onnx.save(model, out / "model.onnx", save_as_external_data=True, location="model.onnx.data")
    return out


def blocks(bits: int, block: int, *, symmetric: bool, level: int = 4, table: bool = False, qdq: bool = False) -> Change:
    """MatMulNBits by ONNX Runtime; with ``table`` GatherBlockQuantized too, with ``qdq`` DequantizeLinear instead."""
    config = nbits.DefaultWeightOnlyQuantConfig(
        block_size=block,
        is_symmetric=symmetric,
        bits=bits,
        accuracy_level=level,
        quant_format=nbits.QuantFormat.QDQ if qdq else nbits.QuantFormat.QOperator,
        op_types_to_quantize=("MatMul", "Gather") if table else ("MatMul",),
        quant_axes=(("MatMul", 0), ("Gather", 1)) if table else None,
    )
    return _by(config)


def half_quadratic(model: onnx.ModelProto) -> None:
    """Zero points that are no integers."""
    _by(nbits.HQQWeightOnlyQuantConfig(block_size=32))(model)


def searched(model: onnx.ModelProto) -> None:
    """Scales found by a search, as llama.cpp does."""
    _by(nbits.KQuantWeightOnlyQuantConfig(), block_size=32)(model)


def _by(config: Any, **options: Any) -> Change:
    def change(model: onnx.ModelProto) -> None:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        quantizer = nbits.MatMulNBitsQuantizer(copy, algo_config=config, **options)
        with warnings.catch_warnings(action="ignore"):  # of torch, about what ONNX Runtime hands it
            quantizer.process()
        model.CopyFrom(quantizer.model.model)

    return change


def dynamic(model: onnx.ModelProto) -> None:
    """MatMulInteger, as optimum and transformers.js have it."""
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, f"{folder}/whole.onnx")
        logging.disable(logging.WARNING)  # it recommends preprocessing
        quantize_dynamic(
            f"{folder}/whole.onnx", f"{folder}/dynamic.onnx", weight_type=QuantType.QInt8, extra_options=FP32
        )
        logging.disable(logging.NOTSET)
        model.CopyFrom(onnx.load(f"{folder}/dynamic.onnx"))


def half(*kept: str, io: bool = False) -> Change:
    """fp16 throughout, but for the operators ``kept``."""

    def change(model: onnx.ModelProto) -> None:
        converted = convert_float_to_float16(
            model, keep_io_types=io, op_block_list=list(kept), disable_shape_infer=True
        )
        model.CopyFrom(converted)

    return change


def half_table(model: onnx.ModelProto) -> None:
    """The embedding in fp16, of which the head keeps its own copy in fp32."""
    (gather,) = (node for node in model.graph.node if node.op_type == "Gather" and "embed_tokens" in node.input[0])
    (table,) = stored(model, f"^{re.escape(gather.input[0])}$")
    values = numpy_helper.to_array(table).astype(np.float16)
    model.graph.initializer.append(numpy_helper.from_array(values, "table.fp16"))
    place, output = list(model.graph.node).index(gather), gather.output[0]
    gather.input[0], gather.output[0] = "table.fp16", "rows.fp16"
    cast = onnx.helper.make_node("Cast", ["rows.fp16"], [output], to=TensorProto.FLOAT)
    model.graph.node.insert(place + 1, cast)


def brain(*kept: str) -> Change:
    """The same in bf16."""

    def change(model: onnx.ModelProto) -> None:
        values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
        half(*kept)(model)
        for tensor in model.graph.initializer:
            if tensor.data_type == TensorProto.FLOAT16:
                tensor.CopyFrom(numpy_helper.from_array(values[tensor.name].astype(ml_dtypes.bfloat16), tensor.name))
        for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
                value.type.tensor_type.elem_type = TensorProto.BFLOAT16
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "to" and attribute.i == TensorProto.FLOAT16:
                    attribute.i = TensorProto.BFLOAT16
                if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT16:
                    wide = numpy_helper.to_array(attribute.t).astype(ml_dtypes.bfloat16)
                    attribute.t.CopyFrom(numpy_helper.from_array(wide, attribute.t.name))

    return change


def both(*changes: Change) -> Change:
    """One after the other."""

    def change(model: onnx.ModelProto) -> None:
        for each in changes:
            each(model)

    return change


# Faults.


def stored(model: onnx.ModelProto, pattern: str) -> list[onnx.TensorProto]:
    """Initializers whose name matches; there must be some."""
    found = [tensor for tensor in model.graph.initializer if re.search(pattern, tensor.name)]
    assert found, [tensor.name for tensor in model.graph.initializer]
    return found


def changed(pattern: str, change: Callable[[NDArray[Any]], Any], *, only: int | None = None) -> Change:
    """Values of every initializer that matches, or of the one in place ``only``; its dtype is kept."""

    def fault(model: onnx.ModelProto) -> None:
        for tensor in stored(model, pattern) if only is None else stored(model, pattern)[only : only + 1]:
            before = numpy_helper.to_array(tensor)
            after = np.asarray(change(before.copy())).astype(before.dtype)
            assert after.shape == before.shape
            assert (after != before).any(), tensor.name
            tensor.CopyFrom(numpy_helper.from_array(after, tensor.name))

    return fault


def swapped(one: str, other: str) -> Change:
    """What the two names stand for, initializer by initializer that begins so."""

    def fault(model: onnx.ModelProto) -> None:
        names = {t.name: t for t in model.graph.initializer}
        pairs = [(name, name.replace(one, other)) for name in names if one in name]
        assert pairs
        assert all(second in names for _, second in pairs), (one, other)
        for first, second in pairs:
            names[first].name, names[second].name = second, first

    return fault


def times(factor: float) -> Callable[[NDArray[Any]], Any]:
    return lambda values: values.astype(np.float32) * factor


def one_block(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Integers ``[rows, blocks, bytes]`` with one block's in another order."""
    values[2, 1] = values[2, 1][::-1].copy()
    return values


def add_one_to_a_zero_point(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    flat = values.reshape(-1)
    flat[3] = flat[3] + 1 if flat[3] % 16 < 15 else flat[3] - 1
    return values


def add_one_to_zero_points(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    low, high = values & 15, values >> 4
    return np.where(low < 15, low + 1, low) | (np.where(high < 15, high + 1, high) << 4)


def compensated(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Integers ``[rows, blocks, bytes]`` moved to a neighbour now and then, up as often as down, as GPTQ does."""
    random = np.random.default_rng(2)
    low, high = values & 15, values >> 4
    for half_byte in (low, high):
        half_byte += random.choice([0, 0, 0, 1, 255], half_byte.shape).astype(np.uint8)
    return np.clip(low.view(np.int8), 0, 15).astype(np.uint8) | np.clip(high.view(np.int8), 0, 15).astype(np.uint8) << 4


def other_integers(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.random.default_rng(3).integers(0, 256, values.shape, np.uint8)


def to_bf16(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def noise(values: NDArray[Any]) -> NDArray[Any]:
    return np.random.default_rng(1).normal(0, 0.1, values.shape)


def zero_row(values: NDArray[Any]) -> NDArray[Any]:
    values[-6] = 0
    return values


def checkpoint_with(folder: Path, out: Path, **changes: Any) -> Path:
    """A checkpoint with other values in its config.json: what an exporter that misreads it would have read."""
    shutil.copytree(folder, out)
    config = json.loads((out / "config.json").read_text())
    for key, value in changes.items():
        config[key] = value(config[key]) if callable(value) else value
    (out / "config.json").write_text(json.dumps(config))
    return out
