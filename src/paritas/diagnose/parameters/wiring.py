"""Wiring: the sum that each module takes, in the graph and in the reference."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import onnx

from paritas.audit.finding import layer_of
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit, RefusedError
from paritas.diagnose.rewiring import Opaque, opaque, rewired
from paritas.diagnose.streams import Sum
from paritas.diagnose.sums import Consumer, Known, known, reference

_CLOSE = 1e-4
_ALONE = {
    "SkipSimplifiedLayerNormalization": ("SimplifiedLayerNormalization", 3),
    "SkipLayerNormalization": ("LayerNormalization", 4),
}
"""Skip norm -> the norm without a sum, and where its weights end among the inputs."""


@dataclass(frozen=True)
class _Target:
    """One sum that differs.

    Attributes:
        name: who takes it: ``model.layers.1.in``, or modules.
        takers: modules that take it; none of what a layer takes.
        value: of the graph.
        got, wanted: the sums.
    """

    name: str
    takers: tuple[Consumer, ...]
    value: str
    got: Sum
    wanted: Sum


def wiring_differences(case: Case) -> Iterator[Difference]:
    """Every sum of the graph that is not the reference's."""
    wanted = reference(case)
    graph = known(case, wanted.sums)
    before: dict[str, int] = {name: at for at, name in reversed(list(enumerate(wanted.order)))}
    for target in _targets(wanted.sums, graph):
        is_same = wanted.makes(target.name, target.got) or _same(target.got, target.wanted, graph)
        if not is_same and not _is_told(target):
            yield _difference(case, graph, target, before)


def _targets(sums: Mapping[str, Sum], graph: Known) -> Iterator[_Target]:
    """Sums of which both sides are known, those that modules share together."""
    shared: dict[tuple[str, tuple[tuple[str, float], ...]], list[Consumer]] = {}
    for name, wanted in sums.items():
        if not wanted:
            continue
        if name.endswith(".in"):
            if (value := graph.value(name)) is not None and layer_of(name):
                yield _Target(name, (), value, graph.sum(value, is_entry=True), wanted)
            continue
        for consumer in graph.consumers.get(name, ())[:1]:
            shared.setdefault((consumer.value, tuple(wanted.items())), []).append(consumer)
    for (value, items), consumers in shared.items():
        name = consumers[0].path
        yield _Target(name, tuple(consumers), value, graph.sum(value), dict(items))


def _same(got: Sum, wanted: Sum, graph: Known) -> bool:
    """Equal, where values that are not known may make a module's output that is not known either."""
    placed = set(graph.names.values())
    strange = [name for name in got if name.startswith("[")]
    loose = [name for name in wanted if name not in placed]
    if bool(strange) != bool(loose) or len(loose) > 1 or len({got[name] for name in strange}) > 1:
        return False
    got = {loose[0] if name in strange else name: factor for name, factor in got.items()}
    return got.keys() == wanted.keys() and all(math.isclose(got[n], wanted[n], rel_tol=_CLOSE) for n in got)


def _is_told(target: _Target) -> bool:
    """Whether another parameter tells it: a norm that is not in the graph, a branch's multiplier."""
    return target.got.keys() == target.wanted.keys() and all(
        math.isclose(factor, target.wanted[name], rel_tol=_CLOSE) or _is_branch(name)
        for name, factor in target.got.items()
    )


def _is_branch(name: str) -> bool:
    return not name.endswith(".in") and "norm" not in name.rpartition(".")[2] and not name.startswith("[")


def _difference(case: Case, graph: Known, target: _Target, order: Mapping[str, int]) -> Difference:
    unknown = [opaque(case, graph, name) for name in target.got if name.startswith("[")]
    told = [name for each in unknown if each is not None for name in each.inputs.values()]
    told += [name for name in target.got if not name.startswith("[")]
    first = min(order.get(name, -1) for name in ([c.path for c in target.takers] or [target.name]))
    able = None not in unknown and all(order.get(name, len(order)) < first for name in told)
    strange: tuple[Opaque, ...] = tuple(each for each in unknown if each is not None)
    paths = tuple(each.path for each in target.takers)

    def breaks() -> AbstractContextManager[None]:
        return rewired(case, paths or (target.name,), target.got, strange)

    return Difference(
        parameter="wiring",
        where=_where(target),
        layer=layer_of(_where(target)),
        package=dict(target.got),
        reference=dict(target.wanted),
        fact=f"takes {_words(target.got, graph)}, in the reference {_words(target.wanted, graph)}",
        breaks=breaks if able else None,
        repairs=lambda edit: _repair(edit, graph, target),
        facts={"origin": _origin(target), "target": target.name, "norms": _norms_of(graph, target)},
    )


def _where(target: _Target) -> str:
    """The module; of what a layer takes, the one before it."""
    if not target.name.endswith(".in"):
        return target.name
    layer = layer_of(target.name) or 0
    last = [name for name in target.wanted if not name.endswith(".in")]
    return last[-1] if last else f"model.layers.{layer - 1}"


