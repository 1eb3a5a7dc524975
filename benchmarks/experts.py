"""Ways to write a mixture of experts: milliseconds for one token and for many, and how far results lie apart.

    python benchmarks/experts.py [--experts 32 --chosen 4 --hidden 1024 --width 512] [--tokens 1 16 128] [--cycles 5]

The graph is one mixture over random weights, with random scores of the router. The ways take turns; the least of their
times is shown, on one thread. What a way gives is compared with the first one's.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime

from paritas.graph.activation import gated
from paritas.graph.builder import Graph
from paritas.package.data import write_data
from paritas.package.model import write_model
from paritas.spec import Activation, Experts
from paritas.targets import mixture
from paritas.targets.base import ExpertWeights
from paritas.weights import Stack

Way = Callable[[Graph, Experts, ir.Value, ir.Value, ExpertWeights], ir.Value]


def every_expert(graph: Graph, spec: Experts, x: ir.Value, scores: ir.Value, weights: ExpertWeights) -> ir.Value:
    """All experts for all tokens, those that were not chosen times zero."""
    op, (count, width, hidden) = graph.op, weights.gate.shape
    rows = op.Reshape(x, graph.constant(np.array([-1, hidden]), "shape.rows"))
    flat = op.Reshape(scores, graph.constant(np.array([-1, count]), "shape.scores"))
    best, choice = op.TopK(flat, graph.constant(np.array([spec.chosen]), "chosen"), axis=-1, _outputs=2)
    share = op.ScatterElements(op.Mul(flat, graph.scalar(0.0, "zero")), choice, op.Softmax(best, axis=-1), axis=-1)

    def side_by_side(name: str, stack: Stack, turned: bool) -> ir.Value:
        parts = [stack.part(index).T for index in range(count)]
        whole = np.ascontiguousarray(np.concatenate(parts, axis=0 if turned else 1))
        return graph.parameter(name, Stack(whole.shape, (), lambda index: whole[index]))

    gate, up = (op.MatMul(rows, side_by_side(n, s, False)) for n, s in (("gate", weights.gate), ("up", weights.up)))
    inner = op.Reshape(gated(graph, spec.activation, gate, up), graph.constant(np.array([-1, count, width]), "apart"))
    weighed = op.Mul(inner, op.Unsqueeze(share, graph.constant(np.array([-1]), "axis.last")))
    joined = op.Reshape(weighed, graph.constant(np.array([-1, count * width]), "joined"))
    return op.Reshape(op.MatMul(joined, side_by_side("down", weights.down, True)), op.Shape(x))


WAYS: dict[str, Way] = {
    "Loop over the chosen (target onnx)": mixture.experts,
    "MoE (target ort)": mixture.fused,
    "every expert for every token": every_expert,
}


def session(folder: Path, way: Way, spec: Experts, hidden: int) -> onnxruntime.InferenceSession:
    """A graph of one mixture, loaded."""

    def stack(seed: int, *shape: int) -> Stack:
        whole = np.random.default_rng(seed).standard_normal((spec.count, *shape), np.float32) * shape[-1] ** -0.5
        return Stack(whole.shape, (), lambda index: whole[index])

    wide, tall = (spec.width, hidden), (hidden, spec.width)
    graph = Graph({}, {"": 23, "com.microsoft": 1})
    x = graph.input("x", ir.DataType.FLOAT, [1, "tokens", hidden])
    scores = graph.input("scores", ir.DataType.FLOAT, [1, "tokens", spec.count])
    y = way(graph, spec, x, scores, ExpertWeights(stack(1, *wide), stack(2, *wide), stack(3, *tall)))
    graph.output(y, "y", ir.DataType.FLOAT, [1, "tokens", hidden])
    placed, _ = write_data(folder / "model.onnx.data", graph.weights, lambda _: None)
    write_model(folder, graph, placed, {})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])


def main() -> None:
    """Print a row a way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("experts", 32), ("chosen", 4), ("hidden", 1024), ("width", 512), ("cycles", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 16, 128])
    asked = parser.parse_args()
    spec = Experts(asked.experts, asked.chosen, asked.width, Activation.SILU, normalized=True)
    with tempfile.TemporaryDirectory() as folder:
        sessions: dict[str, onnxruntime.InferenceSession] = {}
        for number, (name, way) in enumerate(WAYS.items()):
            own = Path(folder) / str(number)
            own.mkdir()
            sessions[name] = session(own, way, spec, asked.hidden)
        print(f"{'':<36}" + "".join(f"{tokens:>8} tokens" for tokens in asked.tokens) + "   differs by")
        for name, (times, apart) in measured(sessions, asked).items():
            print(f"{name:<36}" + "".join(f"{1e3 * least:>12.2f} ms" for least in times) + f"   {apart:.1e}")


def measured(
    sessions: dict[str, onnxruntime.InferenceSession], asked: argparse.Namespace
) -> dict[str, tuple[list[float], float]]:
    """Least seconds for each number of tokens, and the greatest difference from the first way."""
    least: dict[str, list[float]] = {name: [] for name in sessions}
    apart = dict.fromkeys(sessions, 0.0)
    for tokens in asked.tokens:
        random = np.random.default_rng(tokens)
        feeds = {
            "x": random.standard_normal((1, tokens, asked.hidden), np.float32),
            "scores": random.standard_normal((1, tokens, asked.experts), np.float32),
        }
        results = {name: each.run(None, feeds)[0] for name, each in sessions.items()}
        times: dict[str, list[float]] = {name: [] for name in sessions}
        for _ in range(asked.cycles):
            for name, each in sessions.items():
                start = time.perf_counter()
                each.run(None, feeds)
                times[name].append(time.perf_counter() - start)
        first = next(iter(results.values()))
        for name, result in results.items():
            least[name].append(min(times[name]))
            apart[name] = max(apart[name], float(np.abs(result - first).max()))
    return {name: (least[name], apart[name]) for name in sessions}


if __name__ == "__main__":
    main()
