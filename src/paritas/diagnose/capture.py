"""The reference's own tensors: what goes into and comes out of every module, and what its attention is called with.

They are read by torch's hooks and by transformers' own registry of attention functions; nothing is patched, and the
model is as it was afterwards. Every tensor is kept as ``[tokens, features]``: one batch row, heads side by side.
"""

import inspect
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.attending import Attending, attention_told, joined
from paritas.verify.loading import quiet, require_torch

Array = NDArray[np.floating[Any]]
LOGITS = ":logits"
"""The point of what the model gives back, after all that follows its head."""
QUERY, KEY = ":query", ":key"
"""Points of what attention is called with for the new tokens, behind the path of the module that attends."""


@dataclass(frozen=True)
class Pass:
    """One forward call of the reference.

    Attributes:
        ids: the new tokens.
        past: tokens before them.
        points: ``module path:in`` and ``:out`` -> ``[tokens, features]``, in the order of the computation. A module
            that is called again has ``#2`` behind its path.
        attention: path of the module that attends -> its call.
        heads_first: points whose tensors are ``[1, heads, tokens, width]``.
    """

    ids: tuple[int, ...]
    past: int
    points: Mapping[str, Array]
    attention: Mapping[str, Attending] = field(default_factory=dict[str, Attending])
    heads_first: frozenset[str] = frozenset()

    @cached_property
    def first(self) -> Mapping[str, str]:
        """Point -> the first point with the same values: a tensor that several modules hand on has one name."""
        seen: dict[bytes, str] = {}
        return {point: seen.setdefault(_digest(array), point) for point, array in self.points.items()}

    @cached_property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """First point -> every point with the same values."""
        found: dict[str, list[str]] = {}
        for point, first in self.first.items():
            found.setdefault(first, []).append(point)
        return {first: tuple(points) for first, points in found.items()}


@dataclass(frozen=True)
class Captured:
    """A sequence, asked of the reference.

    Attributes:
        passes: the prefill, then one for each token of the decode.
        modules: path of every module that was called -> its class, in the order of the first calls.
        weighted: paths of modules that own parameters.
        embedding, head: paths of the modules at the two ends; None if the class does not tell.
        owners: shape and first row of a weight, as bytes -> path of the module that owns it, if only one does.
        layers: path of the list that the layers are in (``model.layers``); empty if there is none.
    """

    passes: tuple[Pass, ...]
    modules: Mapping[str, str]
    weighted: frozenset[str]
    embedding: str | None
    head: str | None
    owners: Mapping[tuple[tuple[int, ...], bytes], str]
    layers: str

    @property
    def prefill(self) -> Pass:
        """The first call."""
        return self.passes[0]

    @property
    def steps(self) -> tuple[Pass, ...]:
        """The calls after it, one token each."""
        return self.passes[1:]

    def layer_of(self, path: str) -> int | None:
        """Number of the layer that a module or a point is of."""
        head, found, rest = path.partition(f"{self.layers}.")
        number = rest.split(".")[0].split(":")[0].split("#")[0]
        return int(number) if self.layers and found and not head and number.isdecimal() else None


def capture(model: Any, ids: Sequence[int], prefill: int | None = None) -> Captured:
    """Ask the reference, and keep what its modules were given and gave.

    Args:
        model: transformers' model, as :func:`paritas.verify.loading.load_reference` gives it.
        ids: one sequence.
        prefill: tokens that are put at once, the others following one by one; None puts them all at once.

    Raises:
        ParitasError: ``verify-needs-torch``.
    """
    modules = {module: path for path, module in model.named_modules() if path}
    pieces = [tuple(ids)] if prefill is None else [tuple(ids[:prefill]), *((token,) for token in ids[prefill:])]
    called: list[str] = []
    passes: list[Pass] = []
    cache, past = None, 0
    for new in pieces:
        recorder, output = _recorded(model, modules, new, cache, keep=len(pieces) > 1)
        cache = output[cache_name(model)] if len(pieces) > 1 else None
        passes.append(Pass(new, past, recorder.points, recorder.attention, frozenset(recorder.heads_first)))
        called += [path for path in recorder.called if path not in called]
        past += len(new)
    weighted = frozenset(path for module, path in modules.items() if any(True for _ in module.parameters(False)))
    ends = (modules.get(model.get_input_embeddings()), modules.get(model.get_output_embeddings()))
    classes = {path: type(module).__name__ for module, path in modules.items()}
    return Captured(
        tuple(passes), {path: classes[path] for path in called}, weighted, *ends, _owners(modules), _layers(model)
    )


def _owners(modules: Mapping[Any, str]) -> dict[tuple[tuple[int, ...], bytes], str]:
    found: dict[tuple[tuple[int, ...], bytes], list[str]] = {}
    for module, path in modules.items():
        weight = getattr(module, "weight", None)
        if weight is not None and weight.ndim:
            first = weight.detach()[0] if weight.ndim > 1 else weight.detach()
            found.setdefault((tuple(weight.shape), first.float().numpy().tobytes()), []).append(path)
    return {key: paths[0] for key, paths in found.items() if len(paths) == 1}


