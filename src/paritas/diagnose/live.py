"""The live reference's attention: what each layer attends with, seen in its calls, and faults in it.

A fault of the attention is a hook, or a change of a call of its attention function: transformers keeps those functions
in a table that is open to others, in which ours stands as long as there is a fault.
"""

import importlib
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.driver import Driver, Rows

_ATTENTION = ("self_attn", "attn", "attention", "self_attention")
ByPosition = Callable[[NDArray[np.int64]], tuple[Rows, Rows]]
"""Positions ``[n]`` -> cosines and sines, ``[n, pairs]`` each."""


@dataclass
class Call:
    """What an attention function is called with; a fault changes it in place.

    Attributes:
        query, key, value: torch, ``[batch, heads, tokens, head_dim]``, rotated.
        mask: torch, additive, ``[batch, 1, queries, keys]``.
        options: ``scaling``, ``softcap``, ``sliding_window``, ...
    """

    module: Any
    query: Any
    key: Any
    value: Any
    mask: Any
    options: dict[str, Any]


@dataclass(frozen=True)
class AttentionFacts:
    """What one layer's attention computes with, seen in a call of its attention function.

    Attributes:
        scale: of the scores.
        softcap: of the scores, or None.
        window: keys that a query sees, its own included; None if all.
        heads, kv_heads, head_dim: of the call.
        rotates: whether queries move with positions.
        neighbours: whether the pairs that rotate lie side by side; else half of the rotated dimensions apart.
    """

    scale: float
    softcap: float | None
    window: int | None
    heads: int
    kv_heads: int
    head_dim: int
    rotates: bool
    neighbours: bool


