"""Keys and values that a graph takes and gives back: which tensors, in which layout, and how they begin."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.runtime.states import Carried
from paritas.runtime.tensors import FLOATS, FLOATS_OR_UNSAID, Port, refused
from paritas.runtime.widths import head_dim, kv_heads
from paritas.runtime.wiring import Reader, Wiring

GQA = "com.microsoft.GroupQueryAttention"
WRITERS = frozenset({GQA, "TensorScatter", "ScatterND", "ScatterElements"})
"""Operators that put new keys into a cache of a fixed length, at a place that they are told."""
SLACK = 16
"""Tokens of room beyond its window that a cache gets, as ORT GenAI gives it on the CPU: with none, every step moves all
that is kept; with many, attention goes over many that it does not see (benchmarks/window_cache.py)."""


@dataclass(frozen=True)
class Cache:
    """The keys and values of one layer.

    Attributes:
        layer: the number in the names; layers that own no cache are absent.
        past_key, past_value: inputs of the graph.
        present_key, present_value: outputs of the graph.
        kv_heads, head_dim: of the layer.
        axis: of either half at which the tokens lie, in the graph's own layout.
        fresh: sizes of either half before the first token, the batch left out: ``(kv_heads, 0, head_dim)`` if it
            grows, else with all its room (:data:`SLACK` beyond the window, if the graph leaves it open).
        window: tokens that it must hold at least, if it drops others; None if it holds them all.
        dtype: of its elements.
        in_place: whether the attention writes the new tokens over the past where past and present are one tensor.
    """

    layer: int
    past_key: str
    past_value: str
    present_key: str
    present_value: str
    kv_heads: int
    head_dim: int
    axis: int
    fresh: tuple[int, ...]
    window: int | None
    dtype: np.dtype[Any]
    in_place: bool = False

    def with_room(self, tokens: int) -> "Cache":
        """With room for so many tokens from the start, if it is written in place and holds them all; else as it is."""
        if not self.in_place or self.window is not None:
            return self
        return replace(self, fresh=(*self.fresh[: self.axis - 1], tokens, *self.fresh[self.axis :]))

    @property
    def halves(self) -> tuple[Carried, Carried]:
        """Keys and values as tensors that go from call to call."""
        return (
            Carried(self.past_key, self.present_key, self.fresh, self.dtype),
            Carried(self.past_value, self.present_value, self.fresh, self.dtype),
        )

    @property
    def capacity(self) -> int | None:
        """The most tokens of a sequence; None if it grows, or drops what has left its window."""
        room = self.fresh[self.axis - 1]
        return room if room and self.window is None else None

    def held(self, half: NDArray[np.float32], length: int) -> NDArray[np.float32]:
        """Keys or values ``[batch, kv_heads, tokens, head_dim]`` of the newest tokens that it holds after ``length``.

        Args:
            half: ``[batch, *sizes]`` as the graph gave it.
            length: tokens seen.
        """
        layered = half.reshape(len(half), -1, self.kv_heads, self.head_dim) if half.ndim == 3 else half
        by_head = layered.swapaxes(1, 2) if self.axis == 1 else layered
        return by_head[:, :, : self._count(by_head.shape[2], length)]

    def _count(self, room: int, length: int) -> int:
        """ONNX Runtime drops ``room - window + 1`` tokens whenever the room is full; the rest stand in order."""
        if self.window is None or length <= room:
            return length
        step = room - self.window + 1
        return length - step * -(-(length - room) // step)


@dataclass(frozen=True)
class Slot:
    """Which half of which layer's cache a name speaks of."""

    layer: int
    half: str


@dataclass(frozen=True)
class Layout:
    """What :class:`Cache` says of one half."""

    kv_heads: int
    head_dim: int
    axis: int
    fresh: tuple[int, ...]
    window: int | None


def read_caches(
    wiring: Wiring, inputs: Sequence[Port], outputs: Sequence[Port], head_size: int | None, model: Path
) -> tuple[Cache, ...]:
    """Every layer's cache, by layer. ``head_size`` is asked only where the graph does not tell.

    Raises:
        Invalid: ``graph-cache-unpaired``, ``graph-cache-layout``.
    """
    taken = [port for port in inputs if port.element in FLOATS and len(port.dims) in (3, 4)]
    past = _slots([_widened(wiring, port, head_size) for port in taken], model)
    # Shapes of outputs may be left out too: a present is known by the slot that its name gives.
    present = _slots(
        [port for port in outputs if port.element in FLOATS_OR_UNSAID and len(port.dims) in (0, 3, 4)],
        model,
        set(past),
    )
    lost = [port.name for slot, port in past.items() if slot not in present]
    lost += [f"half of layer {slot.layer}" for slot in past if Slot(slot.layer, _other(slot.half)) not in past]
    if lost:
        raise refused("graph-cache-unpaired", f"no partner for: {', '.join(lost)}", model)
    return tuple(_cache(wiring, layer, past, present, model) for layer in sorted({slot.layer for slot in past}))


