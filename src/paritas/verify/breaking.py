"""Small faults of exporters, put into the reference itself: what they would do to the logits, had a package had them.

Nothing of transformers is patched. A fault is another number in the configuration, in an attribute, a buffer or a
weight of the loaded model, and is taken back.
"""

import importlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from paritas.verify.offsets import offset

Change = tuple[Any, str, Any]
"""An object, the name of its attribute, the value to put there."""

_NO_CAP = 1e6
"""``cap * tanh(x / cap)`` is x where x is a logit; some configurations refuse None."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: what is wrong, for people.
        distant: whether it needs a sequence beyond the window to show.
        within: the model has it as long as this is entered.
    """

    name: str
    distant: bool
    within: Callable[[], AbstractContextManager[None]]


def faults(model: Any, used: frozenset[int]) -> tuple[Fault, ...]:
    """Those that this model can have.

    Args:
        model: transformers' model; it is as it was whenever no fault is entered.
        used: token ids that are fed.
    """
    found = (*_windows(model), *_attributes(model), *_buffers(model), *_norm_offsets(model), *_head_row(model, used))
    return tuple(fault for fault in found if fault is not None)


def _windows(model: Any) -> Iterator[Fault | None]:
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not isinstance(window, int) or window < 2 or (kinds is not None and "sliding_attention" not in kinds):
        return
    for wrong in (window + 1, window - 1):
        yield _fault(f"a window of {wrong} for {window}", [(config, "sliding_window", wrong)], distant=True)


def _attributes(model: Any) -> Iterator[Fault | None]:
    config, modules = model.config.get_text_config(), list(model.modules())
    scales = [(module, "scaling", 1.01 * module.scaling) for module in modules if _is_number(module, "scaling")]
    yield _fault("an attention scale 1 % larger", scales)
    yield _fault("a norm's epsilon ten times larger", _epsilons(modules))
    yield _fault("GELU by its other formula", _gelus(modules))
    if getattr(config, "final_logit_softcapping", None) is not None:
        yield _fault("no cap on the logits", [(config, "final_logit_softcapping", _NO_CAP)])
    caps = [m for m in modules if getattr(m, "attn_logit_softcapping", None) is not None]
    yield _fault("no cap on the attention's scores", [(module, "attn_logit_softcapping", None) for module in caps])
    routers = [module for module in modules if isinstance(getattr(module, "norm_topk_prob", None), bool)]
    yield _fault(
        "the experts' weights normalised otherwise", [(m, "norm_topk_prob", not m.norm_topk_prob) for m in routers]
    )


def _is_number(module: Any, name: str) -> bool:
    return "attention" in type(module).__name__.lower() and isinstance(getattr(module, name, None), float)


def _epsilons(modules: Iterable[Any]) -> list[Change]:
    return [
        (module, name, 10 * getattr(module, name))
        for module in modules
        for name in ("eps", "variance_epsilon")
        if "norm" in type(module).__name__.lower() and isinstance(getattr(module, name, None), float)
    ]


def _gelus(modules: Iterable[Any]) -> list[Change]:
    """``tanh`` where it is the error function, and the other way round."""
    nn = importlib.import_module("torch.nn")
    others = {"GELUTanh": nn.GELU(), "NewGELUActivation": nn.GELU(), "GELUActivation": nn.GELU(approximate="tanh")}
    found = [(module, getattr(module, "act_fn", None)) for module in modules]
    return [(module, "act_fn", others[type(act).__name__]) for module, act in found if type(act).__name__ in others]


def _buffers(model: Any) -> Iterator[Fault | None]:
    torch = importlib.import_module("torch")
    buffers = {name: buffer for name, buffer in model.named_buffers() if buffer is not None}
    ropes = [buffer for name, buffer in buffers.items() if name.endswith("inv_freq") and buffer.ndim == 1]
    larger = [(rope, rope * 1.01 ** (-torch.arange(len(rope)) / len(rope))) for rope in ropes]
    yield _written("a RoPE base 1 % larger", larger)
    scales = [buffer for name, buffer in buffers.items() if name.endswith("embed_scale")]
    bf16 = [(scale, scale.to(torch.bfloat16).to(scale.dtype)) for scale in scales]
    yield _written("the embedding's scale rounded to bf16", bf16)
    yield _written("the embedding's scale rounded to two decimals", [(s, torch.round(s, decimals=2)) for s in scales])


def _norm_offsets(model: Any) -> Iterator[Fault | None]:
    """Norms that multiply by 1 + weight: the sum in bf16."""
    torch = importlib.import_module("torch")
    weights = [module.weight for module in model.modules() if _is_norm(module) and offset(module)]
    rounded = [(weight, (1 + weight.detach()).to(torch.bfloat16).float() - 1) for weight in weights]
    yield _written("1 + weight of the norms rounded to bf16", rounded)


def _is_norm(module: Any) -> bool:
    return "norm" in type(module).__name__.lower()


def _head_row(model: Any, used: frozenset[int]) -> Iterator[Fault | None]:
    head = model.get_output_embeddings()
    if head is None:
        return
    row = max(set(range(len(head.weight))) - used, default=None)
    if row is not None:
        yield _written("one row of the head zero", [(head.weight.detach()[row], 0 * head.weight.detach()[row])])


def _fault(name: str, changes: list[Change], *, distant: bool = False) -> Fault | None:
    return Fault(name, distant, lambda: _set(changes)) if changes else None


def _written(name: str, values: list[tuple[Any, Any]]) -> Fault | None:
    """None if the fault would change nothing."""
    differing = [(tensor.detach(), value.detach()) for tensor, value in values if bool((tensor != value).any())]
    return Fault(name, False, lambda: _filled(differing)) if differing else None


@contextmanager
def _set(changes: list[Change]) -> Generator[None]:
    before = [(thing, name, getattr(thing, name)) for thing, name, _ in changes]
    try:
        for thing, name, value in changes:
            setattr(thing, name, value)
        yield
    finally:
        for thing, name, value in before:
            setattr(thing, name, value)


@contextmanager
def _filled(values: list[tuple[Any, Any]]) -> Generator[None]:
    before = [tensor.clone() for tensor, _ in values]
    try:
        for tensor, value in values:
            tensor.copy_(value)
        yield
    finally:
        for (tensor, _), value in zip(values, before, strict=True):
            tensor.copy_(value)
