"""RoPE in plain frozen values: which pairs of a head turn, how fast, and how that is scaled."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class Linear:
    """Linear RoPE scaling: every frequency divided by ``factor``."""

    factor: float


@dataclass(frozen=True)
class Dynamic:
    """NTK scaling: theta grows with the length of the call, from ``original_context`` positions on."""

    factor: float
    original_context: int


@dataclass(frozen=True)
class Llama3:
    """Llama 3's RoPE scaling: low frequencies divided by ``factor``, high ones kept, a ramp between the two bands."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class Yarn:
    """YaRN: a ramp over the pairs, from frequencies that are kept to frequencies divided by ``factor``.

    Attributes:
        factor: of the slow pairs.
        original_context: positions of the training before.
        beta_fast, beta_slow: turns within the original context at which the ramp begins and ends.
        truncate: the ramp's ends are whole pairs.
        attention_factor: multiplies cosines and sines.
    """

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float


@dataclass(frozen=True)
class LongRope:
    """LongRoPE: frequencies divided one by one, by ``long`` in a call that reaches beyond ``original_context``.

    The switch concerns every position of the call; cached keys stay as they were rotated. ``attention_factor``
    multiplies cosines and sines on both sides of it.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int
    attention_factor: float


@dataclass(frozen=True)
class Proportional:
    """The first ``pairs`` of a whole head's pairs turn as they would in it, divided by ``factor``; the others stand."""

    pairs: int
    factor: float = 1.0


Scaling = Linear | Dynamic | Llama3 | Yarn | LongRope | Proportional


class Pairing(StrEnum):
    """Which two numbers of a head are rotated as a pair."""

    HALVES = "halves"  # i and i + dim / 2: rotate_half
    NEIGHBOURS = "neighbours"  # 2 i and 2 i + 1


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding over the first ``dim`` of a head; what lies behind them is not rotated."""

    theta: float
    dim: int
    scaling: Scaling | None = None
    pairing: Pairing = Pairing.HALVES

    @property
    def attention_factor(self) -> float:
        """What multiplies cosines and sines."""
        return self.scaling.attention_factor if isinstance(self.scaling, Yarn | LongRope) else 1.0