def _cache(wiring: Wiring, layer: int, past: dict[Slot, Port], present: dict[Slot, Port], model: Path) -> Cache:
    key, value = past[Slot(layer, "key")], past[Slot(layer, "value")]
    given = present[Slot(layer, "key")].name, present[Slot(layer, "value")].name
    keys, values = _layout(wiring, key, given[0], model), _layout(wiring, value, given[1], model)
    if keys != values or key.element != value.element:
        raise refused("graph-cache-layout", f"layer {layer}: keys are {key}, values are {value}", model)
    names = key.name, value.name, *given
    has_room = keys.window is not None or 0 in keys.fresh
    # What another layer attends to has to be the cache as long as it is, not a buffer with room behind it.
    shared = next((reader for each in given for reader in wiring.readers(each)), None)
    in_place = has_room and shared is None and all(reader.operator == GQA for reader in wiring.readers(key.name))
    return Cache(layer, *names, keys.kv_heads, keys.head_dim, keys.axis, keys.fresh, keys.window, key.dtype, in_place)


def _layout(wiring: Wiring, past: Port, present: str, model: Path) -> Layout:
    taken = tuple(wiring.readers(past.name))
    window = _window(taken)
    match past.dims[1:]:
        case (int(heads), None, int(width)):
            return Layout(heads, width, 2, (heads, 0 if window is None else window + SLACK, width), window)
        case (None, int(heads), int(width)):
            return Layout(heads, width, 1, (0, heads, width), None)
        case (int(first), int(second), int(width)) if _is_written(taken):
            axis = _axis(taken, rank=4)
            return Layout(second if axis == 1 else first, width, axis, (first, second, width), window)
        case (int(room), int(columns)) if _is_written(taken) and (heads := kv_heads(wiring, past.name, present)):
            return Layout(heads, columns // heads, _axis(taken, rank=3), (room, columns), None)
        case _:
            raise refused("graph-cache-layout", _why_not(past), model)


def _widened(wiring: Wiring, past: Port, head_size: int | None) -> Port:
    """With the head's width found elsewhere, if the cache's shape leaves it open."""
    if len(past.dims) != 4 or past.dims[3] is not None:
        return past
    return replace(past, dims=(*past.dims[:3], head_dim(wiring, past.name) or head_size))


def _axis(taken: Iterable[Reader], rank: int) -> int:
    """The axis at which new tokens are written; attention itself and scatters write at the last but one."""
    written = (reader.integer("axis") for reader in taken if reader.operator == "TensorScatter")
    return next((axis % rank for axis in written if axis is not None), rank - 2)


def _window(taken: Iterable[Reader]) -> int | None:
    """Slots that attention wants in a cache that it keeps to its window; None if it keeps none."""
    windowed = (reader for reader in taken if reader.operator == GQA and reader.integer("sliding_window_cache"))
    return next((reader.integer("local_window_size") for reader in windowed), None)


def _is_written(taken: Iterable[Reader]) -> bool:
    return any(reader.operator in WRITERS for reader in taken)


def _why_not(past: Port) -> str:
    if None not in past.dims[1:]:
        return f"{past.name} is {past}, of a fixed length, and nothing in the graph tells where it is written"
    return f"{past.name} is {past}, not [batch, kv_heads fixed, past free, head_dim fixed]"


def _slots(ports: Sequence[Port], model: Path, known: set[Slot] | None = None) -> dict[Slot, Port]:
    """Ports by slot; with ``known``, ports that fill none of those are left out (taps, cross attention)."""
    pairs = [(slot, port) for port in ports if (slot := _slot(port.name)) and (known is None or slot in known)]
    twice = [slot for slot, count in Counter(slot for slot, _ in pairs).items() if count > 1]
    if twice:
        names = ", ".join(port.name for slot, port in pairs if slot in twice)
        raise refused("graph-cache-unpaired", f"several tensors for one half of a layer's cache: {names}", model)
    return dict(pairs)


def _slot(name: str) -> Slot | None:
    """``past_key_values.3.key``, ``past_key_3``, ``present.3.k``, ``key_cache_3`` -> layer 3, key."""
    rest = re.sub(r"(past|present)_key_values?", "", name.lower())
    words = re.findall(r"[a-z]+|\d+", rest)
    numbers = [int(word) for word in words if word.isdigit()]
    halves = {"key" if word[0] == "k" else "value" for word in words if word in _HALF}
    if len(numbers) != 1 or len(halves) != 1:
        return None
    return Slot(numbers[0], halves.pop())


_HALF = frozenset({"k", "key", "keys", "v", "value", "values"})


def _other(half: str) -> str:
    return "value" if half == "key" else "key"
