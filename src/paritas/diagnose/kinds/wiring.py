"""Kinds of wrong wiring: what modules take, and what is added to the stream."""

import math

from paritas.diagnose.difference import Difference
from paritas.diagnose.kinds.base import Kind


def _terms(difference: Difference) -> tuple[set[str], set[str]]:
    return set(difference.package), set(difference.reference)


def _is_norm(name: str) -> bool:
    return "norm" in name.rpartition(".")[2]


def _is_entry(difference: Difference) -> bool:
    """Whether it is the stream that a layer, or the norm behind the layers, takes."""
    return str(difference.facts["target"]).endswith(".in") or any(n.endswith(".in") for n in difference.reference)


def _norm_twice(difference: Difference) -> bool:
    return bool(set(difference.facts["norms"]) & set(difference.reference))


def _factor(difference: Difference) -> bool:
    got, wanted = _terms(difference)
    return got == wanted and len(got) == 1 and all(map(_is_norm, got))


def _stream_factor(difference: Difference) -> bool:
    got, wanted = _terms(difference)
    differing = [n for n in got & wanted if not math.isclose(difference.package[n], difference.reference[n])]
    return got == wanted and any(name.endswith(".in") for name in differing)


def _behind_norm(difference: Difference) -> bool:
    got, wanted = _terms(difference)
    return _is_entry(difference) and any(map(_is_norm, got - wanted)) and bool(wanted - got)


def _serial(difference: Difference) -> bool:
    got, wanted = _terms(difference)
    return got > wanted and any(name.endswith(".in") for name in wanted)


def _parallel(difference: Difference) -> bool:
    got, wanted = _terms(difference)
    return got < wanted and any(name.endswith(".in") for name in got)


def _without_norm(difference: Difference) -> bool:
    got, wanted = _terms(difference)
    return len(wanted) == 1 and all(map(_is_norm, wanted)) and not any(map(_is_norm, got))


KINDS = (
    Kind(
        "norm-applied-twice",
        "wiring",
        _norm_twice,
        "What a norm gives goes through the same norm once more: both the wrapper and the layer below it apply it.",
    ),
    Kind(
        "norm-output-scaled",
        "wiring",
        _factor,
        "What a norm gives is multiplied by a number: it divides by the root of the sum and not of the mean, or a "
        "multiplier of another family is applied.",
    ),
    Kind(
        "residual-stream-scaled",
        "wiring",
        _stream_factor,
        "The residual stream itself is multiplied, or added twice, where a layer's output is added to it.",
    ),
    Kind(
        "residual-behind-norm",
        "wiring",
        _behind_norm,
        "A layer's output is added to what its norm gives and not to the stream before the norm (pre-norm and "
        "post-norm blocks differ in just this).",
    ),
    Kind(
        "residual-parallel-as-serial",
        "wiring",
        _serial,
        "Attention and MLP take the same stream in the model (parallel residual); in the graph the one takes what the "
        "other has added.",
    ),
    Kind(
        "residual-serial-as-parallel",
        "wiring",
        _parallel,
        "The MLP takes the stream as it was before attention, or a branch is never added.",
    ),
    Kind(
        "norm-passed-by",
        "wiring",
        _without_norm,
        "A module takes the stream itself where the model gives it the output of a norm.",
    ),
)
