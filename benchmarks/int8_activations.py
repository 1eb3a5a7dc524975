"""Activations of 8 bits, a scale for each token: what they cost in accuracy, and what they gain in speed.

    python benchmarks/int8_activations.py MODEL [MODEL ...] [--alpha 0.35 0.5 0.65] [--prompt 512] [--keep]

Nothing that Paritas exports: a package is exported whose embedding and head are int4 and whose other matrices are fp32,
and its graph is rewritten here. Each matrix becomes 8 bits with a scale for each output; what it is multiplied with is
rounded to 8 bits with a scale for each token, or for the whole prompt. Before that, channels are equalised as
SmoothQuant (arXiv 2211.10438) does it: input channel j of a matrix is divided by
max|x_j|^alpha / max|w_j|^(1 - alpha), which the norm, the value projection or the up projection before it absorbs, so
that the function stays the same; max|x_j| is taken from questions that are not among the measured texts.

Divergences are means in nats, from the package of fp32 with the same head of int4 and from the package of fp32; beside
them our int4 default, as shipped. Seconds are of one thread's processor, the least of several runs in alternation.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import results
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from paritas.export import export
from paritas.measuring.whole import texts
from paritas.plan import Options
from paritas.quant.recipe import recipe
from paritas.runtime.chat import ChatTokenizer
from paritas.targets import TARGETS
from paritas.verify.prompts import PROMPTS

CONTEXT = 1024
BODY = "keep32=self_attn+mlp"
ROUNDS = 5
MOST = 256  # tokens of a text
_ANY = 1 << 30  # a vocabulary that holds every token
Values = NDArray[np.float32]


class Rewritten:
    """A graph whose products with matrices of fp32 can be rewritten, and run."""

    def __init__(self, folder: Path) -> None:
        self.model = onnx.load(folder / "model.onnx")
        self.graph = self.model.graph
        self.weights = {each.name: each for each in self.graph.initializer}
        matrices = {name for name, each in self.weights.items() if len(each.dims) == 2 and ".layers." in name}
        self.products = [n for n in self.graph.node if n.op_type == "MatMul" and n.input[1] in matrices]

    def value(self, name: str) -> Values:
        """Of an initializer."""
        return np.array(numpy_helper.to_array(self.weights[name]))

    def put(self, name: str, value: NDArray[Any]) -> None:
        """Replace an initializer, or add one."""
        if name not in self.weights:
            self.weights[name] = self.graph.initializer.add()
        self.weights[name].CopyFrom(numpy_helper.from_array(value, name))

    def insert(self, before: onnx.NodeProto, nodes: Sequence[onnx.NodeProto]) -> None:
        """Put nodes before another."""
        at = next(index for index, node in enumerate(self.graph.node) if node is before)
        for node in reversed(nodes):
            self.graph.node.insert(at, node)

    def session(self, extra: Sequence[str] = ()) -> Any:
        """One thread; ``extra`` values become outputs."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for name in extra:
            model.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        return opened(model.SerializeToString())


