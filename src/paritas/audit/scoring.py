"""What becomes of scores on their way through a softmax: scores of ours are put in their place, and evaluated.

It says what they are multiplied by, where they are capped, and which of them are hidden.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate_part
from paritas.audit.masks import LONGEST, cached, feeds
from paritas.audit.told import UNKNOWN, Told, Unknown
from paritas.audit.view import View
from paritas.audit.windows import USUAL
from paritas.audit.written import Written

Values = NDArray[Any]
_NEW = 6
_LEVELS = (1e-2, 1.0, 1e2, 1e4, 1e5, 1e6)  # scores, one a row; in fp16 the last two are infinite


@dataclass(frozen=True)
class Scored:
    """What becomes of an attention's scores.

    Attributes:
        factor: multiplies them.
        softcap: caps them.
        window: keys that a query sees, its own included.
        causal: no query sees a later key.
        hides_padding: no query sees the padding before it.
    """

    factor: float | Unknown
    softcap: float | Unknown | None
    window: int | Unknown | None
    causal: bool | Unknown
    hides_padding: bool | Unknown


@dataclass(frozen=True)
class _Step:
    """Tokens of a call: new ones, those before them, and how many of all are padding."""

    new: int
    past: int
    padded: int = 0


def scored(view: View, found: Sequence[Written], given: Mapping[str, Values], told: Told) -> list[Scored | None]:
    """Of each attention; None where its scores could not be evaluated.

    Args:
        view: the graph.
        found: its written-out attentions.
        given: queries and keys, of 6 tokens.
        told: what should be.
    """
    names = [each.product for each in found if each.product]
    values = evaluate_part(view, names, {**feeds(view, _NEW, 0), **given}, _NEW)
    if values is None:
        return [None for _ in found]
    scores = dict(zip(names, values, strict=True))
    windows = [layer.window for layer in told.layers if isinstance(layer.window, int)]
    most = max([USUAL if cached(view) else 0, *windows]) + 8
    ask = _Asking(view, found, scores, given)
    zeros, levels = np.zeros(()), np.array(_LEVELS)[:, None]
    causal = ask.shown(_Step(_NEW, 0), zeros, True)
    padded = ask.shown(_Step(_NEW, 0, 2), zeros, True)
    last = ask.shown(_Step(1, most) if cached(view) else _Step(min(most, LONGEST), 0), zeros, True)
    chain = ask.shown(_Step(_NEW, 0), levels, False)
    masked = any("mask" in value.name for value in view.proto.graph.input)
    return [
        None if after is None else _scored(one, two, three, after, masked)
        for one, two, three, after in zip(causal, padded, last, chain, strict=True)
    ]


@dataclass(frozen=True)
class _Asking:
    """What is asked of each attention.

    Attributes:
        view: the graph.
        found: its attentions.
        scores: what each of them multiplies, of 6 tokens, for their shapes.
        given: queries and keys.
    """

    view: View
    found: Sequence[Written]
    scores: Mapping[str, Values]
    given: Mapping[str, Values]

    def shown(self, step: _Step, scores: NDArray[np.floating], output: bool) -> list[Values | None]:
        """What becomes of ``scores`` in each attention, before the softmax or after it."""
        with np.errstate(over="ignore"):
            made = {
                name: np.broadcast_to(scores, (*old.shape[:-2], step.new, step.past + step.new)).astype(old.dtype)
                for name, old in self.scores.items()
            }
        blank = {name: _longer(value, step.new) for name, value in self.given.items()}
        inputs = {**feeds(self.view, step.new, step.past, step.padded), **blank, **made}
        nodes = [each.softmax for each in self.found if each.softmax]
        names = [node.output[0] if output else node.input[0] for node in nodes]
        together = evaluate_part(self.view, names, inputs, step.new)
        if together is not None:
            return list(together)
        alone = (evaluate_part(self.view, [name], inputs, step.new) for name in names)
        return [None if values is None else values[0] for values in alone]


def _longer(value: Values, tokens: int) -> Values:
    """Zeros for ``tokens`` tokens, in the shape that a projection has for another number of them."""
    return np.zeros((*value.shape[:-2], tokens, value.shape[-1]), value.dtype)


def _scored(causal: Values | None, padded: Values | None, last: Values | None, chain: Values, masked: bool) -> Scored:
    seen, shown, ends = (_seen(value) for value in (causal, padded, last))
    window: int | Unknown | None = UNKNOWN
    if ends is not None:
        count = int(ends[-1].sum())
        window = None if count == ends.shape[1] else count
    factor, cap = _chain(chain)
    return Scored(
        factor,
        cap,
        window,
        UNKNOWN if seen is None else not bool(np.triu(seen, 1).any()),
        UNKNOWN if shown is None or not masked else not bool(shown[2:, :2].any()),
    )


def _seen(values: Values | None) -> NDArray[np.bool_] | None:
    """``[queries, keys]`` of the first head, true where a key has a weight."""
    if values is None or values.ndim < 2 or values.shape[-1] < values.shape[-2]:
        return None
    return values.reshape(-1, *values.shape[-2:])[0] > 0


def _chain(values: Values) -> tuple[float | Unknown, float | Unknown | None]:
    """Factor and cap of what became of :data:`_LEVELS`."""
    if values.shape[-2:] != (_NEW, _NEW):
        return UNKNOWN, UNKNOWN
    got = np.diagonal(values.reshape(-1, _NEW, _NEW)[0]).astype(np.float64)
    levels = np.array(_LEVELS)
    finite = np.isfinite(got)
    if not finite[:4].all() or got[0] == 0:
        return UNKNOWN, UNKNOWN
    factor, far = float(got[0] / levels[0]), float(got[3])
    if np.isclose(far, factor * levels[3], rtol=1e-2):
        return float(got[1] / levels[1]), None
    steady = finite & (levels >= levels[3])
    return (factor, far) if np.allclose(got[steady], far, rtol=1e-6) else (UNKNOWN, UNKNOWN)
