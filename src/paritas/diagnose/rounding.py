"""What rounding does between two tensors of the reference: the same arithmetic in fp64, begun anew at every module.

In this pass every module that owns parameters is given what the reference gave it in fp32, and hands on what it gave
in fp32; what it computes itself is kept. So the difference of a point is made by the arithmetic since the last such
module, and by nothing before. transformers forces norms and softmax into fp32; here they are fp64 too.

What is handed on is moved by a last bit: of each number, or, where it is a product with a matrix, of the largest of its
row, since that is what such a product is right to. Where the arithmetic is ill-conditioned (the tail of an activation),
a kernel that is right to the last bit of what it is given is still right.
"""

import copy
import importlib
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.attending import Attending, attention_told, joined
from paritas.diagnose.capture import (
    KEY,
    LOGITS,
    QUERY,
    Array,
    Captured,
    Pass,
    cache_name,
    call,
    floats,
    tokens_first,
)
from paritas.errors import Invalid
from paritas.verify.loading import first_line, quiet, require_torch

Rows = NDArray[np.float64]
LAST_BIT = 2.0**-24
"""Half a unit in the last place of fp32: what one rounding may do to a number."""


LAST_BIT_OF_FP16 = 2.0**-11
Handed = Callable[[Array, bool, np.random.Generator], Array]
"""What a module is given for a captured tensor; whether that is a product with a matrix; random numbers."""


def distance(one: Array, other: Array) -> Rows:
    """Relative difference (L2) of each row to ``other``'s, both ``[tokens, features]``; infinite where not a number."""
    wanted = other.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.linalg.norm(wanted, axis=1)
        apart = np.linalg.norm(one.astype(np.float64) - wanted, axis=1)
    relative = np.divide(apart, length, out=np.where(apart > 0, np.inf, 0.0), where=length > 0)
    return np.where(np.isfinite(relative), relative, np.inf)


def rounding(model: Any, captured: Captured) -> tuple[Mapping[str, Rows], ...]:
    """Of each pass: point -> what rounding of its own arithmetic does to each token's row, relative (L2).

    A row is not given less than nine tenths of the rows show, nor less than one rounding.

    Args:
        model: in fp32, as it was captured; it is cast to fp64 and back, which loses nothing.
        captured: its tensors.

    Raises:
        Invalid: ``reference-refused``: an operator of the class has no fp64.
    """
    torch, _ = require_torch()
    model.double()
    try:
        with _plain_experts(model), _moved_buffers(model, torch), _wide(torch):
            return _again(model, captured, _moved, LAST_BIT)
    finally:
        model.float()


def rounding_in_fp16(model: Any, captured: Captured) -> tuple[Mapping[str, Rows], ...]:
    """The same for a package in fp16: what the reference's own modules do to their tensors in that type.

    Raises:
        Invalid: ``reference-refused``: an operator of the class has no fp16.
    """
    half = copy.deepcopy(model).half()
    with _plain_experts(half):
        return _again(half, captured, _halved, LAST_BIT_OF_FP16)


def _again(model: Any, captured: Captured, handed: Handed, last: float) -> tuple[Mapping[str, Rows], ...]:
    modules = {module: path for path, module in model.named_modules() if path}
    found: list[Mapping[str, Rows]] = []
    cache = None
    for one in captured.passes:
        again = _Again(modules, one, captured.weighted, handed)
        with quiet(), again.listening(model), _refusals():
            output = call(model, one.ids, cache, keep=len(captured.passes) > 1)
        cache = output[cache_name(model)] if len(captured.passes) > 1 else None
        again.hear(LOGITS, output.logits)
        found.append(_rows(one, again.heard, last))
    return tuple(found)


def _rows(one: Pass, heard: Mapping[str, Array], last: float) -> Mapping[str, Rows]:
    """The largest of all names of a tensor: it is what its maker did, and then only handed on."""
    each = {point: distance(array, one.points[point]) for point, array in heard.items() if point in one.points}
    found: dict[str, Rows] = {}
    for names in one.names.values():
        given = [each[name] for name in names if name in each]
        if given:
            most: Rows = np.max(given, axis=0)
            usual = max(float(np.quantile(most, 0.9)), last)
            for name in names:
                found[name] = np.maximum(most, usual)
    return found


