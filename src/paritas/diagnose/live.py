"""The live reference's attention: what each layer attends with, seen in its calls, and faults in it.

A fault of the attention is a hook, or a change of a call of its attention function: transformers keeps those functions
in a table that is open to others, in which ours stands as long as there is a fault.
"""

import importlib
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
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
        source: the layer whose keys it attends to: its own, or an earlier one that keeps them for it.
    """

    scale: float
    softcap: float | None
    window: int | None
    heads: int
    kv_heads: int
    head_dim: int
    rotates: bool
    neighbours: bool
    source: int


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
        whole = {index: found for index, found in calls.items() if len(found) == 2}
        return {index: self._facts(index, found[0], found[1], _source(index, whole)) for index, found in whole.items()}

    def _facts(self, index: int, call: Call, moved: Call, source: int) -> AttentionFacts:
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
            source=source,
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
        """Cosines and sines ``[positions, pairs]`` that a layer rotates with; None if it does not, or not so.

        In a call of these positions, the first of its sequence: some rotations hang on the longest of them.
        """
        facts = self.facts.get(index)
        if index not in self._rotaries or facts is None or not facts.rotates:
            return None
        begun, out = self._rotary(index, np.zeros(1, np.int64)), self._rotary(index, positions)
        cos, sin = out if begun[0].any() else out[::-1]
        return (cos[:, ::2], sin[:, ::2]) if _is_interleaved(sin) else (_first_half(cos), _first_half(sin))

    def _rotary(self, index: int, positions: NDArray[np.int64]) -> tuple[Rows, Rows]:
        """Both halves that the module of a layer's rotation gives, in its order: GPT-J's gives the sines first.

        Dynamic RoPE stays at the longest call until a short one.
        """
        module, args, options = self._rotaries[index]
        ids = self._torch.tensor(positions)[None]
        with self._torch.inference_mode():
            one, other = module(*[self._at(a, ids) for a in args], **{k: self._at(v, ids) for k, v in options.items()})
        return one[0].float().numpy(), other[0].float().numpy()

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
            if self.attentions.get(index) is module and not self.is_beginning:
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
        cosines_first = index not in self._rotaries or self._rotary(index, np.zeros(1, np.int64))[0].any()

        def change(module: Any, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            old = options["position_embeddings"]
            interleaved = _is_interleaved(old[1][0].float().numpy()) if old[1].shape[1] > 1 else False
            given = rows(self.positions.reshape(-1))[:: 1 if cosines_first else -1]
            wide = [np.repeat(g, 2, axis=1) if interleaved else np.concatenate([g, g], axis=1) for g in given]
            shape = (*self.positions.shape, -1)
            new = tuple(
                self._torch.from_numpy(np.ascontiguousarray(w[:, : half.shape[-1]])).reshape(shape)
                for w, half in zip(wide, old, strict=True)
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


def _source(index: int, calls: Mapping[int, Sequence[Call]]) -> int:
    """The first layer that attends to the same keys."""
    key = calls[index][0].key
    return next(each for each in sorted(calls) if calls[each][0].key.equal(key))


def _are_neighbours(still: Rows, turned: Rows) -> bool:
    """Whether it is neighbours among the dimensions of heads ``[heads, head_dim]`` that keep their length together.

    How many dimensions rotate is not known here: halves are tried of every width, and what lies behind them rests.
    """
    width = still.shape[1]
    side_by_side = _apart(still, turned, slice(0, width, 2), slice(1, width, 2))
    halves = (
        max(
            _apart(still, turned, slice(0, pairs), slice(pairs, 2 * pairs)),
            float(np.abs(still - turned)[:, 2 * pairs :].max(initial=0.0)),
        )
        for pairs in range(1, width // 2 + 1)
    )
    return side_by_side < min(halves)


def _apart(still: Rows, turned: Rows, first: slice, second: slice) -> float:
    """How far the lengths of pairs are from each other before and after."""
    before, after = (np.hypot(each[:, first], each[:, second]) for each in (still, turned))
    return float(np.abs(before - after).max(initial=0.0))


def _is_made(out: Any, taken: Any) -> bool:
    """Whether a module's cosines and sines are those that an attention was given, or was given a copy of."""
    if not isinstance(out, tuple) or not isinstance(taken, tuple):
        return False
    one, other = cast(Any, out)[0], cast(Any, taken)[0]
    return one is other or (one.shape == other.shape and one.equal(other))


def _is_interleaved(sin: Rows) -> bool:
    """Whether each sine stands twice side by side; else the second half repeats the first."""
    return bool(sin.shape[-1] > 2 and np.array_equal(sin[:, ::2], sin[:, 1::2]) and not np.array_equal(sin, 0 * sin))


def _first_half(rows: Rows) -> Rows:
    half = rows.shape[1] // 2
    return rows[:, :half] if np.array_equal(rows[:, :half], rows[:, half:]) else rows