def opened(model: bytes | str) -> Any:
    """A session of one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def feeds(session: Any, ids: Sequence[int], past: int = 0, rows: int = 1) -> dict[str, Any]:
    """Of a call with ``past`` tokens in caches of zeros, which asks for the logits of ``rows`` positions (0: all)."""
    given: dict[str, Any] = {
        "input_ids": np.array([ids], np.int64),
        "attention_mask": np.ones((1, past + len(ids)), np.int64),
        "num_logits_to_keep": np.array(rows, np.int64),
    }
    for value in session.get_inputs():
        if value.name not in given:
            sizes = [1, *value.shape[1:]]
            given[value.name] = np.zeros([n if isinstance(n, int) else past for n in sizes], np.float32)
    return given


def logits(session: Any, ids: Sequence[int]) -> Values:
    """Log-probabilities of all positions."""
    (got,) = session.run(["logits"], feeds(session, ids, rows=0))
    shifted = got[0] - got[0].max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def divergence(exact: Sequence[Values], other: Sequence[Values]) -> float:
    """Mean KL over all positions."""
    terms = [(np.exp(a) * (a - b)).sum(axis=1, dtype=np.float64) for a, b in zip(exact, other, strict=True)]
    return float(np.concatenate(terms).mean())


def largest(given: Rewritten, prompts: Sequence[Sequence[int]]) -> dict[str, Values]:
    """What products take -> max|x_j| of every channel over the prompts."""
    names = list(dict.fromkeys(node.input[0] for node in given.products))
    session, found = given.session(names), dict[str, Values]()
    for ids in prompts:
        for name, got in zip(names, session.run(names, feeds(session, ids)), strict=True):
            top = np.abs(got).reshape(-1, got.shape[-1]).max(axis=0)
            found[name] = np.maximum(found[name], top) if name in found else top
    return found


def equalise(given: Rewritten, tops: Mapping[str, Values], alpha: float) -> None:
    """Divide the channels that products take, and multiply the rows of their matrices: the function stays the same."""
    makers = {output: node for node in given.graph.node for output in node.output}
    for name, top in tops.items():
        users = [node.input[1] for node in given.products if node.input[0] == name]
        weight = np.max([np.abs(given.value(user)).max(axis=1) for user in users], axis=0)
        factor = np.maximum(top, 1e-5) ** alpha / np.maximum(weight, 1e-5) ** (1 - alpha)
        factor = absorb(given, makers, makers[name], (factor / np.exp(np.log(factor).mean())).astype(np.float32))
        for user in users:
            given.put(user, given.value(user) * factor[:, None])


def absorb(given: Rewritten, makers: Mapping[str, Any], maker: Any, factor: Values) -> Values:
    """Let what comes before a product divide by the factor, and say what it divides by indeed."""
    if maker.op_type == "SimplifiedLayerNormalization":
        before = maker.input[1]
        given.put(before, given.value(before) / factor)
        return factor
    if maker.op_type == "GroupQueryAttention":  # a mean of values: heads of one group share theirs
        before = makers[maker.input[2]].input[1]
        counts = {each.name: each.i for each in maker.attribute}
        heads, kv = counts["num_heads"], counts["kv_num_heads"]
        shared = factor.reshape(kv, heads // kv, -1).max(axis=1)
        given.put(before, given.value(before) / shared.reshape(1, -1))
        return np.repeat(shared[:, None], heads // kv, axis=1).reshape(-1)
    assert maker.op_type == "Mul", maker.op_type  # activation(gate) * up
    before = makers[maker.input[1]].input[1]
    given.put(before, given.value(before) / factor)
    return factor


def integers(given: Rewritten, *, per_token: bool) -> None:
    """Rewrite every product: both sides in 8 bits, sums in int32."""
    given.put("int8.share", np.array(1 / 127, np.float32))
    given.put("int8.axis", np.array([-1], np.int64))
    given.put("int8.one", np.array(1, np.float32))
    given.put("int8.middle", np.array(128, np.uint8))
    rounded: dict[str, list[str]] = {}
    for node in list(given.products):
        (x, name), (y,) = node.input, node.output
        weight = given.value(name)
        if x not in rounded:
            rounded[x] = [f"{x}.uint8", f"{x}.scale", "int8.middle" if per_token else f"{x}.zero"]
            given.insert(node, of_token(x, *rounded[x]) if per_token else of_prompt(x, *rounded[x]))
        scale = np.maximum(np.abs(weight).max(axis=0) / 127, 1e-12)
        given.put(name, np.rint(weight / scale).astype(np.int8))
        given.put(f"{name}.scale", scale.astype(np.float32))
        a, factor, zero = rounded[x]
        whole = y if not per_token else f"{y}.units"
        sides = [a, name, "int8.one" if per_token else factor, f"{name}.scale", zero]
        made = [helper.make_node("MatMulIntegerToFloat", sides, [whole], domain="com.microsoft")]
        if per_token:
            made.append(helper.make_node("Mul", [whole, factor], [y]))
        given.insert(node, made)
        given.graph.node.remove(node)


def of_token(x: str, rounded: str, scale: str, zero: str) -> list[onnx.NodeProto]:
    """[..., tokens, channels] -> uint8 around 128 (kernels are faster than with int8), and a scale for each token."""
    return [
        helper.make_node("Abs", [x], [f"{x}.abs"]),
        helper.make_node("ReduceMax", [f"{x}.abs", "int8.axis"], [f"{x}.top"], keepdims=1),
        helper.make_node("Mul", [f"{x}.top", "int8.share"], [scale]),
        helper.make_node("Div", [x, scale], [f"{x}.in127"]),
        helper.make_node("QuantizeLinear", [f"{x}.in127", "int8.one", zero], [rounded]),
    ]


def of_prompt(x: str, u8: str, scale: str, zero: str) -> list[onnx.NodeProto]:
    """One scale and zero point for all tokens of a call."""
    return [helper.make_node("DynamicQuantizeLinear", [x], [u8, scale, zero])]


def seconds(sessions: Mapping[str, Any], ids: Sequence[int], past: int) -> dict[str, float]:
    """Of one call of each, in alternation: the least of several rounds, on the processor."""
    best = dict.fromkeys(sessions, float("inf"))
    calls = {name: feeds(session, ids, past) for name, session in sessions.items()}
    repeats = 1 if len(ids) > 1 else 10
    for count in range(ROUNDS):
        for name in list(sessions)[:: -1 if count % 2 else 1]:
            start = time.process_time()
            for _ in range(repeats):
                sessions[name].run(["logits"], calls[name])
            best[name] = min(best[name], (time.process_time() - start) / repeats)
    return best


def packages(model: str, folder: Path) -> dict[str, Path]:
    """What is compared and rewritten."""
    ways = {"fp32": ("fp32", None), "body fp32": ("int4", BODY), "int4": ("int4", None)}
    for name, (dtype, quant) in ways.items():
        options = Options(recipe=recipe(dtype, quant), context=CONTEXT, last_logits=True)
        export(model, folder / name, TARGETS["ort"], options)
    return {name: folder / name for name in ways}


def measure(model: str, alphas: Sequence[float], prompt: int) -> None:
    """Print what one model shows."""
    with tempfile.TemporaryDirectory() as home:
        made = packages(model, Path(home))
        tokenizer = ChatTokenizer.open(made["fp32"])
        asked = texts(made["fp32"], _ANY, MOST)
        seen = [tokenizer.encode(text)[:MOST] for text in PROMPTS[1:-1]]
        exact = answers(opened(str(made["fp32"] / "model.onnx")), asked)
        body = Rewritten(made["body fp32"])
        headed = answers(body.session(), asked)
        tops = largest(body, seen)
        positions = sum(map(len, asked))
        print(f"{Path(model).name}: {positions} positions, equalised on {sum(map(len, seen))} others")

        def show(name: str, session: Any) -> Any:
            got = answers(session, asked)
            print(f"  {name:40s} KL {divergence(headed, got):7.4f} {divergence(exact, got):7.4f}", flush=True)
            return session

        sessions = {"int4 default": show("int4 default", opened(str(made["int4"] / "model.onnx")))}
        show("matrices fp32, head int4", body.session())
        makings: dict[str, tuple[float | None, bool]] = {
            "int8, per prompt": (None, False),
            "int8, per token": (None, True),
            **{f"int8, per token, alpha {alpha}": (alpha, True) for alpha in alphas},
        }
        for name, (alpha, per_token) in makings.items():
            changed = Rewritten(made["body fp32"])
            if alpha is not None:
                equalise(changed, tops, alpha)
            if alpha == alphas[0]:
                print(f"    equalised in fp32: KL {divergence(headed, answers(changed.session(), asked)):.1e}")
            integers(changed, per_token=per_token)
            session = show(name, changed.session())
            if alpha is None:
                sessions[name] = session
        speed(sessions, prompt)


def answers(session: Any, asked: Sequence[Sequence[int]]) -> list[Values]:
    """Log-probabilities of every text."""
    return [logits(session, ids) for ids in asked]


def speed(sessions: Mapping[str, Any], prompt: int) -> None:
    """Print seconds, and how many times as fast as the first each is."""
    ids = np.random.default_rng(0).integers(5, 1000, prompt).tolist()
    calls: dict[str, Callable[[], dict[str, float]]] = {
        f"prefill of {prompt}": lambda: seconds(sessions, ids, 0),
        "a step behind 128": lambda: seconds(sessions, ids[:1], 128),
    }
    for what, call in calls.items():
        took = call()
        first = next(iter(took.values()))
        print(f"  {what}: " + ", ".join(f"{name} {1e3 * t:.1f} ms ({first / t:.2f}x)" for name, t in took.items()))


def main() -> None:
    """Measure every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.35, 0.5, 0.65])
    parser.add_argument("--prompt", type=int, default=512)
    results.option(parser)
    given = parser.parse_args()
    with results.kept(given.keep):
        for model in given.models:
            measure(model, given.alpha, given.prompt)


if __name__ == "__main__":
    main()
