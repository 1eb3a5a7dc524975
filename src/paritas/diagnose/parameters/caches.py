"""What a layer takes of earlier calls: its own cache as it was given, or something else made of the graph's caches."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate_part
from paritas.audit.masks import feeds
from paritas.audit.view import PASSES, View
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference, NotBrokenError
from paritas.runtime.states import Carried

Values = NDArray[Any]
_NEW, _PAST = 2, 7
_OPERATORS: Mapping[str, Mapping[int, int]] = {
    "GroupQueryAttention": {1: 3, 2: 4},
    "MultiHeadAttention": {1: 6, 2: 7},
    "Attention": {1: 4, 2: 5},
}
"""Attention operator -> its output of present keys or values -> its input of past ones."""

_JOINS = frozenset({"Concat", "TensorScatter"})
KINDS = {"keys": "keys", "values": "values", "state": "what a convolution has seen"}


@dataclass(frozen=True)
class Part:
    """One tensor that goes from call to call.

    Attributes:
        layer: whose it is.
        half: ``keys``, ``values`` or ``state``.
        port: its names in the graph.
    """

    layer: int
    half: str
    port: Carried


def cache_differences(case: Case) -> Iterator[Difference]:
    """Every cache that a layer does not take as the call before left it."""
    parts = list(_parts(case))
    given = _random(case, parts)
    for part in parts:
        join = _joined(case.view, part.port.present)
        if join is None or join[0].input[join[1]] == part.port.past:
            continue
        name = join[0].input[join[1]]
        values = evaluate_part(case.view, [name], given, _NEW)
        if values is not None and not _same(values[0], given[part.port.past]):
            yield _difference(case, part, join, values[0], given, parts)


def _parts(case: Case) -> Iterator[Part]:
    for cache in case.ports.caches:
        keys, values = cache.halves
        yield Part(cache.layer, "keys", keys)
        yield Part(cache.layer, "values", values)
    digits = [(int(part), state) for state in case.ports.states for part in state.past.split(".") if part.isdecimal()]
    yield from (Part(layer, "state", state) for layer, state in digits)


def _joined(view: View, name: str) -> tuple[onnx.NodeProto, int] | None:
    """The node that puts new tokens behind those that are kept, and its input of the latter."""
    for _ in range(8):
        node = view.maker.get(name)
        if node is None:
            return None
        if node.op_type in _OPERATORS:
            place = _OPERATORS[node.op_type].get(list(node.output).index(name))
            return (node, place) if place is not None and len(node.input) > place else None
        if node.op_type in _JOINS:
            return node, 0
        if node.op_type not in (*PASSES, "Slice"):
            return None
        name = node.input[0]
    return None


def _random(case: Case, parts: list[Part]) -> dict[str, Values]:
    """Inputs of a call, every cache with numbers of its own."""
    random = np.random.default_rng(0)
    given = feeds(case.view, _NEW, _PAST)
    for part in parts:
        sizes = tuple(_PAST if size == 0 else size for size in part.port.fresh)
        given[part.port.past] = random.normal(size=(1, *sizes)).astype(part.port.dtype)
    return given


def _same(one: Values, other: Values) -> bool:
    return one.shape == other.shape and np.array_equal(one, other)


def _difference(
    case: Case,
    part: Part,
    join: tuple[onnx.NodeProto, int],
    got: Values,
    given: Mapping[str, Values],
    parts: list[Part],
) -> Difference:
    own, words = given[part.port.past], KINDS[part.half]
    other = next((each for each in parts if _same(got, given[each.port.past])), None)
    node, place = join
    name = node.input[place]

    def recall(cache: Any, past: int) -> None:
        _put(case, cache, part, name, parts, past)

    module = _module(case, part)
    return Difference(
        parameter="cache",
        where=f"model.layers.{part.layer}{module}",
        layer=part.layer,
        package=_fact(got, own, other),
        reference="as the call before left it",
        fact=f"{words} of earlier calls are {_fact(got, own, other)}",
        breaks=lambda: case.live.recalling(recall),
        repairs=lambda edit: edit.replace_input(node.output[0], place, part.port.past, "its own cache as it is"),
        facts={
            "other": other,
            "lost": not got.any(),
            "rounded": _rounded(got, own),
            "origin": _origin(got, own, other),
        },
    )


def _module(case: Case, part: Part) -> str:
    """The part of the layer that keeps it, in the reference's words."""
    if part.half != "state":
        return ".self_attn"
    names = (name for name, _ in case.live.layers[part.layer].named_children())
    return next((f".{name}" for name in names if "conv" in name or "mixer" in name), "")


def _origin(got: Values, own: Values, other: Part | None) -> str:
    return "of another layer" if other is not None else _fact(got, own, other)


def _fact(got: Values, own: Values, other: Part | None) -> str:
    if other is not None:
        return f"those of layer {other.layer}" + ("" if other.half == "state" else f", its {other.half}")
    if not got.any():
        return "zeros"
    if (kind := _rounded(got, own)) is not None:
        return f"rounded to {kind}"
    return "changed"


def _rounded(got: Values, own: Values) -> str | None:
    kinds = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
    return next((word for word, kind in kinds.items() if _same(got, own.astype(kind).astype(own.dtype))), None)


def _put(case: Case, cache: Any, part: Part, name: str, parts: list[Part], past: int) -> None:
    """Give the reference's layer what the graph makes of the reference's own caches, row by row of the batch."""
    kept = {each.port.past: held for each in parts if (held := _held(cache, each)) is not None}
    own = kept.get(part.port.past)
    if own is None:
        raise NotBrokenError(f"transformers keeps nothing like {part.port.past}")
    new = own.clone()
    for row in range(len(own)):
        given = feeds(case.view, 1, past)
        given |= {each.port.past: _as_fed(kept[each.port.past][row], each) for each in parts if each.port.past in kept}
        values = evaluate_part(case.view, [name], given, 1)
        if values is None:
            raise NotBrokenError(f"{name} cannot be evaluated")
        got = values[0][0][:, :past] if part.half != "state" else values[0][0]
        new[row, ..., -got.shape[-1] :] = new.new_tensor(got)
    layer = cache.layers[part.layer]
    if part.half == "state":
        layer.conv_states[0] = new
    else:
        setattr(layer, part.half, new)


def _held(cache: Any, part: Part) -> Any | None:
    """transformers' own tensor, ``[batch, kv_heads, past, head_dim]`` or ``[batch, channels, width]``; None if none."""
    layer = cache.layers[part.layer] if part.layer < len(cache.layers) else None
    if part.half == "state":
        states: dict[int, Any] = getattr(layer, "conv_states", {})
        return states.get(0)
    return getattr(layer, part.half, None)


def _as_fed(held: Any, part: Part) -> Values:
    """A row of transformers' own as the graph takes it: of a convolution what it uses; a cache with all its room."""
    values = np.asarray(held.numpy(), part.port.dtype)
    if part.half == "state":
        return values[None, ..., -part.port.fresh[-1] :]
    room = part.port.fresh[1] if len(part.port.fresh) == 3 else 0
    if len(values) != part.port.fresh[0] or (room and room < values.shape[1]):
        raise NotBrokenError(f"{part.port.past} is laid out otherwise than transformers' cache")
    return np.pad(values, ((0, 0), (0, max(room - values.shape[1], 0)), (0, 0)))[None]
