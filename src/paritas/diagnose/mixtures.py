"""The live reference's mixtures of experts: where they are, what they compute with, the same in our arithmetic."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.activations import library
from paritas.diagnose.case import Case
from paritas.diagnose.routing import Rule
from paritas.verify.loading import require_torch

Rows = NDArray[np.float32]
PARTS = ("gate_proj", "up_proj", "down_proj")
_TOKENS = 24
_CLOSE = 1e-4


@dataclass(frozen=True)
class Gating:
    """What an expert does with what its two projections give.

    Attributes:
        activation: a word of :func:`paritas.diagnose.activations.library`, or ``clamped``: gpt-oss's
            ``(up + 1) * gate * sigmoid(alpha * gate)``, both held within ``limit``.
        alpha, limit: of the clamped one.
        exchanged: whether gate and up have each other's place.
    """

    activation: str
    alpha: float = 0.0
    limit: float = 0.0
    exchanged: bool = False

    def __str__(self) -> str:
        own = f"alpha {self.alpha:g}, limit {self.limit:g}" if self.activation == "clamped" else self.activation
        return f"{own} of {'up, times gate' if self.exchanged else 'gate, times up'}"

    def __call__(self, gate: Any, up: Any) -> Any:
        """Of torch values."""
        torch, _ = require_torch()
        if self.exchanged:
            gate, up = up, gate
        if self.activation != "clamped":
            return library()[self.activation](gate) * up
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * gate * torch.sigmoid(self.alpha * gate)


Held = Mapping[tuple[int, str], Rows]
"""(expert, ``gate_proj.weight``) -> what it holds, as a checkpoint would."""


@dataclass(frozen=True)
class Mixture:
    """One mixture of the reference, and what it was given and gave in a pass.

    Attributes:
        layer: its number.
        path: in the text model's words: ``model.layers.1.mlp``.
        router, experts: transformers' modules.
        parent: the module that has ``experts``.
        held: weights and biases of every expert.
        gating: of every expert.
        x: what it takes, ``[tokens, hidden]``.
        scores: of the router, ``[tokens, experts]``.
        weights: of each expert, ``[tokens, experts]``.
        shared: what the shared expert gives, and the number a token it is multiplied by, before the sigmoid.
    """

    layer: int
    path: str
    router: Any
    experts: Any
    parent: Any
    held: Held
    gating: Gating
    x: Rows
    scores: Rows
    weights: Rows
    shared: tuple[Rows, Rows] | None

    @property
    def count(self) -> int:
        """Experts."""
        return self.scores.shape[1]

    def basis(self, held: Held, gating: Gating, x: Rows) -> Rows:
        """What each expert gives, ``[experts, tokens, hidden]``."""
        torch, _ = require_torch()
        given = torch.from_numpy(x)
        with torch.inference_mode():
            return np.stack([_expert(held, gating, given, each).numpy() for each in range(self.count)])

    def shared_of(self, x: Rows) -> Rows | None:
        """What the shared expert gives, ``[tokens, hidden]``, before it is multiplied; None if there is none."""
        if self.shared is None:
            return None
        torch, _ = require_torch()
        with torch.inference_mode():
            return self.parent.shared_expert(torch.from_numpy(x)).float().numpy()

    @contextmanager
    def computing(self, held: Held | None = None, gating: Gating | None = None) -> Generator[None]:
        """Within, the experts hold other weights, or combine them otherwise."""
        torch, _ = require_torch()
        now = self.parent.experts
        was = getattr(now, "standing", (self.held, self.gating))
        new_held, new_gating = {**was[0], **(held or {})}, gating or was[1]

        class Experts(torch.nn.Module):
            standing = (new_held, new_gating)

            def forward(self, x: Any, chosen: Any, weights: Any) -> Any:
                total = torch.zeros_like(x)
                for expert in chosen.unique().tolist():
                    token, place = torch.where(chosen == expert)
                    made = _expert(new_held, new_gating, x[token], expert)
                    total.index_add_(0, token, made * weights[token, place, None])
                return total

        self.parent.experts = Experts()
        try:
            yield
        finally:
            self.parent.experts = now

    @contextmanager
    def routing(self, rule: Rule) -> Generator[None]:
        """Within, scores become weights by another rule."""
        torch, _ = require_torch()

        def hook(_: Any, args: Any, out: tuple[Any, ...]) -> tuple[Any, ...]:
            scores = out[0].reshape(-1, self.count).double().numpy()
            chosen = rule.experts(scores)
            weights = np.take_along_axis(rule.weights(scores), chosen, 1)
            return out[0], torch.from_numpy(weights).to(out[1].dtype), torch.from_numpy(chosen)

        handle = self.router.register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()


def _expert(held: Held, gating: Gating, x: Any, number: int) -> Any:
    torch, _ = require_torch()

    def projected(values: Any, part: str) -> Any:
        weight, bias = held[number, f"{part}.weight"], held.get((number, f"{part}.bias"))
        weights = torch.from_numpy(np.array(weight, np.float32))
        offsets = None if bias is None else torch.from_numpy(np.array(bias, np.float32).reshape(-1))
        return torch.nn.functional.linear(values, weights, offsets)

    return projected(gating(projected(x, "gate_proj"), projected(x, "up_proj")), "down_proj")


@dataclass
class _Heard:
    """What one mixture's modules gave in a pass."""

    router: list[Any] = field(default_factory=list[Any])
    experts: list[Any] = field(default_factory=list[Any])
    shared: list[Any] = field(default_factory=list[Any])
    share: list[Any] = field(default_factory=list[Any])


