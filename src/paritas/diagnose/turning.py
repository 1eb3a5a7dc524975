"""Faults in rotations: what a call rotates its new queries, keys and values by, in the live reference.

A key is rotated when it is new, and stays so in the cache. The reference keeps its keys unrotated while there is such
a fault, and what each of them was rotated by is remembered here.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.driver import Rows
from paritas.diagnose.live import ByPosition, Call, Live

Positions = NDArray[np.int64]
QUERY, KEY, VALUE = "query", "key", "value"


@dataclass(frozen=True)
class Turn:
    """A rotation of the new tokens of one call.

    Attributes:
        cos, sin: ``[batch, new, pairs]``; pairs are of the first dimensions of a head.
        neighbours: whether a pair lies side by side; else half of the rotated dimensions apart.
    """

    cos: Rows
    sin: Rows
    neighbours: bool


Turning = Callable[[Live], Turn]
"""The reference in a call (its ``positions``, ``past`` and ``mask``) -> what the new tokens are rotated by."""


def by_position(rows: ByPosition, *, neighbours: bool) -> Turning:
    """Rows that hang on a token's position alone."""

    def turn(live: Live) -> Turn:
        cos, sin = (half.reshape(*live.positions.shape, -1) for half in rows(live.positions.reshape(-1)))
        return Turn(cos, sin, neighbours)

    return turn


@contextmanager
def turning(live: Live, index: int, turns: Mapping[str, Turning]) -> Generator[None]:
    """Within, a layer rotates its queries, keys and values otherwise.

    Args:
        live: the reference.
        index: of the layer.
        turns: by :data:`QUERY`, :data:`KEY` and :data:`VALUE`; queries and keys are rotated by nothing else.
            Layers that attend to this one's keys are given them rotated so; of such a layer, queries alone are its own.
    """
    if live.facts[index].source != index:
        turns = {half: turn for half, turn in turns.items() if half == QUERY}
    memory: dict[str, list[Turn]] = {KEY: [], VALUE: []}

    def change(call: Call) -> None:
        for half, turn in turns.items():
            new = turn(live)
            if half != QUERY:
                if not live.past:
                    memory[half].clear()
                memory[half].append(new)
                new = _together(memory[half])
            setattr(call, half, rotated(getattr(call, half), new))

    def hand_on(call: Call) -> None:
        for half in turns.keys() & memory.keys():
            setattr(call, half, rotated(getattr(call, half), _together(memory[half])))

    takers = [each for each, facts in live.facts.items() if facts.source == index != each]
    with ExitStack() as stack:
        if {QUERY, KEY} & turns.keys():
            stack.enter_context(live.unrotated(index))
        stack.enter_context(live.attending({index: change} | dict.fromkeys(takers, hand_on)))
        yield


@contextmanager
def turning_several(live: Live, turns: Mapping[int, Mapping[str, Turning]]) -> Generator[None]:
    """As :func:`turning`, of several layers."""
    with ExitStack() as stack:
        for index, each in turns.items():
            stack.enter_context(turning(live, index, each))
        yield


def alike(live: Live, index: int, turn: Turning) -> Any:
    """As :func:`turning`, queries and keys by the same."""
    return turning(live, index, {QUERY: turn, KEY: turn})


def _together(turns: list[Turn]) -> Turn:
    cos, sin = (np.concatenate([getattr(turn, half) for turn in turns], axis=1) for half in ("cos", "sin"))
    return Turn(cos, sin, turns[0].neighbours)


def rotated(values: Any, turn: Turn) -> Any:
    """torch ``[batch, heads, tokens, head_dim]``, its first dimensions rotated."""
    like = values.new_tensor
    cos, sin = (like(np.ascontiguousarray(half))[:, None, -values.shape[2] :] for half in (turn.cos, turn.sin))
    pairs = cos.shape[-1]
    whole = values[..., : 2 * pairs]
    if turn.neighbours:
        one, other = whole[..., ::2], whole[..., 1::2]
    else:
        one, other = whole[..., :pairs], whole[..., pairs:]
    first, second = one * cos - other * sin, other * cos + one * sin
    out = values.clone()
    if turn.neighbours:
        out[..., : 2 * pairs : 2], out[..., 1 : 2 * pairs : 2] = first, second
    else:
        out[..., :pairs], out[..., pairs : 2 * pairs] = first, second
    return out
