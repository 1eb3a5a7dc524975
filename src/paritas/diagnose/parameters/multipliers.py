"""Vectors that an activation is multiplied by, and that the graph has not: found by what doubles if they do."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.audit.finding import layer_of
from paritas.audit.sites import PROJECTIONS
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.slots import Slot

Rows = NDArray[np.float32]
_IDS = np.array([[3, 5, 2, 7]], np.int64)
_CLOSE = 1e-6


def is_used(case: Case, tensor: str) -> bool:
    """Whether the reference computes with a tensor: a checkpoint may have some that its configuration turns off."""
    values = _values(case, tensor)
    right, _ = case.live.forward(_IDS)
    with case.live.holding(tensor, 2 * values + 1):
        other, _ = case.live.forward(_IDS)
    return not np.array_equal(right, other)


def multiplier_difference(case: Case, tensor: str) -> Difference | None:
    """A vector that is nowhere in the graph, if a projection takes what is multiplied by it; else None."""
    values = _values(case, tensor)
    slots = _takers(case, tensor, values)
    if not slots:
        return None

    def repairs(edit: Edit) -> None:
        for slot in slots:
            node, place = slot.use.node, 1 - slot.use.place
            scaled = edit.insert_node("Mul", [edit.node(node.output[0]).input[place], _stored(edit, tensor, values)])
            edit.replace_input(node.output[0], place, scaled, f"what it took, multiplied by {tensor}")

    return Difference(
        parameter="multiplier",
        where=tensor,
        layer=layer_of(tensor),
        package=None,
        reference=values,
        fact="is nowhere in the graph: nothing is multiplied by it",
        breaks=lambda: case.live.holding(tensor, np.ones_like(values)),
        repairs=repairs,
        facts={"origin": tensor.rpartition(".")[2]},
    )


def _values(case: Case, tensor: str) -> Rows:
    source = case.identity.sources[tensor]
    return source.read(0, source.rows) if source.values is None else source.values.reshape(source.shape)


def _stored(edit: Edit, tensor: str, values: Rows) -> str:
    return edit.once(tensor, lambda: edit.add_initializer(tensor, values))


def _takers(case: Case, tensor: str, values: Rows) -> list[Slot]:
    """The places of projections of the layer that take twice as much if the vector is twice as large."""
    found = [
        slot
        for slot in case.slots
        if slot.layer == layer_of(tensor) and slot.tensor.endswith(".weight") and slot.use.node.op_type in PROJECTIONS
    ]
    modules = {slot.tensor: case.live.module(slot.tensor.rpartition(".")[0]) for slot in found}
    right = _taken(case, modules)
    with case.live.holding(tensor, 2 * values):
        other = _taken(case, modules)
    return [
        slot
        for slot in found
        if slot.tensor in right
        and right[slot.tensor].shape[-1] == values.size
        and np.abs(other[slot.tensor] - 2 * right[slot.tensor]).max() <= _CLOSE * np.abs(right[slot.tensor]).max()
    ]


def _taken(case: Case, modules: Mapping[str, Any]) -> dict[str, Rows]:
    """What each module takes when it is called first."""
    heard: dict[str, Rows] = {}

    def into(name: str) -> Callable[[Any, Any], None]:
        def hook(_: Any, args: Any) -> None:
            heard.setdefault(name, args[0].float().numpy().copy())

        return hook

    with _hooked({name: (module, into(name)) for name, module in modules.items() if module is not None}):
        case.live.forward(_IDS)
    return heard


@contextmanager
def _hooked(hooks: Mapping[str, tuple[Any, Callable[[Any, Any], None]]]) -> Generator[None]:
    handles = [module.register_forward_pre_hook(hook) for module, hook in hooks.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
