"""Ways to write a tied head with one table: load time, memory and speed of each, as ratios in one run.

    python benchmarks/head.py [--vocab 262144 --hidden 640] [--cycles 5]

Every measurement is a fresh process; the ways are cycled, the order reversed each time; the median of the ratios to the
first way is shown. The graph is an embedding lookup and a head over one shared random table, nothing else.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

WAYS = {
    "FusedMatMul transB (target ort)": [
        ("Gather", ["table", "ids"], ["x"], {}),
        ("FusedMatMul", ["x", "table"], ["logits"], {"transB": 1, "domain": "com.microsoft"}),
    ],
    "Gemm transB (target onnx)": [
        ("Gather", ["table", "ids"], ["x"], {}),
        ("Reshape", ["x", "rows"], ["flat"], {}),
        ("Gemm", ["flat", "table"], ["scores"], {"transB": 1}),
        ("Reshape", ["scores", "back"], ["logits"], {}),
    ],
    "MatMul of Transpose": [
        ("Gather", ["table", "ids"], ["x"], {}),
        ("Transpose", ["table"], ["turned"], {"perm": [1, 0]}),
        ("MatMul", ["x", "turned"], ["logits"], {}),
    ],
}


def write(folder: Path, way: str, vocab: int, hidden: int) -> Path:
    """One graph, its table in an external file."""
    nodes = [helper.make_node(op, i, o, **attributes) for op, i, o, attributes in WAYS[way]]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "n"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "n", vocab])
    table = np.random.default_rng(0).standard_normal((vocab, hidden), dtype=np.float32)
    initializers = [
        onnx.numpy_helper.from_array(table, "table"),
        onnx.numpy_helper.from_array(np.array([-1, hidden]), "rows"),
        onnx.numpy_helper.from_array(np.array([1, -1, vocab]), "back"),
    ]
    graph = helper.make_graph(nodes, "head", [ids], [logits], initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    path = folder / f"{list(WAYS).index(way)}.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location=path.name + ".data")
    return path


def measure(path: str) -> dict[str, float]:
    """In this process: load, memory after it, one token, 128 tokens."""
    import onnxruntime
    import psutil

    before = psutil.Process().memory_info().rss
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    loaded = time.perf_counter() - start
    memory = psutil.Process().memory_info().rss - before

    def run(tokens: int, times: int) -> float:
        ids = np.arange(tokens, dtype=np.int64)[None]
        taken = []
        for _ in range(times):
            start = time.perf_counter()
            session.run(None, {"ids": ids})
            taken.append(time.perf_counter() - start)
        return sorted(taken)[len(taken) // 10]

    return {"load": loaded, "memory": memory, "one token": run(1, 20), "128 tokens": run(128, 4)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=262_144)
    parser.add_argument("--hidden", type=int, default=640)
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        paths = {way: write(Path(folder), way, arguments.vocab, arguments.hidden) for way in WAYS}
        for cycle in range(arguments.cycles):
            for way in list(WAYS)[:: -1 if cycle % 2 else 1]:
                out = subprocess.run(
                    [sys.executable, __file__, "--measure", str(paths[way])], capture_output=True, text=True, check=True
                )
                results[way].append(json.loads(out.stdout))
    base = next(iter(WAYS))
    print(f"table {arguments.vocab} x {arguments.hidden}, {arguments.cycles} cycles; median ratio to '{base}' (median)")
    for way, runs in results.items():
        cells = []
        for key in runs[0]:
            ratio = statistics.median(run[key] / first[key] for run, first in zip(runs, results[base], strict=True))
            absolute = statistics.median(run[key] for run in runs)
            shown = f"{absolute / 2**20:.0f} MiB" if key == "memory" else f"{absolute * 1e3:.1f} ms"
            cells.append(f"{key} {ratio:.2f} ({shown})")
        print(f"{way:34s} {'  '.join(cells)}")


if __name__ == "__main__":
    main()
