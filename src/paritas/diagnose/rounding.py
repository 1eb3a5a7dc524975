"""What rounding does between two tensors of the reference: the same arithmetic in fp64, begun anew at every module.

In this pass every module that owns parameters is given what the reference gave it in fp32, and hands on what it gave
in fp32; what it computes itself is kept. So the difference of a point is made by the arithmetic since the last such
module, and by nothing before. transformers forces norms and softmax into fp32; here they are fp64 too.

What is handed on is moved by a last bit: of each number, or, where it is a product with a matrix, of the largest of its
row, since that is what such a product is right to. Where the arithmetic is ill-conditioned (the tail of an activation),
a kernel that is right to the last bit of what it is given is still right.
"""

import importlib
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.capture import (
    KEY,
    LOGITS,
    QUERY,
    Array,
    Attending,
    Captured,
    Pass,
    attention_told,
    cache_name,
    call,
    floats,
    joined,
    tokens_first,
)
from paritas.verify.loading import quiet, require_torch

Rows = NDArray[np.float64]
LAST_BIT = 2.0**-24
"""Half a unit in the last place of fp32: what one rounding may do to a number."""


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
        RuntimeError: of torch, where an operator of the class has no fp64.
    """
    modules = {module: path for path, module in model.named_modules() if path}
    found: list[Mapping[str, Rows]] = []
    model.double()
    try:
        cache = None
        for one in captured.passes:
            again = _Again(modules, one, captured.weighted)
            with quiet(), again.listening(model):
                output = call(model, one.ids, cache, keep=len(captured.passes) > 1)
            cache = output[cache_name(model)] if len(captured.passes) > 1 else None
            again.hear(LOGITS, output.logits)
            found.append(_rows(one, again.heard))
    finally:
        model.float()
    return tuple(found)


def _rows(one: Pass, heard: Mapping[str, Array]) -> Mapping[str, Rows]:
    """The largest of all names of a tensor: it is what its maker did, and then only handed on."""
    each = {point: distance(array, one.points[point]) for point, array in heard.items() if point in one.points}
    found: dict[str, Rows] = {}
    for names in one.names.values():
        given = [each[name] for name in names if name in each]
        if given:
            most: Rows = np.max(given, axis=0)
            usual = max(float(np.quantile(most, 0.9)), LAST_BIT)
            for name in names:
                found[name] = np.maximum(most, usual)
    return found


class _Again:
    """Hooks of one fp64 call: keep what is computed, hand on what was captured."""

    def __init__(self, modules: Mapping[Any, str], one: Pass, weighted: frozenset[str]) -> None:
        self.heard: dict[str, Array] = {}
        self._modules, self._pass, self._weighted = modules, one, weighted
        self._torch, _ = require_torch()
        self._random = np.random.default_rng(one.past)
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
            stack.enter_context(_wide(self._torch))
            yield

    def _attends(self, module: Any, call: Attending) -> None:
        path = self._modules[module]
        self.heard[path + QUERY] = joined(call.query)
        self.heard[path + KEY] = joined(call.key[:, -call.query.shape[1] :])

    def hear(self, point: str, tensor: Any) -> None:
        array = tokens_first(tensor.detach().numpy(), len(self._pass.ids))
        if array is not None:
            self.heard[point] = array

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
        if isinstance(output, self._torch.Tensor) and output.is_floating_point():
            self.hear(f"{name}:out", output)
            if path in self._weighted:
                return self._captured(f"{name}:out", output, product=_multiplies(module))
        return None

    def _captured(self, point: str, like: Any, *, product: bool) -> Any:
        """The fp32 tensor, moved by a last bit, in the shape of ``like``; ``like`` itself where none was kept."""
        array = self._pass.points.get(point)
        if array is None or array.size != like.numel():
            return like
        tensor = self._torch.from_numpy(self._moved(array.astype(np.float64), product))
        tokens = len(self._pass.ids)
        if like.ndim == 4 and like.shape[2] == tokens != like.shape[1]:
            return tensor.view(like.shape[0], tokens, like.shape[1], like.shape[3]).transpose(1, 2)
        return tensor.view(like.shape)

    def _moved(self, array: Rows, product: bool) -> Rows:
        size = np.abs(array)
        last = 2 * LAST_BIT * (size.max(axis=1, keepdims=True) if product else size)
        return array + last * self._random.uniform(-1, 1, array.shape)


def _multiplies(module: Any) -> bool:
    """Whether a module's weight is a matrix that it multiplies by, rather than looks rows up in."""
    weight = getattr(module, "weight", None)
    return weight is not None and weight.ndim == 2 and not hasattr(module, "num_embeddings")


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
