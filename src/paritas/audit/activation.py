"""The activation of each MLP: the nodes between its projections are given numbers, and evaluated.

How it is written plays no part: a fused operator, a formula in ten nodes, a bias inside, gate and up in one product.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate_part
from paritas.audit.finding import Finding, layers
from paritas.audit.identity import Provenance
from paritas.audit.projections import Projection, products, projections_behind
from paritas.audit.told import Told, ToldLayer, Unknown
from paritas.audit.view import View
from paritas.audit.weights import swapped
from paritas.spec import Activation

Rows = NDArray[np.float64]
_TOKENS = 4
_COLUMNS = 64  # of each token that are looked at
_ELSEWHERE = ("attn", "attention", "conv", "mixer", "laurel", "altup", "per_layer")
"""In names of projections that are no MLP's."""


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
        sparsity: the share of what it is applied to that comes to zero before it.
    """

    layer: int
    kind: str
    tensor: str
    gated: bool
    stored: str
    second: bool
    sparsity: float | None = None


def mlps(view: View, made: Mapping[str, Provenance]) -> Iterator[Mixed]:
    """The middle of every MLP whose projections are known by value."""
    for node, down in products(view, made):
        layer = down.layer
        if layer is None or any(word in down.tensor for word in _ELSEWHERE):
            continue
        width = _columns(down.record)
        before = tuple(dict.fromkeys(projections_behind(view, made, [node.input[0]])))
        names = {projection.value for projection in before}
        if not before or len(names) > 2:
            continue
        if any(word in each.tensor for each in before for word in _ELSEWHERE):
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


def acting(view: View, found: Sequence[Mixed], told: Told) -> list[Acting | None]:
    """What each of them does; None where it is nothing that is known.

    Of sparse gates those of the layer's own share are known.
    """
    shares = [each if isinstance(each := told.layer(one.layer).sparsity, float) else None for one in found]
    random = np.random.default_rng(3)
    given: dict[str, NDArray[Any]] = {}
    for each in found:
        for one in each.before:
            given.setdefault(one.value, one.filled(random.normal(size=(_TOKENS, one.width)) * 2.5))
    names = [each.down for each in found]
    together = evaluate_part(view, names, given, _TOKENS) if names else []
    if together is not None:
        values = zip(found, together, shares, strict=True)
        return [_acting(each, given, value, share) for each, value, share in values]
    alone = [evaluate_part(view, [name], given, _TOKENS) for name in names]
    return [
        None if value is None else _acting(each, given, value[0], share)
        for each, value, share in zip(found, alone, shares, strict=True)
    ]


def sparse(rows: Rows, share: float) -> Rows:
    """What is left of gates ``[tokens, width]`` above the ``share`` quantile of a normal distribution like theirs."""
    least = rows.mean(-1, keepdims=True) + NormalDist().inv_cdf(share) * rows.std(-1, keepdims=True)
    return np.maximum(rows - least, 0)


def _acting(each: Mixed, given: Mapping[str, NDArray[Any]], value: NDArray[Any], share: float | None) -> Acting | None:
    if value.size != _TOKENS * each.width:
        return None
    got = np.asarray(value, np.float64).reshape(_TOKENS, each.width)[:, :_COLUMNS]
    best, least, close = None, math.inf, False
    exact = each.before[0].kind is np.float32
    for one, other, acts in _branches(each, given):
        up = 1 if other is None else other[:, :_COLUMNS]
        for applied, to in ((None, one), *([(share, sparse(one, share))] if share else [])):
            for kind, function in KINDS.items():
                error = np.abs(got - function(to[:, :_COLUMNS]) * up)
                relative = float((error / (np.abs(got) + 1e-2)).mean())
                if relative < least:
                    close = bool(error.max() < (1e-5 if exact else 4e-3) * np.abs(got).max())
                    best, least = Acting(each.layer, kind, *acts, applied), relative
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
    wrong: dict[Finding, list[int]] = defaultdict(list)
    unread: list[int] = []
    for each, does in zip(found, acting(view, found, told), strict=True):
        if does is None:
            unread.append(each.layer)
        elif fact := _misplaced(does):
            yield swapped(does.stored, fact)
        elif fact := _wrong(does, told.layer(each.layer), told.by):
            wrong[fact].append(each.layer)
    for fact, numbers in wrong.items():
        yield replace(fact, where=layers(numbers), message=f"{layers(numbers)}: {fact.message}")
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


def _misplaced(does: Acting) -> str | None:
    """What is wrong with what the activation is applied to."""
    if does.tensor.endswith("up_proj.weight") and does.gated and "gate_up" not in does.tensor:
        return f"the activation is applied to {does.tensor}, it belongs to gate_proj"
    if does.second and "gate_up" in does.tensor:
        return f"the activation is applied to the second half of {does.tensor}, the first is the gate"
    return None


def _wrong(does: Acting, told: ToldLayer, by: str) -> Finding | None:
    """Of one layer; which one is written in when all that have the same fault are known."""
    wanted = told.activation
    if not isinstance(wanted, Unknown) and does.kind != wanted:
        fact = f"the MLP's activation is {does.kind}, {by} says {wanted}"
        return Finding("activation-wrong", "error", "", fact, f"Write {wanted}.")
    if isinstance(told.sparsity, float) and does.sparsity is None:
        fact = f"gates are not sparse before the activation, {by} says {told.sparsity:g}"
        remedy = "Leave what is above the quantile of a normal distribution with the gates' mean and deviation."
        return Finding("activation-dense", "error", "", fact, remedy)
    return None
