"""Faults of what only some architectures have, written down before anybody looked at what a diagnosis can name.

Streams and per-layer numbers of Gemma 3n and 4, parts of heads that rotate, mixtures, convolutions, parallel blocks.
The rule is that of blind.py: a new one is added without reading ``paritas.diagnose``.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

import tiny
from mutants.graphs import (
    Find,
    after,
    attributes,
    before,
    both,
    bypass,
    found,
    giving,
    in_turn,
    of,
    own,
    using,
    values,
)
from mutants.mutant import Change, Mutant, Topic
from rounding import stored

Array = NDArray[Any]
D, HEADS, KV = tiny.HEAD_DIM, 6, 2
HEAD_NORM = r"self_attn(\.[qk]_norm|\.[qk]_proj|\[|$)"
STREAMS = r"altup|\[residual|layers?\b.*\d$|\.in$|^model\.norm|input_layernorm"


def named(output: str) -> Find:
    """The node that gives just this."""
    return giving(f"^{re.escape(output)}$")


def laurel_of_the_stream(model: onnx.ModelProto) -> None:
    """The low-rank branch takes the stream before its norm, as residual branches elsewhere do."""
    taken = {node.output[0]: node.input[0] for node in found(model, using(r"input_layernorm\.weight$"))}
    for node in found(model, using(r"laurel\.linear_left\.weight$")):
        node.input[0] = taken[node.input[0]]


def scalar_before_the_last_sum(model: onnx.ModelProto) -> None:
    """Each layer's scalar multiplies the stream before what the per-layer input gives is added, and not the sum."""
    scaled = [(node.output[0], *node.input) for node in found(model, using(r"layer_scalar$"))]
    for product, total, scalar in scaled:
        bypass(named(product))(model)
        before(named(total), 0, "Mul", scalar)(model)


def values_normed_together() -> Change:
    """One root mean square for all key-value heads of a token, as a norm in front of the reshape has it."""
    norm = of("RMSNormalization")
    return in_turn(
        own(both(norm, using(r"^ones\.16$")), 1, lambda ones: np.ones((KV, len(ones)))),
        attributes(both(norm, using(r"^ones\.16\.")), axis=-2),
    )


