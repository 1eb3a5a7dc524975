"""Numbers of the live reference outside of its attention, read by asking it, not by the names of its settings."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.live import Live
from paritas.verify.loading import require_torch

_IDS = np.array([[3, 5, 2, 7]], np.int64)
_ACTIVATIONS = ("act_fn", "activation_fn", "act", "activation")


def embedding_scale(live: Live) -> float | None:
    """What the embedding is multiplied by before the first layer; None if something else is done to it too."""
    torch, _ = require_torch()
    seen: list[Any] = []

    def look(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        seen.append(args[0] if args else options["hidden_states"])

    handle = live.layers[0].register_forward_pre_hook(look, with_kwargs=True)
    try:
        live.forward(_IDS)
    finally:
        handle.remove()
    rows = live.model.get_input_embeddings().weight.detach()[torch.from_numpy(_IDS)].double()
    given = seen[0].double()
    if rows.shape != given.shape:
        return None
    factor = float((rows * given).sum() / (rows * rows).sum())
    buffer = getattr(live.model.get_input_embeddings(), "embed_scale", None)
    if buffer is not None and abs(float(buffer) / factor - 1) < 1e-6:
        factor = float(buffer)
    elif abs(factor - 1) < 1e-6:
        factor = 1.0
    return factor if bool((given - factor * rows).abs().max() <= 1e-5 * given.abs().max()) else None


@contextmanager
def scaling_embedding(live: Live, value: float, was: float) -> Generator[None]:
    """Within, the embedding is multiplied by ``value``, where it is multiplied by ``was``."""
    torch, _ = require_torch()
    embedding = live.model.get_input_embeddings()
    buffer = getattr(embedding, "embed_scale", None)
    if buffer is not None and abs(float(buffer) / was - 1) < 1e-6:
        with live.set(embedding, "embed_scale", torch.tensor(value, dtype=torch.float32)):
            yield
        return
    with live.changing(embedding, lambda out: (out.double() * (value / was)).to(out.dtype)):
        yield


def activation(live: Live, layer: int) -> tuple[Any, str, Callable[[Any], Any]] | None:
    """The module of a layer's MLP that has an activation, what it calls it, and the function; None if there is none."""
    whole = live.layers[layer]
    inner = [module for module in whole.modules() if module is not whole]
    return next((found for module in (*inner, whole) if (found := activation_of(module)) is not None), None)


def activation_of(module: Any) -> tuple[Any, str, Callable[[Any], Any]] | None:
    """The same of one module."""
    is_attention = "attention" in type(module).__name__.lower()
    functions = ((name, getattr(module, name, None)) for name in _ACTIVATIONS)
    return next(((module, name, each) for name, each in functions if callable(each) and not is_attention), None)


@contextmanager
def activating(live: Live, module: Any, name: str, function: Callable[[Any], Any]) -> Generator[None]:
    """Within, a module has another activation."""
    torch, _ = require_torch()

    class Activation(torch.nn.Module):
        def forward(self, values: Any) -> Any:
            return function(values)

    with live.set(module, name, Activation()):
        yield


@dataclass(frozen=True)
class Wiring:
    """Modules beside one module of the reference.

    Attributes:
        before: those that give what it takes.
        after: those that take what it gives.
    """

    before: tuple[Any, ...]
    after: tuple[Any, ...]


def wiring(live: Live, module: Any) -> Wiring:
    """What a module lies between, seen in a pass: the very tensors are the same."""
    calls: list[tuple[Any, Any, Any]] = []

    def hook(each: Any, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> None:
        given = args[0] if args else options.get("hidden_states")
        calls.append((each, given, cast(Any, out)[0] if isinstance(out, tuple) else out))

    handles = [each.register_forward_hook(hook, with_kwargs=True) for each in live.model.modules()]
    try:
        live.forward(_IDS)
    finally:
        for handle in handles:
            handle.remove()
    own = [(given, out) for each, given, out in calls if each is module]
    if not own or own[0][0] is None:
        return Wiring((), ())
    taken, made = own[0]
    return Wiring(
        tuple(each for each, _, out in calls if out is taken and each is not module),
        tuple(each for each, given, _ in calls if given is made and each is not module),
    )


@dataclass(frozen=True)
class Head:
    """What becomes of the head's product.

    Attributes:
        factor: it is multiplied by this.
        cap: and then capped at this; None if it is not.
    """

    factor: float
    cap: float | None

    def applied(self, values: Any) -> Any:
        """Of torch values."""
        torch, _ = require_torch()
        values = values * self.factor if self.factor != 1 else values
        return values if self.cap is None else self.cap * torch.tanh(values / self.cap)


def head(live: Live) -> Head | None:
    """What the reference does to the head's product; None if it is something else."""
    product, logits = _product_and_logits(live)
    cap = getattr(live.config, "final_logit_softcapping", None)
    for capped in (cap, None):
        raw = logits if capped is None else capped * np.arctanh(np.clip(logits / capped, -1 + 1e-12, 1 - 1e-12))
        factor = float((product * raw).sum() / (product * product).sum())
        factor = 1.0 if abs(factor - 1) < 1e-4 else factor
        if np.abs(factor * product - raw).max() <= 1e-2 * np.abs(raw).max():
            return Head(factor, capped)
    return None


def products(live: Live) -> NDArray[np.float32]:
    """The head's product for a few tokens, ``[tokens, vocabulary]``."""
    product = np.asarray(_product_and_logits(live)[0], np.float32)
    return product.reshape(-1, product.shape[-1])


def _product_and_logits(live: Live) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    seen: list[Any] = []
    handle = live.model.get_output_embeddings().register_forward_hook(_into(seen))
    try:
        logits, _ = live.forward(_IDS)
    finally:
        handle.remove()
    return seen[0].double().numpy(), logits.astype(np.float64)


def _into(seen: list[Any]) -> Callable[[Any, Any, Any], None]:
    """A hook that keeps what a module gives."""

    def hook(module: Any, args: Any, out: Any) -> None:
        seen.append(out)

    return hook


class Applied(Protocol):
    """A function of the head's product."""

    def applied(self, values: Any) -> Any:
        """Of torch values."""
        ...


@contextmanager
def heading(live: Live, other: Applied) -> Generator[None]:
    """Within, the logits are made of the head's product in another way."""
    seen: list[Any] = []

    def change(module: Any, args: Any, out: Any) -> Any:
        out.logits = other.applied(seen.pop())
        return out

    one = live.model.get_output_embeddings().register_forward_hook(_into(seen))
    two = live.model.register_forward_hook(change)
    try:
        yield
    finally:
        one.remove()
        two.remove()