class _Again:
    """Hooks of one call in another arithmetic: keep what is computed, hand on what was captured."""

    def __init__(self, modules: Mapping[Any, str], one: Pass, weighted: frozenset[str], handed: Handed) -> None:
        self.heard: dict[str, Array] = {}
        self._modules, self._pass, self._weighted = modules, one, weighted
        self._torch, _ = require_torch()
        self._handed, self._random = handed, np.random.default_rng(one.past)
        self._counts: dict[str, int] = {}
        self._running: dict[str, list[str]] = {}

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
            stack.enter_context(self._torch.inference_mode())
            yield

    def _attends(self, module: Any, call: Attending) -> None:
        path = self._modules[module]
        self.heard[path + QUERY] = joined(call.query).astype(np.float64)
        self.heard[path + KEY] = joined(call.key[:, -call.query.shape[1] :]).astype(np.float64)

    def hear(self, point: str, tensor: Any) -> None:
        first = point in self._pass.heads_first
        array = tokens_first(tensor.detach().double().numpy(), len(self._pass.ids), heads_first=first)
        if array is not None:
            self.heard[point] = array.copy()

    def _before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        path = self._modules[module]
        self._counts[path] = self._counts.get(path, 0) + 1
        name = path if self._counts[path] == 1 else f"{path}#{self._counts[path]}"
        self._running.setdefault(path, []).append(name)
        first = next(iter(floats((*args, *kwargs.values()))), None)
        if first is None:
            return None
        self.hear(f"{name}:in", first)
        if path not in self._weighted:
            return None
        given = self._captured(f"{name}:in", first, product=False)
        changed = tuple(given if value is first else value for value in args)
        return changed, {key: given if value is first else value for key, value in kwargs.items()}

    def _after(self, module: Any, _: Any, output: Any) -> Any:
        path = self._modules[module]
        name = self._running[path].pop()
        if not isinstance(output, self._torch.Tensor):
            for place, tensor in enumerate(floats(output if isinstance(output, tuple) else ())):  # pyright: ignore
                self.hear(f"{name}:out" + (f".{place}" if place else ""), tensor)
        elif output.is_floating_point():
            self.hear(f"{name}:out", output)
            if path in self._weighted:
                return self._captured(f"{name}:out", output, product=_multiplies(module))
        return None

    def _captured(self, point: str, like: Any, *, product: bool) -> Any:
        """The fp32 tensor, moved by a last bit, in the shape of ``like``; ``like`` itself where none was kept."""
        array = self._pass.points.get(point)
        if array is None or array.size != like.numel():
            return like
        tensor = self._torch.from_numpy(self._handed(array, product, self._random))
        tokens = len(self._pass.ids)
        if point in self._pass.heads_first:
            return tensor.view(like.shape[0], tokens, like.shape[1], like.shape[3]).transpose(1, 2)
        return tensor.view(like.shape)


def _moved(array: Array, product: bool, random: np.random.Generator) -> Array:
    """In fp64, a last bit of fp32 away."""
    wide = array.astype(np.float64)
    size = np.abs(wide)
    last = 2 * LAST_BIT * (size.max(axis=1, keepdims=True) if product else size)
    return wide + last * random.uniform(-1, 1, array.shape)


def _halved(array: Array, product: bool, random: np.random.Generator) -> Array:
    with np.errstate(over="ignore"):
        return array.astype(np.float16)


def _multiplies(module: Any) -> bool:
    """Whether a module's weight is a matrix that it multiplies by, rather than looks rows up in."""
    weight = getattr(module, "weight", None)
    return weight is not None and weight.ndim == 2 and not hasattr(module, "num_embeddings")


@contextmanager
def _plain_experts(model: Any) -> Generator[None]:
    """Within, experts are multiplied one after another: torch's grouped product has neither fp64 nor fp16 on a CPU."""
    before = getattr(model.config, "_experts_implementation", None)
    if before is None or not hasattr(model, "set_experts_implementation"):
        yield
        return
    model.set_experts_implementation("eager")
    try:
        yield
    finally:
        model.set_experts_implementation(before)


@contextmanager
def _moved_buffers(model: Any, torch: Any) -> Generator[None]:
    """Within, RoPE's frequencies and other stored numbers are a last bit away: exporters compute them in fp64."""
    generator = torch.Generator().manual_seed(0)
    before = [(module, dict(module._buffers)) for module in model.modules() if module._buffers]
    for module, buffers in before:
        for name, buffer in buffers.items():
            if buffer is not None and buffer.is_floating_point():
                way = 2 * torch.rand(buffer.shape, generator=generator, dtype=buffer.dtype) - 1
                module._buffers[name] = buffer * (1 + 2 * LAST_BIT * way)
    try:
        yield
    finally:
        for module, buffers in before:
            module._buffers.update(buffers)


@contextmanager
def _refusals() -> Generator[None]:
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        raise Invalid("reference-refused", f"transformers refuses another arithmetic: {first_line(error)}") from error


@contextmanager
def _wide(torch: Any) -> Generator[None]:
    """Within, a function of torch that is told of fp32 is told of fp64."""
    overrides = importlib.import_module("torch.overrides")

    class Wide(overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given: dict[str, Any] = kwargs or {}
            chosen = torch.Tensor.double if func is torch.Tensor.float else func
            return chosen(
                *(_wider(value, torch) for value in args),
                **{key: _wider(value, torch) for key, value in given.items()},
            )

    with Wide():
        yield


def _wider(value: Any, torch: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
