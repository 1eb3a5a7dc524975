"""Known faults of exporters, put into our own export one at a time: each must turn the verdict red, at its place.

A new bug report adds its fault here first.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import paritas.export
import paritas.plan
import tiny
from paritas.errors import ParitasError
from paritas.export import export
from paritas.graph import mlp
from paritas.graph.builder import Graph
from paritas.plan import Options
from paritas.spec import Activation, Attention, Decoder, Layer, Linear, Norm, QkNorm
from paritas.targets import TARGETS, rotary, standard
from paritas.verify.evidence import Evidence
from paritas.verify.verdict import Verdict
from paritas.weights import Weight

Fault = Callable[[pytest.MonkeyPatch], None]
Rows = Callable[[NDArray[np.float32]], NDArray[np.float32]]

LONE = "a scale, a norm, the embedding, the MLP or the head"
SECOND = "RoPE, or the attention's scale, softcap or q/k norm"
MASK = "the sliding-window mask"
CACHE = "one pass agrees and step by step does not"
PADDING = "only padded rows differ"
CAUSAL = "the causal mask"
RAW, ONNX = "onnxruntime", "onnx"


# Faults in what is computed: the spec is changed after it was read, before the graph is built.


def in_spec(change: Callable[[Decoder], Decoder]) -> Fault:
    read = paritas.plan.read_spec
    return lambda patch: patch.setattr(paritas.plan, "read_spec", lambda *given: change(read(*given)))


def in_layers(change: Callable[[Layer], Layer], kind: str = "") -> Fault:
    """In every layer, or in every one of a kind."""
    return in_spec(
        lambda spec: replace(
            spec, layers=tuple(change(layer) if layer.kind.startswith(kind) else layer for layer in spec.layers)
        )
    )


def in_attention(kind: str = "", **change: Callable[[Attention], Any]) -> Fault:
    """Fields of the attention, each computed from the right attention."""

    def changed(layer: Layer) -> Layer:
        values = {name: value(layer.attention) for name, value in change.items()}
        return replace(layer, mixer=replace(layer.attention, **values))

    return in_layers(changed, kind)


def in_mlp(**change: Any) -> Fault:
    return in_layers(lambda layer: replace(layer, mlp=replace(layer.mlp, **change)))


def in_rope(kind: str = "", **change: Any) -> Fault:
    return in_attention(kind, rope=lambda attention: replace(attention.rope, **change))


def in_embed_scale(rounded: Callable[[float], Any]) -> Fault:
    return in_spec(lambda spec: replace(spec, embed_scale=float(rounded(spec.embed_scale))))


def in_window(change: Callable[[int], int | None]) -> Fault:
    return in_attention("sliding", window=lambda attention: change(attention.window or 0))


def in_every_norm(**change: Callable[[Norm], float]) -> Fault:
    def changed(norm: Norm) -> Norm:
        return replace(norm, **{name: value(norm) for name, value in change.items()})

    def layer(one: Layer) -> Layer:
        of_heads = one.attention.qk_norm and QkNorm(changed(one.attention.qk_norm.norm))
        return replace(one, norm=changed(one.norm), mixer=replace(one.attention, qk_norm=of_heads))

    return in_spec(
        lambda spec: replace(spec, norm=changed(spec.norm), layers=tuple(layer(each) for each in spec.layers))
    )


# Faults in the weights: a checkpoint tensor is changed on its way into the graph.


class Changed(Weight):
    """Another weight, with something done to all of it."""

    def __init__(self, weight: Weight, change: Rows) -> None:
        self.shape, self.sources, self._weight, self._change = weight.shape, weight.sources, weight, change

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        yield self._change(np.concatenate(list(self._weight.blocks())))


def in_tensors(names: tuple[str, ...], change: Rows) -> Fault:
    """Tensors whose full name ends in one of ``names``."""
    stored = Graph.stored

    def wrong(graph: Graph, name: str, shape: tuple[int, ...]) -> Weight:
        weight = stored(graph, name, shape)
        return Changed(weight, change) if weight.sources[0].endswith(names) else weight

    return lambda patch: patch.setattr(Graph, "stored", wrong)


def offset_in_bf16(patch: pytest.MonkeyPatch) -> None:
    add = Weight.__add__
    patch.setattr(Weight, "__add__", lambda weight, offset: Changed(add(weight, offset), to_bf16))


def to_bf16(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows.astype(ml_dtypes.bfloat16).astype(np.float32)


def zero_row(index: int) -> Rows:
    return lambda rows: np.where(np.arange(len(rows))[:, None] == index, np.float32(0), rows)


def swap_kv_heads(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    first, second = np.split(rows, 2)
    return np.concatenate([second, first])


def interleave(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of each head as GGUF keeps them: the two halves of a rotated pair side by side."""
    heads = rows.reshape(-1, 2, tiny.HEAD_DIM // 2, *rows.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)


# Faults in the graph.


def positions_forget_the_past(patch: pytest.MonkeyPatch) -> None:
    positions = rotary.positions

    def wrong(graph: Graph, ids: Any, mask: Any) -> Any:
        op, length = graph.op, graph.op.Shape(ids, start=1, end=2)
        end, axis = graph.constant(np.array([2**31]), "end"), graph.constant(np.array([1]), "axis.1")
        return positions(graph, ids, op.Slice(mask, op.Neg(length), end, axis))

    patch.setattr(rotary, "positions", wrong)


def padding_is_seen(patch: pytest.MonkeyPatch) -> None:
    masks = standard.masks

    def wrong(graph: Graph, ids: Any, mask: Any, windows: set[int | None]) -> Any:
        return masks(graph, ids, graph.op.Max(mask, graph.constant(np.array(1), "one")), windows)

    patch.setattr(standard, "masks", wrong)


def later_tokens_are_seen(patch: pytest.MonkeyPatch) -> None:
    masks = standard.masks

    def wrong(graph: Graph, *given: Any) -> Any:
        everything = graph.constant(np.array(True), "true")
        return {window: graph.op.Or(mask, everything) for window, mask in masks(graph, *given).items()}

    patch.setattr(standard, "masks", wrong)


def gate_and_up_swapped(patch: pytest.MonkeyPatch) -> None:
    linear, other = mlp.linear, {"gate_proj": "up_proj", "up_proj": "gate_proj"}
    patch.setattr(mlp, "linear", lambda graph, target, name, *a: linear(graph, target, other.get(name, name), *a))


def norm_heads_after_rope(patch: pytest.MonkeyPatch) -> None:
    write = paritas.export.write_model

    def wrong(folder: Path, *given: Any) -> None:
        write(folder, *given)
        model = onnx.load(folder / "model.onnx", load_external_data=False)
        _move_rope_before_norm(model.graph)
        onnx.save(model, folder / "model.onnx")

    patch.setattr(paritas.export, "write_model", wrong)


def _move_rope_before_norm(graph: onnx.GraphProto) -> None:
    """project, split, norm, join, rotate, attend -> project, rotate, split, norm, join, attend."""
    nodes = list(graph.node)
    maker = {name: node for node in nodes for name in node.output}
    for rotate in [node for node in nodes if node.op_type == "RotaryEmbedding"]:
        join = maker[rotate.input[0]]
        split = maker[maker[join.input[0]].input[0]]
        rotate.input[0], split.input[0] = split.input[0], rotate.output[0]
        for user in nodes:
            if user is not split and rotate.output[0] in user.input:
                user.input[list(user.input).index(rotate.output[0])] = join.output[0]
        nodes.remove(rotate)
        nodes.insert(nodes.index(split), rotate)
    del graph.node[:]
    graph.node.extend(nodes)


@dataclass(frozen=True)
class Mutant:
    """A fault, and where it has to show.

    Attributes:
        first_bad: the first wrong position of all one-pass probes; None where one pass is right.
        drop: tensors that the faulty export leaves unused (the accounting stops such an export, see below).
    """

    checkpoint: str
    fault: Fault
    signature: str
    first_bad: int | None
    target: str = "ort"
    drop: tuple[str, ...] = ()


Q_AND_K = ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")
K_AND_V = ("k_proj.weight", "v_proj.weight", "k_proj.bias", "v_proj.bias")
QK_NORMS = ("*.q_norm.weight", "*.k_norm.weight")
QKV_BIASES = ("*.q_proj.bias", "*.k_proj.bias", "*.v_proj.bias")
O_BIAS = ("*.o_proj.bias",)
UNUSED_ROW = tiny.VOCAB - 5  # no token of the tokenizer
GLOBAL, LOCAL, FACTOR = tiny.GLOBAL_THETA, tiny.LOCAL_THETA, Linear(8.0)

MUTANTS: Mapping[str, Mutant] = {
    # RoPE
    "local layers inherit the global factor": Mutant("gemma3", in_rope("sliding", scaling=FACTOR), SECOND, 1),
    "global factor lost": Mutant("gemma3", in_rope("full", scaling=None), SECOND, 1, ONNX),
    "global theta on local layers": Mutant("gemma3", in_rope("sliding", theta=GLOBAL), SECOND, 1, ONNX),
    "local theta on global layers": Mutant("gemma3", in_rope("full", theta=LOCAL), SECOND, 1),
    "linear scaling ignored": Mutant("llama-linear", in_rope(scaling=None), SECOND, 1),
    "llama3 scaling ignored": Mutant("llama-biased", in_rope(scaling=None), SECOND, 1),
    "rows of q and k left interleaved": Mutant("llama", in_tensors(Q_AND_K, interleave), SECOND, 1),
    "positions start again at each step": Mutant("gemma3", positions_forget_the_past, CACHE, None, ONNX),
    # masks
    "window ignored": Mutant("gemma3", in_window(lambda _: None), MASK, tiny.WINDOW),
    "window one too long": Mutant("gemma3", in_window(lambda window: window + 1), MASK, tiny.WINDOW),
    "window one too short": Mutant("gemma3", in_window(lambda window: window - 1), MASK, tiny.WINDOW - 1, ONNX),
    "window on every layer": Mutant("gemma3", in_attention(window=lambda _: tiny.WINDOW), MASK, tiny.WINDOW),
    "padding is seen": Mutant("gemma3", padding_is_seen, PADDING, None, ONNX),
    "later tokens are seen": Mutant("gemma3", later_tokens_are_seen, CAUSAL, 0, ONNX),
    # attention
    "scale from head_dim": Mutant("gemma3", in_attention(scale=lambda a: a.head_dim**-0.5), SECOND, 1),
    "QK-norm dropped": Mutant("gemma3", in_attention(qk_norm=lambda _: None), SECOND, 1, drop=QK_NORMS),
    "QK-norm after RoPE": Mutant("gemma3", norm_heads_after_rope, SECOND, 1, ONNX),
    "qkv bias missing": Mutant("llama-biased", in_attention(qkv_bias=lambda _: False), LONE, 0, drop=QKV_BIASES),
    "output bias missing": Mutant("llama-biased", in_attention(output_bias=lambda _: False), LONE, 0, drop=O_BIAS),
    "kv heads swapped": Mutant("llama-biased", in_tensors(K_AND_V, swap_kv_heads), LONE, 0),
    # MLP, norms, numbers
    "MLP bias missing": Mutant("llama-biased", in_mlp(bias=False), LONE, 0, drop=("*.mlp.*.bias",)),
    "1 + weight rounded to bf16": Mutant("gemma3", offset_in_bf16, LONE, 0),
    "1 + weight without the 1": Mutant("gemma3", in_every_norm(offset=lambda _: 0.0), LONE, 0),
    "epsilon ten times larger": Mutant("gemma3", in_every_norm(eps=lambda norm: 10 * norm.eps), LONE, 0),
    "embedding scale rounded to two decimals": Mutant("gemma3", in_embed_scale(lambda x: round(x, 2)), LONE, 0),
    "embedding scale rounded to fp16": Mutant("gemma3", in_embed_scale(np.float16), LONE, 0, ONNX),
    "embedding scale rounded to bf16": Mutant("gemma3", in_embed_scale(ml_dtypes.bfloat16), LONE, 0),
    "GELU by the error function": Mutant("gemma3", in_mlp(activation=Activation.GELU), LONE, 0),
    "GELU by tanh": Mutant("llama-linear", in_mlp(activation=Activation.GELU_TANH), LONE, 0, ONNX),
    "softcap dropped": Mutant("gemma3", in_spec(lambda spec: replace(spec, softcap=None)), LONE, 0),
    # weights
    "one row of the head zero": Mutant("llama-biased", in_tensors(("lm_head.weight",), zero_row(UNUSED_ROW)), LONE, 0),
    "gate and up swapped": Mutant("gemma3", gate_and_up_swapped, LONE, 0),
}
TEXT_IS_THE_SAME = ("softcap dropped", "one row of the head zero", "epsilon ten times larger")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_is_red_at_its_place(
    name: str,
    judge: Callable[..., Evidence],
    export_mutant: Callable[[Mutant], Path],
    record_property: Callable[[str, object], None],
) -> None:
    mutant = MUTANTS[name]
    evidence = judge(mutant.checkpoint, export_mutant(mutant), RAW)
    record_property("measured", in_words(evidence))
    assert evidence.verdict is Verdict.DIVERGES, evidence.worst_floors
    assert mutant.signature in evidence.signatures[RAW]
    assert first_bad(evidence) == mutant.first_bad


@pytest.mark.parametrize("name", TEXT_IS_THE_SAME)
def test_greedy_tokens_alone_would_call_it_right(
    name: str, judge: Callable[..., Evidence], export_mutant: Callable[[Mutant], Path]
) -> None:
    evidence = judge(MUTANTS[name].checkpoint, export_mutant(MUTANTS[name]), RAW)
    (greedy,) = (probe.tokens for probe in evidence.probes if probe.tokens is not None)
    assert (greedy.identical, greedy.near_ties, greedy.different) == (100, 0, 0)
    assert evidence.verdict is Verdict.DIVERGES


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if mutant.drop])
def test_a_fault_that_leaves_tensors_unused_does_not_even_export(
    name: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    MUTANTS[name].fault(monkeypatch)
    with pytest.raises(ParitasError, match="tensor-unused"):
        export(checkpoint(MUTANTS[name].checkpoint), tmp_path / "package", TARGETS["ort"])


@pytest.fixture
def export_mutant(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Mutant], Path]:
    def run(mutant: Mutant) -> Path:
        out = tmp_path / "package"
        with monkeypatch.context() as patch:
            mutant.fault(patch)
            export(checkpoint(mutant.checkpoint), out, TARGETS[mutant.target], Options(drop=mutant.drop))
        return out

    return run


def first_bad(evidence: Evidence) -> int | None:
    """The first wrong position of all probes that put the whole sequence at once."""
    bad = (probe.first_bad for probe in evidence.probes if probe.id in ("short", "window", "long"))
    return min((where.position for where in bad if where), default=None)


def in_words(evidence: Evidence) -> str:
    tokens = next(probe.tokens for probe in evidence.probes if probe.tokens is not None)
    right, of = tokens.identical, tokens.identical + tokens.near_ties + tokens.different
    return f"{evidence.worst_floors:,.0f} floors, first at {first_bad(evidence)}, {right} of {of} tokens right"
