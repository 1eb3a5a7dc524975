"""What each module of the reference takes, as a sum: the layer's input and outputs of modules, each times a number.

Nobody says it; it is seen in one pass. A residual stream, a norm in its place and a branch's multiplier are all such
sums, so a graph that wires something else shows in them, whatever it is.
"""

import itertools
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.live import Live

Rows = NDArray[np.float64]
Sum = Mapping[str, float]
"""Name -> factor: ``model.layers.1.in`` is what a layer takes, a module's path what it gives."""

_IDS = np.array([[3, 5, 2, 7, 4, 6, 9, 1]], np.int64)
_MOST = 4  # terms of a sum: the stream, attention, MLP and a per-layer input
_CLOSE = 1e-6
"""Relative to the terms of each number: a few roundings in fp32, and a factor's own."""


@dataclass
class Streams:
    """One pass of the reference, in the order of its computation.

    Attributes:
        sums: who takes it -> the sum: a module's path, or ``model.layers.1.in``.
        order: names in the order in which they are there.
        taken: who takes it -> what, ``[tokens, features]``.
        there: name -> tensor, ``[tokens, features]``.
    """

    sums: dict[str, Sum] = field(default_factory=dict[str, Sum])
    order: list[str] = field(default_factory=list[str])
    taken: dict[str, Rows] = field(default_factory=dict[str, Rows])
    there: dict[str, Rows] = field(default_factory=dict[str, Rows])

    def makes(self, name: str, total: Sum) -> bool:
        """Whether a sum of the reference's tensors is what it has ``name`` take, but for rounding."""
        terms = [self.there[each] * factor for each, factor in total.items() if each in self.there]
        return len(terms) == len(total) > 0 and _is_sum(terms, self.taken[name])


def entry(layer: int) -> str:
    """The name of what a layer takes."""
    return f"model.layers.{layer}.in"


def streams(live: Live, paths: Sequence[str], final: str, head: str) -> Streams:
    """Of every module whose input is as wide as the stream.

    Args:
        live: the reference.
        paths: of modules with weights, in the text model's names.
        final: path of the last norm.
        head: path of the head.
    """
    found, heard = Streams(), _Heard(live, [*paths, *(path for path in (final, head) if path not in paths)])
    with heard.listening():
        live.forward(_IDS)
    known: dict[str, Rows] = {}
    for name, taken, given in heard.events:
        if name not in found.taken:  # of a module that is called twice in a layer, the first call
            found.sums[name] = _sum(known, taken)
            found.taken[name] = taken
        if given is None:
            known = {name: taken}
        elif given.shape[1] == next(iter(known.values()), given).shape[1]:  # layers may take several streams
            known.setdefault(name, given)
        found.there |= {each: rows for each, rows in known.items() if each not in found.there}
        found.order.append(name)
    return found


def _sum(known: Mapping[str, Rows], wanted: Rows) -> Sum:
    """As few of the known tensors as make ``wanted``, the earlier ones first; empty if none do."""
    same = {name: rows for name, rows in known.items() if rows.shape == wanted.shape}
    for count in range(1, _MOST + 1):
        for names in itertools.combinations(same, count):
            columns = np.stack([same[name].ravel() for name in names], axis=1)
            factors, *_ = np.linalg.lstsq(columns, wanted.ravel(), rcond=None)
            told = [_told(float(factor)) for factor in factors]
            if _is_sum([same[name] * factor for name, factor in zip(names, told, strict=True)], wanted):
                return dict(zip(names, told, strict=True))
    return {}


def _is_sum(terms: Sequence[Rows], wanted: Rows) -> bool:
    """Whether each number is the sum, but for what rounding of that very sum explains."""
    if any(term.shape != wanted.shape for term in terms):
        return False
    apart = np.abs(np.sum(terms, axis=0) - wanted)
    return bool((apart <= _CLOSE * np.sum(np.abs(terms), axis=0)).all())


def _told(factor: float) -> float:
    """A whole number or a weight in bf16, where it is one but for rounding; else the digits that fp32 tells."""
    if abs(factor - round(factor)) < 1e-4:
        return float(round(factor))
    short = float(np.asarray(factor, ml_dtypes.bfloat16))
    return short if abs(factor - short) < _CLOSE * abs(factor) else float(f"{factor:.7g}")


class _Heard:
    """What layers take, and what modules take and give, in one pass."""

    def __init__(self, live: Live, paths: Sequence[str]) -> None:
        self._live, self._paths = live, paths
        self.events: list[tuple[str, Rows, Rows | None]] = []

    @contextmanager
    def listening(self) -> Generator[None]:
        with ExitStack() as stack:
            for index, layer in enumerate(self._live.layers):
                stack.callback(layer.register_forward_pre_hook(self._enters(index), with_kwargs=True).remove)
                own = {id(self._live.module(path)) for path in self._paths}
                for name, module in layer.named_modules():
                    if name and id(module) not in own and not _is_inner(module):
                        path = f"model.layers.{index}.{name}"
                        stack.callback(module.register_forward_hook(self._gives(path), with_kwargs=True).remove)
            for path in self._paths:
                if (module := self._live.module(path)) is not None:
                    stack.callback(module.register_forward_hook(self._gives(path), with_kwargs=True).remove)
            yield

    def _enters(self, index: int) -> Any:
        def hook(_: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            self.events.append((entry(index), _rows(args[0] if args else options["hidden_states"]), None))

        return hook

    def _gives(self, path: str) -> Any:
        def hook(_: Any, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> None:
            taken: Any = args[0] if args else options.get("hidden_states")
            first = cast(Any, out)[0] if isinstance(out, tuple) else out
            if hasattr(taken, "is_floating_point") and taken.is_floating_point() and hasattr(first, "shape"):
                self.events.append((path, _rows(taken), _rows(first)))

        return hook


def _is_inner(module: Any) -> bool:
    """Whether it only hands its input to an activation, or holds a list."""
    return type(module).__name__ in ("ModuleList", "Identity", "Dropout") or "Activation" in type(module).__name__


def _rows(tensor: Any) -> Rows:
    values: Rows = tensor.detach().double().numpy()
    return values.reshape(-1, values.shape[-1])
