"""What can be asked of a package: sequences of tokens, and the probes that put them."""

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True)
class Sequence:
    """Tokens that the reference and the package are both given.

    Attributes:
        name: unique in a run.
        ids: what is fed.
        prefill: tokens of the first call when it is put step by step.
        stop: tokens that are put when it is put step by step; equal to ``prefill`` if it never is.
        greedy: tokens the reference chose, the first by the logits of the prompt's last token.
        prompt: tokens before the first chosen one; 0 if none is chosen.
        stepwise: the reference itself is asked step by step: beyond a length at which RoPE changes, one pass is
            another computation (it rotates all positions the new way), not another order of the same one.
    """

    name: str
    ids: tuple[int, ...]
    prefill: int
    stop: int
    greedy: tuple[int, ...] = ()
    prompt: int = 0
    stepwise: bool = False


class Manner(Enum):
    """How a probe puts its sequences."""

    ONE_PASS = auto()
    STEPS = auto()
    CHUNKS = auto()
    PADDED_LEFT = auto()
    PADDED_RIGHT = auto()
    CHANGED_TOKENS = auto()
    CACHE = auto()
    HIDDEN = auto()


INSIDE = frozenset({Manner.CACHE, Manner.HIDDEN})
"""What looks at tensors of layers, each with a floor of its own, and not at logits."""

OPTIONAL = frozenset({Manner.CHUNKS, Manner.PADDED_RIGHT, Manner.CACHE})
"""What a package need not be made for: where the runtime refuses it, it is not tested, rather than invalid."""


@dataclass(frozen=True)
class Probe:
    """One question.

    Attributes:
        id: as the evidence calls it.
        boundary: what it crosses, for people.
        manner: how its sequences are put.
        sequences: their names.
        obstacle: why it cannot be asked of this model; None if it can.
    """

    id: str
    boundary: str
    manner: Manner
    sequences: tuple[str, ...]
    obstacle: str | None = None


def chunks(length: int) -> tuple[int, ...]:
    """The sizes of three uneven parts, fewer if there are too few tokens."""
    first, second = max(1, length // 7), max(1, length // 2)
    return tuple(size for size in (first, min(second, length - first), length - first - second) if size > 0)


def changed_positions(length: int) -> tuple[int, ...]:
    """The tokens that are changed to see whether earlier logits move: the last, one in the middle, the second."""
    return tuple(sorted({position for position in (1, length // 2, length - 1) if position > 0}, reverse=True))
