"""How a RoPE's scaling is read out of its object in config.json, type by type."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from paritas.errors import ParitasError
from paritas.spec import Dynamic, Linear, Llama3, LongRope, Proportional, Scaling, Yarn

ORIGINAL = "original_max_position_embeddings"
PARTIAL = "partial_rotary_factor"


class Values(Protocol):
    """The part of :class:`paritas.config.Config` that is asked here."""

    values: Mapping[str, Any]

    def optional(self, key: str) -> Any:
        """The value, or None."""
        ...

    def integer(self, key: str, default: int | None) -> int:
        """A positive integer."""
        ...

    def number(self, key: str, default: float | None) -> float:
        """A positive number."""
        ...

    def needed(self, key: str) -> float:
        """A positive number that has to be there."""
        ...

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        ...

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of positive numbers."""
        ...

    def wrong(self, key: str, value: Any, wanted: str) -> ParitasError:
        """An error about a value."""
        ...


def _linear(rope: Values, dim: int, context: int) -> Scaling:
    return Linear(rope.needed("factor"))


def _dynamic(rope: Values, dim: int, context: int) -> Scaling:
    if dim == 2:
        raise rope.wrong("dim", dim, "more than 2 elements of a head, for dynamic scaling")
    return Dynamic(rope.needed("factor"), context)


def _llama3(rope: Values, dim: int, context: int) -> Scaling:
    return Llama3(
        factor=rope.needed("factor"),
        low_freq_factor=rope.needed("low_freq_factor"),
        high_freq_factor=rope.needed("high_freq_factor"),
        original_context=rope.integer(ORIGINAL, context),
    )


def _yarn(rope: Values, dim: int, context: int) -> Scaling:
    factor = rope.needed("factor")
    mscales = [rope.number(key, None) for key in ("mscale", "mscale_all_dim") if rope.optional(key)]
    over, under = mscales if len(mscales) == 2 else (1.0, 0.0)  # one alone is without effect
    return Yarn(
        factor=factor,
        original_context=rope.integer(ORIGINAL, context),
        beta_fast=rope.number("beta_fast", 32),
        beta_slow=rope.number("beta_slow", 1),
        truncate=rope.flag("truncate", True),
        attention_factor=rope.number("attention_factor", _mscale(factor, over) / _mscale(factor, under)),
    )


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(rope: Values, dim: int, context: int) -> Scaling:
    original = rope.integer(ORIGINAL, context)
    factor = rope.number("factor", context / original)
    attention_factor = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return LongRope(
        short=rope.numbers("short_factor", dim // 2),
        long=rope.numbers("long_factor", dim // 2),
        original_context=original,
        attention_factor=rope.number("attention_factor", attention_factor),
    )


def _proportional(rope: Values, dim: int, context: int) -> Scaling:
    pairs = int(rope.number(PARTIAL, 1.0) * dim // 2)
    if pairs > dim // 2:
        raise rope.wrong(PARTIAL, rope.values[PARTIAL], "at most 1")
    return Proportional(pairs, rope.number("factor", 1.0))


Reader = Callable[[Values, int, int], Scaling | None]
"""Reads a RoPE's scaling: its object, the head's width, the model's context."""

SCALINGS: Mapping[str, Reader] = {
    "default": lambda rope, dim, context: None,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}

KINDS_OF_LAYERS: Mapping[str, Reader] = {
    "default": SCALINGS["default"],
    "linear": _linear,
    "proportional": _proportional,
}
"""Where heads differ between kinds of layers."""