def from_the_end(column: Array) -> Array:
    """Columns of each head so that what turns with the first pairs are the last ``D / 2`` of its elements."""
    return np.roll(column.reshape(*column.shape[:-1], -1, D), D // 2, axis=-1).reshape(column.shape)


def spread_over_the_head(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Tables of the rotated part alone whose exponents are those of a head that turns wholly."""

    def of_table(table: Array) -> Array:
        rows, pairs = table.shape
        return function(np.arange(rows)[:, None] * 5_000.0 ** -(2 * np.arange(pairs) / D))

    return of_table


def halves_for_turns(model: onnx.ModelProto) -> None:
    """Rows of gate and up stored in turns (gate, up, gate, ...) and read as a half of gates and a half of ups."""
    for gate in stored(model, r"experts\.gate_proj\.(weight|bias)$"):
        (up,) = stored(model, f"^{re.escape(gate.name.replace('gate_proj', 'up_proj'))}$")
        pair = np.stack([numpy_helper.to_array(gate), numpy_helper.to_array(up)], axis=2)
        wrong = np.split(pair.reshape(pair.shape[0], -1, *pair.shape[3:]), 2, axis=1)
        for tensor, value in zip((gate, up), wrong, strict=True):
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), tensor.name))


def mlp_of_the_stream(model: onnx.ModelProto) -> None:
    """In layer 1, the MLP beside attention takes what the norm of both takes."""
    makers = {node.output[0]: node for node in model.graph.node}
    for node in found(model, using(r"layers\.1\.mlp\.(gate|up)_proj\.weight$")):
        at = makers[node.input[0]]
        while at.op_type != "Add":  # the stream; norms are made of other operators
            at = makers[at.input[0]]
        node.input[0] = at.output[0]


def head_by_head(model: onnx.ModelProto) -> None:
    """Queries' and keys' norm takes the root mean square of a head, with the weights of the whole."""
    for node in found(model, using(r"[qk]_norm\.weight$")):
        given, weight = node.output[0], node.input[1]
        heads = HEADS if "q_norm" in weight else KV
        node.input[1] = f"{given}.ones"
        model.graph.initializer.append(numpy_helper.from_array(np.ones(D, np.float32), node.input[1]))
        before(named(given), 0, "Reshape", np.array([0, 0, heads, D]))(model)
        after(named(given), "Mul", weight)(model)
        after(named(f"{given}.before.Mul"), "Reshape", np.array([0, 0, -1]))(model)


def first_token_stays(model: onnx.ModelProto) -> None:
    """Keys within the window, and the very first one."""
    (near,) = found(model, of("Greater"))
    first = onnx.helper.make_node("Equal", [near.input[0], "zero"], ["v_step.first"])
    model.graph.node.insert(list(model.graph.node).index(near), first)
    after(of("Greater"), "Or", "v_step.first")(model)


_WRITTEN = (
    # Gemma 3n
    Mutant(
        "correction coefficients without the one",
        Topic.NUMBER,
        "gemma3n",
        "onnx",
        STREAMS,
        graph=bypass(both(of("Add"), using(r"correction_coefs\.MatMul"))),
    ),
    Mutant(
        "Laurel of the stream before its norm",
        Topic.NORM,
        "gemma3n",
        "onnx",
        r"laurel|\[residual|\[to|pre_feedforward",
        graph=laurel_of_the_stream,
    ),
    # Gemma 4
    Mutant(
        "layer_scalar before the per-layer input is added",
        Topic.NUMBER,
        "gemma4",
        "onnx",
        r"layer_scalar|per_layer|\[residual|layers?\b.*\d$|\.in$|^model\.norm|input_layernorm",
        graph=scalar_before_the_last_sum,
    ),
    Mutant(
        "values normed over all heads at once",
        Topic.NORM,
        "gemma4",
        "onnx",
        r"self_attn(\.v_norm|\.v_proj|\[|$)",
        layers=(0, 2, 4, 5),
        graph=values_normed_together(),
    ),
    Mutant(
        "proportional RoPE turns the last pairs",
        Topic.ROPE,
        "gemma4",
        "ort",
        r"self_attn\[(rotation|attention)",
        layers=(1, 3, 6),
        graph=values(r"^rope\..*Proportional.*\.(cos|sin)$", lambda table: table[:, ::-1]),
    ),
    Mutant(
        "queries of sharing layers not rotated",
        Topic.ROPE,
        "gemma4",
        "onnx",
        r"self_attn\[(rotation|attention)|self_attn$",
        layers=(4, 5, 6),
        graph=bypass(both(of("RotaryEmbedding"), giving(r"layers\.[456]\."))),
    ),
    # heads of which a part rotates
    Mutant(
        "the last part of a head rotated, not the first",
        Topic.ROPE,
        "phi",
        "ort",
        r"self_attn(\.[qk]_proj|\[)",
        graph=values(r"self_attn\.[qk]_proj\.(weight|bias)$", from_the_end),
    ),
    Mutant(
        "frequencies of the rotated part spread over the whole head",
        Topic.ROPE,
        "stablelm",
        "ort",
        r"self_attn\[(rotation|attention)",
        graph=in_turn(
            values(r"^rope\..*\.cos$", spread_over_the_head(np.cos)),
            values(r"^rope\..*\.sin$", spread_over_the_head(np.sin)),
        ),
    ),
    # mixtures
    Mutant(
        "weights of the chosen experts in reverse",
        Topic.EXPERTS,
        "qwen2_moe",
        "onnx",
        r"mlp",
        graph=after(of("GatherElements"), "Gather", np.array([2, 1, 0]), axis=1),
    ),
    Mutant(
        "residual multiplier of the mixture alone lost",
        Topic.NUMBER,
        "granitemoe",
        "onnx",
        r"mlp|\[residual|\[to|input_layernorm|^model\.norm",
        graph=bypass(both(using(r"mlp\.experts"), using(r"^residual_scale"))),
    ),
    Mutant(
        "gates and ups in turns read as halves",
        Topic.EXPERTS,
        "gpt_oss",
        "onnx",
        r"mlp",
        graph=halves_for_turns,
    ),
    # convolutions
    Mutant(
        "padding enters the convolution",
        Topic.MASK,
        "lfm2",
        "onnx",
        r"conv",
        layers=(0, 2, 3),
        graph=bypass(both(of("Mul"), using(r"^v_step\."))),
    ),
    # blocks, norms and windows of one family or few
    Mutant(
        "the MLP of a parallel block takes the stream itself",
        Topic.NORM,
        "cohere",
        "onnx",
        r"mlp|input_layernorm|\[residual|\[to",
        layers=(1,),
        graph=mlp_of_the_stream,
    ),
    Mutant(
        "norm of queries and keys head by head",
        Topic.NORM,
        "olmo2",
        "onnx",
        HEAD_NORM,
        graph=head_by_head,
    ),
    Mutant(
        "the first token stays in the window",
        Topic.MASK,
        "exaone4",
        "onnx",
        r"self_attn\[|self_attn$",
        layers=(0, 2),
        graph=first_token_stays,
    ),
)

BLIND_OF_FAMILIES: tuple[Mutant, ...] = tuple(replace(each, blind=True) for each in _WRITTEN)
