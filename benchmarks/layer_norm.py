"""Norms of a sum in ONNX Runtime: how exact each way to write them is, and how long it takes.

    python benchmarks/layer_norm.py

Prints, by mean of the input in deviations, the greatest error against fp64 of torch's kernel and of each graph, as the
runtime fuses it; then microseconds a call for one token.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

WIDTH, EPS, ROWS, CALLS = 3072, 1e-5, 8, 2000
NORM = {"axis": -1, "epsilon": EPS}
SUM = ("Add", ["x", "d"], "s", {})
CENTRED = (SUM, ("ReduceMean", ["s", "last"], "mean", {"keepdims": 1}), ("Sub", ["s", "mean"], "c", {}))
Nodes = tuple[tuple[str, list[str], str, dict[str, Any]], ...]
LAYER: Mapping[str, Nodes] = {
    "LayerNorm of the sum": (SUM, ("LayerNormalization", ["s", "w", "b"], "y", NORM)),
    "LayerNorm, mean taken out": (*CENTRED, ("LayerNormalization", ["c", "w", "b"], "y", NORM)),
}
RMS: Mapping[str, Nodes] = {
    "SkipSimplifiedLayerNorm": (
        ("SkipSimplifiedLayerNormalization", ["x", "d", "w"], "y", {"epsilon": EPS, "domain": "com.microsoft"}),
    ),
    "SimplifiedLayerNorm of the sum": (SUM, ("SimplifiedLayerNormalization", ["s", "w"], "y", NORM)),
}


def _session(nodes: Nodes) -> Any:
    made = [helper.make_node(kind, inputs, [out], **attributes) for kind, inputs, out, attributes in nodes]
    shapes = {"x": ["batch", "sequence", WIDTH], "d": ["batch", "sequence", WIDTH], "w": [WIDTH], "b": [WIDTH]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "sequence", WIDTH])
    last = [helper.make_tensor("last", TensorProto.INT64, [1], [-1])] if nodes[0] is CENTRED[0] else []
    graph = helper.make_graph(made, "norm", inputs, [output], last)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    options = ort.SessionOptions()
    options.log_severity_level = 3
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _layer(s: Any, w: Any, b: Any) -> Any:
    centred = s - s.mean(-1, keepdims=True)
    return centred / ((centred**2).mean(-1, keepdims=True) + EPS) ** 0.5 * w + b


def _rms(s: Any, w: Any, b: Any) -> Any:
    return s / ((s**2).mean(-1, keepdims=True) + EPS) ** 0.5 * w


def _layer_torch(s: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(s, (WIDTH,), w, b, EPS)


def _rms_torch(s: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + EPS) * w


def _table(ways: Mapping[str, Nodes], right: Any, theirs: Any) -> None:
    random = np.random.default_rng(0)
    sessions = {way: _session(nodes) for way, nodes in ways.items()}
    feeds: dict[str, NDArray[np.float32]] = {
        "d": random.normal(size=(1, ROWS, WIDTH)).astype(np.float32),
        "w": (1 + 0.3 * random.normal(size=WIDTH)).astype(np.float32),
        "b": (0.3 * random.normal(size=WIDTH)).astype(np.float32),
    }
    print(f"\n{'mean':>6} {'torch':>10} " + " ".join(f"{way:>30}" for way in ways))
    for mean in (0, 1, 10, 100, 1000):
        feeds["x"] = (random.normal(size=(1, ROWS, WIDTH)) + mean).astype(np.float32)
        total = feeds["x"] + feeds["d"]
        exact = right(*(each.astype(np.float64) for each in (total, feeds["w"], feeds["b"])))
        found = [theirs(*(torch.tensor(each) for each in (total, feeds["w"], feeds["b"]))).numpy()]
        found += [session.run(None, feeds)[0] for session in sessions.values()]
        errors = [np.abs(each - exact).max() for each in found]
        print(f"{mean:>6} {errors[0]:10.1e} " + " ".join(f"{error:30.1e}" for error in errors[1:]))
    one = {**feeds, "x": feeds["x"][:, :1], "d": feeds["d"][:, :1]}
    for way, session in sessions.items():
        start = time.perf_counter()
        for _ in range(CALLS):
            session.run(None, one)
        print(f"{way}: {(time.perf_counter() - start) / CALLS * 1e6:.1f} us")


if __name__ == "__main__":
    _table(LAYER, _layer, _layer_torch)
    _table(RMS, _rms, _rms_torch)