def mixtures(case: Case) -> Iterator[Mixture]:
    """Every mixture of which our arithmetic gives what the reference gives."""
    live = case.live
    for layer, whole in enumerate(live.layers):
        parent = next((m for m in whole.modules() if hasattr(m, "experts") and _router(m) is not None), None)
        path = f"model.layers.{layer}.mlp"
        held = _held(case, path)
        if parent is None or not held:
            continue
        heard = _listened(case, parent)
        found = _mixture(layer, path, parent, held, heard) if heard is not None else None
        if found is not None:
            yield found


def _router(parent: Any) -> Any | None:
    return next((getattr(parent, name) for name in ("gate", "router") if hasattr(parent, name)), None)


def _held(case: Case, path: str) -> dict[tuple[int, str], Rows]:
    found: dict[tuple[int, str], Rows] = {}
    for name, source in case.identity.sources.items():
        if name.startswith(f"{path}.experts."):
            number, _, part = name.removeprefix(f"{path}.experts.").partition(".")
            if number.isdecimal() and part.partition(".")[0] in PARTS:
                values = source.read(0, source.rows) if source.values is None else source.values
                found[int(number), part] = np.asarray(values, np.float32)
    return found


def _listened(case: Case, parent: Any) -> _Heard | None:
    heard, handles = _Heard(), list[Any]()

    def into(where: list[Any]) -> Callable[[Any, Any, Any], None]:
        return lambda _, args, out: where.append((args[0], out))

    for name, where in (("experts", heard.experts), ("shared_expert", heard.shared)):
        if hasattr(parent, name):
            handles.append(getattr(parent, name).register_forward_hook(into(where)))
    router: Any = _router(parent)
    handles.append(router.register_forward_hook(into(heard.router)))
    if hasattr(parent, "shared_expert_gate"):
        handles.append(parent.shared_expert_gate.register_forward_hook(into(heard.share)))
    words = min(int(case.live.model.get_input_embeddings().weight.shape[0]), 1 << 15)
    ids = np.random.default_rng(5).integers(3, words, (1, _TOKENS))
    try:
        case.live.forward(ids)
    finally:
        for handle in handles:
            handle.remove()
    is_usual = heard.experts and heard.router and isinstance(heard.router[0][1], tuple) and len(heard.router[0][1]) == 3
    return heard if is_usual else None


def _mixture(layer: int, path: str, parent: Any, held: Held, heard: _Heard) -> Mixture | None:
    (x, given), (_, (scores, weights, chosen)) = heard.experts[0], heard.router[0]
    by_token = np.zeros(tuple(scores.shape), np.float32)
    np.put_along_axis(by_token, chosen.numpy(), weights.float().numpy(), 1)
    shared = None
    if heard.shared and heard.share:
        shared = (heard.shared[0][1].float().numpy(), heard.share[0][1].float().numpy().reshape(-1))
    found = Mixture(
        layer,
        path,
        _router(parent),
        parent.experts,
        parent,
        held,
        Gating("silu"),
        x.float().numpy(),
        scores.float().numpy(),
        by_token,
        shared,
    )
    wanted = given.float().numpy()
    for gating in _gatings(parent.experts):
        made = np.einsum("te,eth->th", by_token, found.basis(held, gating, found.x))
        if np.abs(made - wanted).max() <= _CLOSE * np.abs(wanted).max():
            return replace(found, gating=gating)
    return None


def _gatings(experts: Any) -> Iterator[Gating]:
    alpha, limit = getattr(experts, "alpha", None), getattr(experts, "limit", None)
    if isinstance(alpha, float) and isinstance(limit, float):
        yield Gating("clamped", alpha, limit)
    for word in library():
        yield Gating(word)