def _origin(target: _Target) -> str:
    """The sums without numbers of layers: what is the same fault in each."""
    layer = layer_of(target.name)
    parts = [f"{f:g} {name.replace(f'.{layer}', '.#')}" for name, f in sorted(target.got.items()) if name[0] != "["]
    return f"{target.name.replace(f'.{layer}', '.#', 1)}: {'; '.join(parts)}"


def _norms_of(graph: Known, target: _Target) -> Sequence[str]:
    """Norms of which a value that is not known is the output."""
    nodes = {each.node.output[0]: path for path, found in graph.consumers.items() for each in found if "norm" in path}
    return [nodes[name[1:-1]] for name in target.got if name[1:-1] in nodes]


def _words(total: Sum, graph: Known) -> str:
    def word(name: str, factor: float) -> str:
        if name.startswith("["):
            node = graph.view.maker.get(name[1:-1])
            name = f"what {node.op_type} {node.name or node.output[0]} gives" if node is not None else name[1:-1]
        return name if factor == 1 else f"{factor:.7g} x {name}"

    return " + ".join(word(*each) for each in total.items())


# Repair.


def _repair(edit: Edit, graph: Known, target: _Target) -> None:
    terms = [_term(edit, graph, name, factor) for name, factor in target.wanted.items()]
    if not target.takers:
        _give_layer(edit, graph, target, terms)
        return
    for consumer in target.takers:
        if consumer.value in graph.sums and graph.sums[consumer.value] is consumer.node:
            _normalise(edit, consumer, _added(edit, terms))
        else:
            _give(edit, graph, consumer, _added(edit, terms))


def _term(edit: Edit, graph: Known, name: str, factor: float) -> str:
    value = graph.value(name)
    if value is None:
        raise RefusedError(f"the graph has no value that is {name}")
    value = _there(edit, graph, value)
    if factor == 1:
        return value
    number = edit.once(f"factor {factor}", lambda: edit.add_initializer("factor", np.array(factor, np.float32)))
    return edit.insert_node("Mul", [value, number])


def _there(edit: Edit, graph: Known, value: str) -> str:
    """A value that other nodes may take: the sum of a skip norm is an output only if somebody wants it."""
    if value in graph.sums:
        node = edit.node(graph.sums[value].output[0])
        node.output.extend([""] * (4 - len(node.output)))
        node.output[3] = value
    return value


def _added(edit: Edit, terms: Sequence[str]) -> str:
    total, *rest = terms
    for term in rest:
        total = edit.insert_node("Add", [total, term])
    return total


def _normalise(edit: Edit, consumer: Consumer, new: str) -> None:
    """A norm of its own for another sum; the operator that added and normalised at once goes on adding."""
    node = edit.node(consumer.node.output[0])
    operator, end = _ALONE[node.op_type]
    held = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == "epsilon"}
    made = edit.insert_node(operator, [new, *node.input[2:end]], attributes={"axis": -1, **held})
    edit.redirect(node.output[0], made, f"{operator} of its own for {consumer.path}: inserted")


def _give(edit: Edit, graph: Known, consumer: Consumer, new: str) -> None:
    """Let a module take another value, where it takes the old one or a Cast or reshape of it."""
    node = edit.node(consumer.node.output[0])
    for maker in [node, *(edit.node(name) for name in _leading(edit, node, consumer.value))]:
        if consumer.value in maker.input:
            place = list(maker.input).index(consumer.value)
            edit.replace_input(maker.output[0], place, new, f"a sum for {consumer.path}")
            return
    raise RefusedError(f"{consumer.path} does not take {consumer.value}")


def _leading(edit: Edit, node: object, value: str) -> list[str]:
    """Outputs between a value and a node that takes it through Casts, reshapes or a mean taken away."""
    found: list[str] = []
    waiting = list(getattr(node, "input", []))
    while waiting and len(found) < 8:
        name = waiting.pop(0)
        try:
            maker = edit.node(name)
        except RefusedError:
            continue
        found.append(name)
        if value not in maker.input:
            waiting += list(maker.input)
    return found


def _give_layer(edit: Edit, graph: Known, target: _Target, terms: Sequence[str]) -> None:
    """Whoever takes the sum that a layer is given takes the right one."""
    if target.value in graph.sums:
        if len(terms) < 2:
            raise RefusedError("a skip norm adds two values")
        node = edit.node(graph.sums[target.value].output[0])
        edit.replace_input(node.output[0], 0, _added(edit, terms[:-1]), f"a sum for {target.name}")
        edit.replace_input(node.output[0], 1, terms[-1], f"a sum for {target.name}")
        return
    edit.redirect(target.value, _added(edit, terms), f"a sum for {target.name} in place of {target.value}")
