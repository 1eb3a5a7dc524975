"""The activation of each MLP: the nodes between its projections are given numbers, and evaluated.

How it is written plays no part: a fused operator, a formula in ten nodes, a bias inside, gate and up in one product.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate_part
from paritas.audit.finding import Finding, layers
from paritas.audit.identity import Provenance
from paritas.audit.projections import Projection, products, projections_behind
from paritas.audit.told import Told, Unknown
from paritas.audit.view import View
from paritas.audit.weights import swapped
from paritas.spec import Activation

Rows = NDArray[np.float64]
_TOKENS = 4
_COLUMNS = 64  # of each token that are looked at
_MIXERS = ("attn", "attention", "conv", "mixer")


def _erf(values: Rows) -> Rows:
    return np.vectorize(math.erf, otypes=[np.float64])(values)


def _sigmoid(values: Rows) -> Rows:
    return 1 / (1 + np.exp(-values))


KINDS: Mapping[str, Callable[[Rows], Rows]] = {
    Activation.SILU: lambda x: x * _sigmoid(x),
    Activation.GELU: lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    Activation.GELU_TANH: lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    Activation.RELU: lambda x: np.maximum(x, 0),
    Activation.RELU2: lambda x: np.maximum(x, 0) ** 2,
    "quick_gelu": lambda x: x * _sigmoid(1.702 * x),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "none": lambda x: x,
}
"""Word -> function. Words that :class:`Activation` does not have are what exporters write by mistake."""


@dataclass(frozen=True)
class Mixed:
    """The middle of one MLP.

    Attributes:
        layer: its number.
        down: what the last projection takes.
        width: numbers a token of it.
        before: the projections before it: one, or gate and up in any order.
    """

    layer: int
    down: str
    width: int
    before: tuple[Projection, ...]


@dataclass(frozen=True)
class Acting:
    """What an MLP does in its middle.

    Attributes:
        layer: its number.
        kind: a word of :data:`KINDS`.
        tensor: the checkpoint's, that the activation is applied to; of one that holds gate and up, its name.
        gated: a second projection multiplies it.
        stored: the initializer.
        second: it is applied to the second half of a packed projection.
    """

    layer: int
    kind: str
    tensor: str
    gated: bool
    stored: str
    second: bool


def mlps(view: View, made: Mapping[str, Provenance]) -> Iterator[Mixed]:
    """The middle of every MLP whose projections are known by value."""
    for node, down in products(view, made):
        layer = down.layer
        if layer is None or any(word in down.tensor for word in _MIXERS):
            continue
        width = _columns(down.record)
        before = tuple(dict.fromkeys(projections_behind(view, made, [node.input[0]])))
        names = {projection.value for projection in before}
        if not before or len(names) > 2:
            continue
        if any(word in each.tensor for each in before for word in _MIXERS):
            continue
        if all(each.width == width for each in before) or (len(before) == 1 and before[0].width == 2 * width):
            own = Counter([each.layer for each in before if each.layer is not None] + [layer])
            yield Mixed(own.most_common(1)[0][0], node.input[0], width, before)


def _columns(record: Provenance) -> int:
    """Numbers that a product with the weight takes."""
    if record.quantized:
        return record.shape[-1]
    size = math.prod(record.shape)
    return size // (max(part.stop for part in (*record.parts, *record.near)) + (0 if record.parts else record.rest))


def acting(view: View, found: Sequence[Mixed]) -> list[Acting | None]:
    """What each of them does; None where it is nothing that is known."""
    random = np.random.default_rng(3)
    given: dict[str, NDArray[Any]] = {}
    for each in found:
        for one in each.before:
            given.setdefault(one.value, one.filled(random.normal(size=(_TOKENS, one.width)) * 2.5))
    names = [each.down for each in found]
    together = evaluate_part(view, names, given, _TOKENS) if names else []
    if together is not None:
        return [_acting(each, given, value) for each, value in zip(found, together, strict=True)]
    alone = [evaluate_part(view, [name], given, _TOKENS) for name in names]
    return [None if v is None else _acting(each, given, v[0]) for each, v in zip(found, alone, strict=True)]


def _acting(each: Mixed, given: Mapping[str, NDArray[Any]], value: NDArray[Any]) -> Acting | None:
    if value.size != _TOKENS * each.width:
        return None
    got = np.asarray(value, np.float64).reshape(_TOKENS, each.width)[:, :_COLUMNS]
    best, least, close = None, math.inf, False
    for one, other, acts in _branches(each, given):
        for kind, function in KINDS.items():
            wanted = function(one[:, :_COLUMNS]) * (1 if other is None else other[:, :_COLUMNS])
            error = np.abs(got - wanted)
            relative = float((error / (np.abs(got) + 1e-2)).mean())
            if relative < least:
                exact = each.before[0].kind is np.float32
                close = bool(error.max() < (1e-5 if exact else 4e-3) * np.abs(got).max())
                best, least = Acting(each.layer, kind, *acts), relative
    return best if close else None


Branch = tuple[Rows, Rows | None, tuple[str, bool, str, bool]]


def _branches(each: Mixed, given: Mapping[str, NDArray[Any]]) -> Iterator[Branch]:
    """What the activation may be applied to, what it may be multiplied by, and what it is then called."""
    rows = [np.asarray(given[one.value], np.float64).reshape(_TOKENS, -1) for one in each.before]
    first = each.before[0]
    if len(rows) == 2:
        for i in (0, 1):
            one = each.before[i]
            yield rows[i], rows[1 - i], (one.tensor, True, one.record.name, False)
    elif rows[0].shape[1] == each.width:
        yield rows[0], None, (first.tensor, False, first.record.name, False)
    else:
        halves = (rows[0][:, : each.width], rows[0][:, each.width :])
        names = first.record.tensors if len(first.record.tensors) == 2 else (first.tensor,) * 2
        for i in (0, 1):
            yield halves[i], halves[1 - i], (names[i], True, first.record.name, bool(i) and len(set(names)) == 1)
        side = (rows[0][:, ::2], rows[0][:, 1::2])
        for i in (0, 1):
            yield side[i], side[1 - i], (f"{names[0]} (every other row)", True, first.record.name, bool(i))


def activation_findings(view: View, made: Mapping[str, Provenance], told: Told) -> Iterator[Finding]:
    """Activations that are not the checkpoint's, or are applied to the wrong half."""
    found = list(mlps(view, made))
    wrong: dict[tuple[str, str], list[int]] = defaultdict(list)
    unread: list[int] = []
    for each, does in zip(found, acting(view, found), strict=True):
        wanted = told.layer(each.layer).activation
        if does is None:
            unread.append(each.layer)
        elif does.tensor.endswith("up_proj.weight") and does.gated and "gate_up" not in does.tensor:
            yield swapped(does.stored, f"the activation is applied to {does.tensor}, it belongs to gate_proj")
        elif does.second and "gate_up" in does.tensor:
            yield swapped(
                does.stored, f"the activation is applied to the second half of {does.tensor}, the first is the gate"
            )
        elif not isinstance(wanted, Unknown) and does.kind != wanted:
            wrong[does.kind, wanted].append(each.layer)
    for (got, wanted), numbers in wrong.items():
        yield Finding(
            "activation-wrong",
            "error",
            layers(numbers),
            f"{layers(numbers)}: the MLP's activation is {got}, {told.by} says {wanted}",
            f"Write {wanted}.",
        )
    seen = {each.layer for each in found}
    unread += [n for n, layer in enumerate(told.layers) if not isinstance(layer.activation, Unknown) and n not in seen]
    if unread:
        yield Finding(
            "activation-not-audited",
            "note",
            layers(unread),
            f"{layers(unread)}: the MLP's activation could not be read off the graph",
            "paritas verify compares what it computes.",
        )
