"""Which norm, which rotation, in which order and with which factor made queries and keys of projections.

Every way that is known to be taken is followed in numpy, with the graph's own cosines and sines; the one that gives the
graph's queries, but for one factor, is the way that the graph takes.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.audit.told import UNKNOWN, ToldLayer, Unknown
from paritas.graph.rope import tables
from paritas.spec import Extent, LayerNorm, Packing, QkNorm, Rope

Rows = NDArray[np.float64]
Rotation = tuple[Rows, Rows]  # cosines and sines [tokens, pairs]
_FARTHEST = 64  # positions at which rotations are looked for


@dataclass(frozen=True)
class Way:
    """One way from a projection to queries or keys.

    Attributes:
        steps: ``norm`` and ``rotary``, in their order.
        neighbours: rotated pairs lie side by side.
        exchanged: the second of two tables is the cosines.
        packing: of the projection that the rows are taken from.
        in_turn: head ``h`` reads key-value head ``h % kv_heads``, not ``h // (heads / kv_heads)``.
    """

    steps: tuple[str, ...]
    neighbours: bool | Unknown
    exchanged: bool
    packing: Packing | None
    in_turn: bool


@dataclass(frozen=True)
class Side:
    """Queries or keys, on their way.

    Attributes:
        rows: of the projection, ``[tokens, width]``.
        start: the first column that is theirs, if the projection is packed in blocks.
        own: heads that they have in the projection.
        packed: the projection has queries, keys and values.
        place: 0 of queries, 1 of keys.
        end: ``[heads, tokens, head_dim]`` as they are multiplied.
        rotations: the two values that they are multiplied by on the way.
        norm: what normalises them, if the checkpoint has such a norm.
        exact: the graph computes in fp32.
    """

    rows: Rows
    start: int
    own: int
    packed: bool
    place: int
    end: Rows
    rotations: tuple[Rows, ...]
    norm: Callable[[Rows], Rows] | None
    exact: bool

    def ways(self) -> Iterator[Way]:
        """Every way that is known, the usual ones first."""
        steps = [("rotary",), ()] if len(self.rotations) == 2 else [()]
        if self.norm:
            steps = [*itertools.chain(*((("norm", *each), (*each, "norm")) for each in steps)), *steps]
        packings = (Packing.BLOCKS, Packing.BY_HEAD) if self.packed else (None,)
        turns = (False, True) if self.own != len(self.end) else (False,)
        for packing, in_turn, way in itertools.product(packings, turns, dict.fromkeys(steps)):
            if "rotary" not in way:
                yield Way(way, UNKNOWN, False, packing, in_turn)
                continue
            for exchanged, neighbours in itertools.product((False, True), (False, True)):
                yield Way(way, neighbours, exchanged, packing, in_turn)

    def follow(self, way: Way) -> Rows:
        """What would become of the projection, ``[heads, tokens, head_dim]``."""
        tokens, size = len(self.rows), self.end.shape[-1]
        if way.packing is Packing.BY_HEAD:
            values = self.rows.reshape(tokens, -1, 3, size)[:, :, self.place]
        else:
            values = self.rows[:, self.start : self.start + self.own * size].reshape(tokens, self.own, size)
        for step in way.steps:
            if step == "norm" and self.norm:
                values = self.norm(values)
            elif step == "rotary":
                cos, sin = reversed(self.rotations) if way.exchanged else self.rotations
                values = rotated(values, cos, sin, bool(way.neighbours))
        heads = np.arange(len(self.end))
        own = heads % values.shape[1] if way.in_turn else heads * values.shape[1] // len(heads)
        return values[:, own].swapaxes(0, 1)

    def found(self) -> tuple[Way, float] | None:
        """The way that was taken, and the factor; None if it is none of them."""
        close = 1e-5 if self.exact else 4e-3
        for way in self.ways():
            if way.packing is Packing.BY_HEAD and self.rows.shape[1] != 3 * self.end.shape[0] * self.end.shape[2]:
                continue
            wanted = self.follow(way)
            factor = float((wanted * self.end).sum() / (wanted**2).sum())
            if np.abs(self.end - factor * wanted).max() < close * np.abs(self.end).max():
                return way, factor
        return None


def rotated(values: Rows, cos: Rows, sin: Rows, neighbours: bool) -> Rows:
    """Values ``[tokens, heads, head_dim]`` with their first ``2 * pairs`` numbers rotated."""
    pairs = cos.shape[1]
    result = values.copy()
    one, other = (
        (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if neighbours else (slice(pairs), slice(pairs, 2 * pairs))
    )
    result[..., one] = values[..., one] * cos[:, None] - values[..., other] * sin[:, None]
    result[..., other] = values[..., other] * cos[:, None] + values[..., one] * sin[:, None]
    return result


def once(table: NDArray[Any], tokens: int) -> Rows | None:
    """A table that holds each pair once or twice, as ``[tokens, pairs]``; None if it is none."""
    values = np.asarray(table, np.float64)
    if values.size == 0 or values.size % tokens or values.size == tokens or values.shape[-1] * tokens != values.size:
        return None
    rows = values.reshape(tokens, -1)
    half = rows.shape[1] // 2
    if np.array_equal(rows[:, :half], rows[:, half:]):
        return rows[:, :half]
    return rows[:, ::2] if np.array_equal(rows[:, ::2], rows[:, 1::2]) else rows


def normaliser(weight: NDArray[np.float32] | None, told: ToldLayer, size: int) -> Callable[[Rows], Rows] | None:
    """The norm of queries or keys ``[tokens, heads, head_dim]``; without its epsilon, beside which they are large."""
    if weight is None or told.qk_norm is None:
        return None
    known = told.qk_norm if isinstance(told.qk_norm, QkNorm) else None
    extent = known.extent if known else Extent.HEAD if weight.size == size else Extent.PROJECTION
    centred = known is not None and isinstance(known.norm, LayerNorm)
    axes = (1, 2) if extent is Extent.PROJECTION else (2,)

    def norm(values: Rows) -> Rows:
        if weight.size not in (size, values[0].size):
            return values
        values = values - values.mean(axes, keepdims=True) if centred else values
        return values / np.sqrt((values**2).mean(axes, keepdims=True)) * weight.reshape(-1, size)

    return norm


def first_position(rope: Rope | Unknown | None, rotation: Sequence[Rows], exchanged: bool) -> int | Unknown:
    """The position at which the first token is rotated; unknown if the frequencies are not the RoPE's."""
    if not isinstance(rope, Rope) or len(rotation) != 2 or rotation[0].shape[1] * 2 != rope.dim:
        return UNKNOWN
    cos, sin = reversed(rotation) if exchanged else rotation
    count = len(cos)
    wanted = np.stack(tables(rope, 0, _FARTHEST)).astype(np.float64)
    got = np.stack([cos, sin])
    apart = [np.abs(got - wanted[:, p : p + count]).max() for p in range(_FARTHEST - count)]
    best = int(np.argmin(apart))
    return best if apart[best] < 1e-2 else UNKNOWN


def norms_of(layer: int, values: Mapping[str, NDArray[np.float32]]) -> tuple[NDArray[np.float32] | None, ...]:
    """Weights of the norms of queries and of keys of a layer."""
    return tuple(values.get(f"model.layers.{layer}.self_attn.{name}.weight") for name in ("q_norm", "k_norm"))
