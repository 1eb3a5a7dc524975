"""How much room a cache that keeps to its window should have: what a decoding step of attention takes, by room.

    python benchmarks/window_cache.py [--window 512] [--heads 4] [--kv-heads 1] [--head-dim 256]

One layer of GroupQueryAttention, one thread, processor time, its cache in place, over steps that fill and empty the
room at least once. Each row twice, the second time in the other order. `full` holds all tokens, two windows and more.
"""

import argparse
import importlib
import time
from typing import Any

import numpy as np
import onnx

ort: Any = importlib.import_module("onnxruntime")
LEAST = 300  # steps


def graph(window: int, heads: int, kv_heads: int, head_dim: int, windowed: bool) -> bytes:
    """The layer alone."""
    text = f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    layer (float[1, n, {heads * head_dim}] q,
           float[1, n, {kv_heads * head_dim}] k, float[1, n, {kv_heads * head_dim}] v,
           float[1, {kv_heads}, c, {head_dim}] past_k, float[1, {kv_heads}, c, {head_dim}] past_v,
           int32[1] last, int32 total)
        => (float[1, n, {heads * head_dim}] out, float[1, {kv_heads}, c, {head_dim}] present_k,
            float[1, {kv_heads}, c, {head_dim}] present_v) {{
        out, present_k, present_v = com.microsoft.GroupQueryAttention<num_heads = {heads}, kv_num_heads = {kv_heads},
            local_window_size = {window}, sliding_window_cache = {int(windowed)}>(q, k, v, past_k, past_v, last, total)
    }}"""
    return onnx.parser.parse_model(text).SerializeToString()


def step_time(given: argparse.Namespace, room: int, windowed: bool, steps: int) -> float:
    """Microseconds that a step takes in the mean, after two windows."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    sizes = given.window, given.heads, given.kv_heads, given.head_dim
    session = ort.InferenceSession(graph(*sizes, windowed), options, providers=["CPUExecutionProvider"])
    random, binding = np.random.default_rng(0), session.io_binding()

    def numbers(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32)

    binding.bind_cpu_input("q", numbers(1, 1, given.heads * given.head_dim))
    for half in "kv":
        binding.bind_cpu_input(half, numbers(1, 1, given.kv_heads * given.head_dim))
        cache = ort.OrtValue.ortvalue_from_numpy(numbers(1, given.kv_heads, room, given.head_dim))
        binding.bind_ortvalue_input(f"past_{half}", cache)
        binding.bind_ortvalue_output(f"present_{half}", cache)
    binding.bind_output("out")
    taken: list[float] = []
    for length in range(2 * given.window, 2 * given.window + steps):
        binding.bind_cpu_input("last", np.array([length], np.int32))
        binding.bind_cpu_input("total", np.array(length + 1, np.int32))
        start = time.process_time()
        session.run_with_iobinding(binding)
        taken.append(time.process_time() - start)
    return float(np.mean(taken)) * 1e6


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("window", 512), ("heads", 4), ("kv-heads", 1), ("head-dim", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    rows = [(f"window + {slack}", given.window + slack, True) for slack in (0, 16, 64, 128, given.window)]
    rows.append(("full", 2 * given.window + LEAST, False))
    found: dict[str, list[float]] = {}
    for order in (rows, rows[::-1]):
        for name, room, windowed in order:
            steps = max(LEAST, 2 * (room - given.window + 1)) if windowed else LEAST
            found.setdefault(name, []).append(step_time(given, room, windowed, steps))
    for name, taken in found.items():
        print(f"{name:<14} " + "  ".join(f"{each:7.0f} us" for each in taken))


if __name__ == "__main__":
    main()
