"""Tensors of the checkpoint that have no place in the graph: a missing bias, a missing norm of queries and keys."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.audit.finding import layer_of
from paritas.diagnose.asked_norms import epsilon_of, subtracts_mean
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit, RefusedError
from paritas.diagnose.parameters.multipliers import is_used, multiplier_difference
from paritas.diagnose.parameters.weights import reference_offset
from paritas.diagnose.reading import wiring
from paritas.diagnose.slices import has_rows_of
from paritas.diagnose.slots import Slot
from paritas.diagnose.subgraphs import head_norm, layer_norm, rms_norm
from paritas.runtime.quantized import quantized

Rows = NDArray[np.float32]
_SINK = 11  # input of GroupQueryAttention
_MATRIX = 2  # axes; what has more is a stack of them, of which no slot is made
_FAR_BELOW = -1e4  # a score of which the softmax makes nothing


def absent_differences(case: Case) -> Iterator[Difference]:
    """Every tensor that the reference computes with and the graph does not."""
    there = {slot.tensor for slot in case.slots} | {slot.held for slot in case.slots}
    whole = [each for each in case.identity.initializers if each.quantized or len(each.shape) > _MATRIX]
    there |= {name for record in whole for name in record.tensors}
    strange = _unplaced_integers(case)
    absent = [tensor for tensor in case.identity.sources if tensor not in there]  # single numbers have no identity
    owned = [(tensor, owner[0]) for tensor in absent if (owner := case.live.owner(tensor)) is not None]
    computing = _computing(case) if owned else set[int]()
    for tensor, module in owned:
        if id(module) not in computing or any(has_rows_of(part, case.identity.sources[tensor]) for part in strange):
            continue
        path, _, name = tensor.rpartition(".")
        if name == "bias":
            yield _bias(case, tensor, path)
        elif name == "sinks":
            yield _sinks(case, tensor)
        elif name == "weight" and path.endswith(("q_norm", "k_norm")):
            yield _norm(case, tensor, path)
        elif name == "weight" and "norm" in path.rpartition(".")[2]:
            yield _missing_norm(case, tensor, path)
        elif is_used(case, tensor):
            yield multiplier_difference(case, tensor) or _nowhere(case, tensor, None)


def _unplaced_integers(case: Case) -> list[Rows]:
    """What weights of integers stand for that no place is known of: parts of a tensor whose rows alternate."""
    placed = {slot.use.record.name for slot in case.slots}
    weights = quantized(case.shipped.nodes, case.shipped.tensors)
    return [weight.read(0, weight.rows)[0] for name, weight in weights.items() if name not in placed]


def _computing(case: Case) -> set[int]:
    """Ids of the reference's modules that text goes through: a tower for images or sound has no place in the graph.

    What is in a layer of the decoder counts, an expert too that nobody chose.
    """
    found = {id(module) for layer in case.live.layers for module in layer.modules()}

    def runs(module: Any, *_: Any) -> None:
        found.add(id(module))

    with ExitStack() as stack:
        for module in case.live.model.modules():
            stack.callback(module.register_forward_hook(runs).remove)
        case.live.forward(np.array([[1, 2, 3]], np.int64))
    return found


def _values(case: Case, tensor: str) -> Rows:
    values = case.identity.sources[tensor].values
    assert values is not None
    return values


def _nowhere(case: Case, tensor: str, slot: Slot | None) -> Difference:
    return Difference(
        parameter="weight",
        where=tensor,
        layer=layer_of(tensor),
        package=None,
        reference=None,
        fact="is nowhere in the graph",
        breaks=None,
        repairs=None,
        facts={"likeness": "absent", "is_norm": "norm" in tensor, "held": tensor, "offset": 0.0},
    )


def _bias(case: Case, tensor: str, path: str) -> Difference:
    values = _values(case, tensor)
    slot = next((slot for slot in case.slots if slot.tensor == f"{path}.weight"), None)
    return Difference(
        parameter="bias",
        where=tensor,
        layer=layer_of(tensor),
        package=None,
        reference=values,
        fact="is nowhere in the graph",
        breaks=lambda: case.live.holding(tensor, 0 * values),
        repairs=None if slot is None else lambda edit: _add_bias(edit, case, slot, values, tensor),
        facts={"module": path.rpartition(".")[2]},
    )


def _add_bias(edit: Edit, case: Case, slot: Slot, values: Rows, tensor: str) -> None:
    """After the projection; of a packed one, zeros for the others."""
    output = slot.use.node.output[0]
    rows = max(other.stop for other in case.slots if other.use.node is slot.use.node)
    whole = np.zeros(rows, np.float32)
    whole[slot.start : slot.stop] = values
    added = edit.insert_node("Add", [output, edit.add_initializer(tensor, whole)])
    edit.redirect(output, added, f"Add of {tensor} after {slot.use.node.op_type} {output}: inserted")


def _sinks(case: Case, tensor: str) -> Difference:
    """Numbers that take part in the softmax and in nothing else: without them it is as if they were far below all."""
    values, layer = _values(case, tensor), layer_of(tensor)
    site = None if layer is None else case.site(layer)
    is_grouped = site is not None and site.operator == "GroupQueryAttention"

    def repairs(edit: Edit) -> None:
        assert site is not None
        edit.replace_input(site.node.output[0], _SINK, edit.add_initializer(tensor, values), tensor)

    return Difference(
        parameter="attention-sinks",
        where=tensor,
        layer=layer,
        package=None,
        reference=values,
        fact="is nowhere in the graph",
        breaks=lambda: case.live.holding(tensor, np.full_like(values, _FAR_BELOW)),
        repairs=repairs if is_grouped else None,
    )


def _missing_norm(case: Case, tensor: str, path: str) -> Difference:
    """A norm between two modules that the graph joins directly."""
    module: Any = case.live.module(path)
    weight = _values(case, tensor) + np.float32(reference_offset(case.live, tensor))
    held = next((name for name in (f"{path}.bias",) if name in case.tensors), None)
    bias = None if held is None else _values(case, held)

    def normed(edit: Edit, value: str) -> str:
        epsilon = epsilon_of(module, len(weight)) or 0.0
        if subtracts_mean(module, len(weight)):
            return layer_norm(edit, value, weight, bias, epsilon)
        return rms_norm(edit, value, weight, epsilon)

    def repairs(edit: Edit) -> None:
        beside = wiring(case.live, module)
        before, after = _slots_of(case, beside.before), _slots_of(case, beside.after)
        if before:
            output = before[0].use.node.output[0]
            edit.redirect(output, normed(edit, output), f"{path} after {output}: inserted")
        elif after:
            value = after[0].use.node.input[1 - after[0].use.place]
            made = normed(edit, value)
            for slot in after:
                node = slot.use.node
                edit.replace_input(node.output[0], 1 - slot.use.place, made, f"{path} of {value}")
        else:
            raise RefusedError(f"nothing of the graph is known on either side of {path}")

    return Difference(
        parameter="norm",
        where=tensor,
        layer=layer_of(tensor),
        package=None,
        reference=weight,
        fact="is nowhere in the graph",
        breaks=lambda: case.live.replacing(path, lambda _: case.live.identity()),
        repairs=repairs,
    )


def _slots_of(case: Case, modules: tuple[Any, ...]) -> list[Slot]:
    return [
        slot
        for slot in case.slots
        if slot.tensor.endswith(".weight")
        and any(case.live.module(slot.tensor.rpartition(".")[0]) is module for module in modules)
    ]


def _norm(case: Case, tensor: str, path: str) -> Difference:
    layer = layer_of(tensor)
    module: Any = case.live.module(path)
    weight = _values(case, tensor) + np.float32(reference_offset(case.live, tensor))
    epsilon = next((getattr(module, n) for n in ("eps", "variance_epsilon") if hasattr(module, n)), 1e-6)
    site = None if layer is None else case.site(layer)
    place = 0 if path.endswith("q_norm") else 1

    def repairs(edit: Edit) -> None:
        assert site is not None
        before = edit.node(site.node.output[0]).input[place]
        trail = site.q if place == 0 else site.k
        rotary = trail.rotary if trail is not None else None
        if rotary is not None:
            node = edit.node(rotary.output[0])
            normed = head_norm(edit, node.input[0], weight, epsilon)
            edit.replace_input(rotary.output[0], 0, normed, f"{path}: inserted")
        else:
            normed = head_norm(edit, before, weight, epsilon)
            edit.replace_input(site.node.output[0], place, normed, f"{path}: inserted")

    return Difference(
        parameter="qk-norm",
        where=tensor,
        layer=layer,
        package=None,
        reference=weight,
        fact="is nowhere in the graph",
        breaks=lambda: case.live.replacing(path, lambda _: case.live.identity()),
        repairs=repairs if site is not None else None,
    )