class Live(Driver):
    """transformers' model with its attention laid open.

    Attributes:
        attentions: layer -> attention module; a layer without attention has none.
        facts: layer -> what its attention computes with.
    """

    def __init__(self, model: Any, names: Mapping[str, str]) -> None:
        super().__init__(model, names)
        self.attentions: dict[int, Any] = {
            index: getattr(layer, name)
            for index, layer in enumerate(self.layers)
            for name in _ATTENTION
            if hasattr(layer, name)
        }
        self._changes: dict[int, list[Callable[[Call], None]]] = defaultdict(list)
        self.facts = self._read_attention()
        self._rotaries = self._read_rotaries()

    # Reading.

    def _read_attention(self) -> dict[int, AttentionFacts]:
        calls: dict[int, list[Call]] = defaultdict(list)
        with self.attending({index: calls[index].append for index in self.attentions}):
            for start in (0, 37):
                self.place = lambda new, past, mask, start=start: start + np.arange(new)[None]
                try:
                    self.forward(np.array([[1, 2, 3]], np.int64))
                finally:
                    self.place = None
        return {index: self._facts(index, *found) for index, found in calls.items() if len(found) == 2}

    def _facts(self, index: int, call: Call, moved: Call) -> AttentionFacts:
        apart = (call.query - moved.query).abs().max() / call.query.abs().max()
        scale = call.options.get("scaling")
        return AttentionFacts(
            scale=float(call.query.shape[-1] ** -0.5 if scale is None else scale),
            softcap=call.options.get("softcap"),
            window=self._window(index, call),
            heads=call.query.shape[1],
            kv_heads=call.key.shape[1],
            head_dim=call.query.shape[3],
            rotates=bool(apart > 1e-3),
            neighbours=_are_neighbours(call.query[0, :, 0].numpy(), moved.query[0, :, 0].numpy()),
        )

    def _window(self, index: int, call: Call) -> int | None:
        window = getattr(self.config, "sliding_window", None)
        kinds = getattr(self.config, "layer_types", None)
        if kinds is not None:
            return window if kinds[index] == "sliding_attention" else None
        return call.options.get("sliding_window")

    def _read_rotaries(self) -> dict[int, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
        """Layer -> the module that made its cosines and sines, and how it was called."""
        made: list[tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = []
        taken: dict[int, Any] = {}
        handles: list[Any] = []

        def makes(module: Any, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> None:
            made.append((out, module, args, options))

        def takes(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            taken[id(module)] = options.get("position_embeddings")

        for module in self.model.modules():
            if "rotary" in type(module).__name__.lower():
                handles.append(module.register_forward_hook(makes, with_kwargs=True))
        for module in self.attentions.values():
            handles.append(module.register_forward_pre_hook(takes, with_kwargs=True))
        try:
            self.forward(np.array([[1, 2]], np.int64))
        finally:
            for handle in handles:
                handle.remove()
        return {
            index: (module, args, options)
            for index, attention in self.attentions.items()
            for out, module, args, options in made
            if _is_made(out, taken.get(id(attention)))
        }

    def rope(self, index: int, positions: NDArray[np.int64]) -> tuple[Rows, Rows] | None:
        """Cosines and sines ``[positions, pairs]`` that a layer rotates with; None if it does not, or not so."""
        if index not in self._rotaries or not self.facts[index].rotates:
            return None
        module, args, options = self._rotaries[index]
        ids = self._torch.tensor(positions)[None]
        with self._torch.inference_mode():
            out = module(*[self._at(a, ids) for a in args], **{k: self._at(v, ids) for k, v in options.items()})
        cos, sin = (half[0].float().numpy() for half in out)
        return (cos[:, ::2], sin[:, ::2]) if _is_interleaved(sin) else (_first_half(cos), _first_half(sin))

    def _at(self, value: Any, ids: Any) -> Any:
        is_positions = hasattr(value, "dtype") and not value.is_floating_point()
        return ids if is_positions else value

    # Faults.

    @contextmanager
    def attending(self, changes: Mapping[int, Callable[[Call], None]]) -> Generator[None]:
        """Within, the calls of these layers' attention functions are changed first."""
        functions = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
        was = functions.get("eager", None)
        for index, change in changes.items():
            self._changes[index].append(change)
        functions["eager"] = self._attend
        try:
            yield
        finally:
            for index in changes:
                self._changes[index].pop()
            if was is None:
                del functions["eager"]
            else:
                functions["eager"] = was

    def _attend(self, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        usual = sys.modules[type(module).__module__].eager_attention_forward  # type: ignore[attr-defined]
        call = Call(module, query, key, value, mask, options)
        for index, change in self._changes.items():
            if self.attentions.get(index) is module:
                for each in change:
                    each(call)
        if call.options.get("softcap") is not None and "softcap" not in usual.__code__.co_varnames:
            return self._capped(call)
        return usual(module, call.query, call.key, call.value, call.mask, **call.options)

    def _capped(self, call: Call) -> Any:
        """Attention with capped scores, for a class that knows none."""
        torch, groups = self._torch, call.query.shape[1] // call.key.shape[1]
        key, value = (each.repeat_interleave(groups, dim=1) for each in (call.key, call.value))
        scores = torch.matmul(query := call.query, key.transpose(2, 3)) * call.options["scaling"]
        scores = call.options["softcap"] * torch.tanh(scores / call.options["softcap"]) + call.mask
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights

    @contextmanager
    def rotating(self, index: int, rows: ByPosition) -> Generator[None]:
        """Within, a layer is given other cosines and sines: positions ``[n]`` -> two of ``[n, pairs]``."""

        def change(module: Any, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            cos, sin = options["position_embeddings"]
            interleaved = _is_interleaved(sin[0].float().numpy()) if sin.shape[1] > 1 else False
            given = rows(self.positions.reshape(-1))
            wide = [np.repeat(g, 2, axis=1) if interleaved else np.concatenate([g, g], axis=1) for g in given]
            shape = (*self.positions.shape, -1)
            new = tuple(
                self._torch.from_numpy(np.ascontiguousarray(w[:, : old.shape[-1]])).reshape(shape)
                for w, old in zip(wide, (cos, sin), strict=True)
            )
            return args, {**options, "position_embeddings": new}

        handle = self.attentions[index].register_forward_pre_hook(change, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def unrotated(self, index: int) -> Generator[None]:
        """Within, a layer's queries and keys are not rotated, or by nothing."""
        width = self.facts[index].head_dim // 2

        def still(positions: NDArray[np.int64]) -> tuple[Rows, Rows]:
            shape = (positions.size, width)
            return np.ones(shape, np.float32), np.zeros(shape, np.float32)

        if self.facts[index].rotates:
            with self.rotating(index, still):
                yield
        else:
            yield

    @contextmanager
    def rotating_by(self, index: int, rows: ByPosition, *, neighbours: bool) -> Generator[None]:
        """Within, a layer rotates as many pairs as ``rows`` has, side by side or half of them apart, by our formula."""

        def change(call: Call) -> None:
            call.query = self._rotated(call.query, self.positions, rows, neighbours)
            call.key = self._rotated(call.key, self.key_positions, rows, neighbours)

        with self.unrotated(index), self.attending({index: change}):
            yield

    def _rotated(
        self,
        values: Any,
        positions: NDArray[np.int64],
        rows: ByPosition,
        neighbours: bool,
    ) -> Any:
        """torch ``[batch, heads, tokens, head_dim]``, its first dimensions rotated."""
        cos, sin = (
            self._torch.from_numpy(np.ascontiguousarray(half)).reshape(*positions.shape, -1)[:, None]
            for half in rows(positions.reshape(-1))
        )
        pairs = cos.shape[-1]
        turned, rest = values[..., : 2 * pairs], values[..., 2 * pairs :]
        one, other = (turned[..., ::2], turned[..., 1::2]) if neighbours else (turned[..., :pairs], turned[..., pairs:])
        first, second = one * cos - other * sin, other * cos + one * sin
        if neighbours:
            turned = self._torch.stack([first, second], dim=-1).reshape(turned.shape)
        else:
            turned = self._torch.cat([first, second], dim=-1)
        return self._torch.cat([turned, rest], dim=-1)


def _are_neighbours(still: Rows, turned: Rows) -> bool:
    """Whether it is neighbours among the dimensions of heads ``[heads, head_dim]`` that keep their length together."""
    moved = np.flatnonzero((np.abs(still - turned) > 1e-4 * np.abs(still).max()).any(axis=0))
    pairs = (int(moved.max()) + 2) // 2 if moved.size else 0
    apart: list[float] = []
    for first, second in ((slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)), (slice(0, pairs), slice(pairs, 2 * pairs))):
        lengths = [np.hypot(each[:, first], each[:, second]) for each in (still, turned)]
        apart.append(float(np.abs(lengths[0] - lengths[1]).max(initial=0.0)))
    return apart[0] < apart[1]


def _is_made(out: Any, taken: Any) -> bool:
    """Whether a module's cosines and sines are those that an attention was given."""
    return isinstance(out, tuple) and isinstance(taken, tuple) and cast(Any, out)[0] is cast(Any, taken)[0]


def _is_interleaved(sin: Rows) -> bool:
    """Whether each sine stands twice side by side; else the second half repeats the first."""
    return bool(sin.shape[-1] > 2 and np.array_equal(sin[:, ::2], sin[:, 1::2]) and not np.array_equal(sin, 0 * sin))


def _first_half(rows: Rows) -> Rows:
    half = rows.shape[1] // 2
    return rows[:, :half] if np.array_equal(rows[:, :half], rows[:, half:]) else rows