def _recorded(
    model: Any, modules: Mapping[Any, str], ids: Sequence[int], cache: Any, keep: bool
) -> tuple["_Recorder", Any]:
    """One call. Where there are as many tokens as heads, a call with one token more tells the two apart."""
    torch, _ = require_torch()
    recorder = _Recorder(modules, len(ids))
    with torch.inference_mode(), quiet(), recorder.listening(model):
        output = call(model, ids, cache, keep)
    if recorder.unclear:
        longer = _Recorder(modules, len(ids) + 1)
        with torch.inference_mode(), quiet(), longer.listening(model):
            call(model, [*ids, ids[0]], None, False)
        recorder = _Recorder(modules, len(ids), longer.heads_first)
        with torch.inference_mode(), quiet(), recorder.listening(model):
            output = call(model, ids, cache, keep)
    recorder.keep(LOGITS, output.logits)
    return recorder, output


def call(model: Any, ids: Sequence[int], cache: Any, keep: bool) -> Any:
    """One forward call of one sequence, going on from ``cache``."""
    torch, _ = require_torch()
    arguments: dict[str, Any] = {"input_ids": torch.tensor([list(ids)]), "use_cache": keep}
    if keep:
        arguments[cache_name(model)] = cache
    return model(**arguments)


def cache_name(model: Any) -> str:
    """transformers 5.24 calls ``cache`` what was ``past_key_values``."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def tokens_first(array: Array, tokens: int, *, heads_first: bool) -> Array | None:
    """``[tokens, features]`` of one batch row; None if it is no row of so many tokens.

    Args:
        array: ``[1, tokens, ...]``, ``[tokens, ...]``, or ``[1, heads, tokens, width]``.
        tokens: how many.
        heads_first: whether it is the last.
    """
    if not array.ndim or array.shape[0] not in (1, tokens) or array.size % tokens:
        return None
    if heads_first:
        array = array.swapaxes(1, 2)
    axis = next((i for i, size in enumerate(array.shape) if size != 1), 0)
    if array.shape[axis] != tokens and tokens != 1:
        return None
    return array.reshape(tokens, -1)


HANDED_ON = 4  # tensors of one shape among which the next is looked for


class _Recorder:
    """What hooks hear during one forward call."""

    def __init__(self, modules: Mapping[Any, str], tokens: int, known: Collection[str] | None = None) -> None:
        self.heads_first: set[str] = set()
        self.unclear: set[str] = set()
        self._known = known
        self.points: dict[str, Array] = {}
        self.attention: dict[str, Attending] = {}
        self.called: list[str] = []
        self._modules, self._tokens = modules, tokens
        self._running: dict[str, list[str]] = {}
        self._recent: dict[tuple[int, ...], deque[Array]] = {}

    @contextmanager
    def listening(self, model: Any) -> Generator[None]:
        with ExitStack() as stack:
            for module in self._modules:
                for handle in (
                    module.register_forward_pre_hook(self._before, with_kwargs=True),
                    module.register_forward_hook(self._after),
                ):
                    stack.callback(handle.remove)
            stack.enter_context(attention_told(model, self._attends))
            yield

    def keep(self, point: str, tensor: Any) -> None:
        heads_first = self._has_heads_first(point, tensor)
        array = tokens_first(tensor.detach().float().numpy(), self._tokens, heads_first=heads_first)
        if array is not None:
            self.points[point] = self._kept(array)

    def _kept(self, array: Array) -> Array:
        """A copy, since some classes clamp in place; of one that was just handed on, the same as before."""
        recent = self._recent.setdefault(array.shape, deque(maxlen=HANDED_ON))
        for known in recent:
            if np.array_equal(known, array):
                return known
        recent.append(array.copy())
        return recent[-1]

    def _has_heads_first(self, point: str, tensor: Any) -> bool:
        if tensor.ndim != 4 or tensor.shape[2] != self._tokens:
            return False
        if tensor.shape[1] == self._tokens > 1 and self._known is None:
            self.unclear.add(point)
            return False
        if tensor.shape[1] == self._tokens > 1 and point not in (self._known or ()):
            return False
        self.heads_first.add(point)
        return True

    def _before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        path = self._modules[module]
        self.called.append(path)
        count = self.called.count(path)
        name = path if count == 1 else f"{path}#{count}"
        self._running.setdefault(path, []).append(name)
        for tensor in floats((*args, *kwargs.values())):
            self.keep(f"{name}:in", tensor)
            break

    def _after(self, module: Any, _: Any, output: Any) -> None:
        name = self._running[self._modules[module]].pop()
        for place, tensor in enumerate(floats(cast(Sequence[Any], output if isinstance(output, tuple) else (output,)))):
            self.keep(f"{name}:out" + (f".{place}" if place else ""), tensor)

    def _attends(self, module: Any, call: Attending) -> None:
        path = self._modules[module]
        self.attention[path] = call
        self.points[path + QUERY] = joined(call.query).copy()
        self.points[path + KEY] = joined(call.key[:, -call.query.shape[1] :]).copy()


def floats(values: Sequence[Any]) -> Iterator[Any]:
    """The floating-point tensors among them."""
    torch, _ = require_torch()
    yield from (value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point())


def _digest(array: Array) -> bytes:
    return blake2b(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes()).digest()


def _layers(model: Any) -> str:
    """The longest list of modules of one class: the layers."""
    torch, _ = require_torch()
    lists = [(len(m), path) for path, m in model.named_modules() if isinstance(m, torch.nn.ModuleList)]
    return max(lists, default=(0, ""), key=lambda each: (each[0], -len(each[1])))[1]
