"""What each module of the graph takes, as a sum: of what the layer takes and of what other modules give.

The graph's side of :mod:`paritas.diagnose.streams`. A sum is read off the graph as it is written, through additions
and factors, down to values that are known: outputs of modules, found by their weights.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from paritas.audit.sites import PROJECTIONS
from paritas.audit.view import PASSES, View, operand
from paritas.diagnose.anchors import SKIPS, norm_input, sum_of, with_bias
from paritas.diagnose.case import Case
from paritas.diagnose.slots import Slot
from paritas.diagnose.streams import Streams, Sum, streams

_DEEPEST = 60  # nodes of one sum
_SAME = (*PASSES, "GatherND")  # takes positions of a stream: of those, what it gives is what it takes


@dataclass(frozen=True)
class Consumer:
    """A module of the graph that takes a sum.

    Attributes:
        path: of the module, in the text model's words.
        node: of the graph.
        value: what it takes; of a skip norm, the name of its sum.
    """

    path: str
    node: onnx.NodeProto
    value: str


@dataclass(frozen=True)
class Known:
    """Values of the graph by the reference's names.

    Attributes:
        names: value -> name of the tensor that it is.
        consumers: module -> the nodes that compute it, in order.
        sums: name of a skip norm's sum -> the node.
        view: the graph.
    """

    names: Mapping[str, str]
    consumers: Mapping[str, tuple[Consumer, ...]]
    sums: Mapping[str, onnx.NodeProto]
    view: View

    def value(self, name: str) -> str | None:
        """The value that a tensor of the reference is."""
        return next((value for value, each in self.names.items() if each == name), None)

    def sum(self, value: str, *, is_entry: bool = False) -> Sum:
        """A value as a sum of known ones; what is not known has the name of its value, in brackets.

        Args:
            value: of the graph.
            is_entry: whether it is what a layer takes, and is to be told by what is known before it.
        """
        found: dict[str, float] = defaultdict(float)
        waiting, seen = [(value, 1.0)], 0
        while waiting and (seen := seen + 1) < _DEEPEST:
            name, factor = waiting.pop()
            if name in self.names and not (is_entry and name == value):
                found[self.names[name]] += factor
            elif (parts := self._parts(name)) is None:
                found[f"[{name}]"] += factor
            else:
                waiting += [(each, factor * by) for each, by in parts]
        return {name: factor for name, factor in found.items() if factor}

    def _parts(self, value: str) -> list[tuple[str, float]] | None:
        """The values that one is the sum of, each with its factor; None if it is no sum."""
        node = self.view.maker.get(value)
        if value in self.sums:
            node = self.sums[value]
            return [(node.input[0], 1.0), (node.input[1], 1.0)]
        if node is None:
            return None
        if node.op_type in _SAME:
            return [(node.input[0], 1.0)]
        if node.op_type in ("Mul", "Div") and (given := operand(self.view, node)):
            return [(given[0], given[1] if node.op_type == "Mul" else 1 / given[1])]
        if node.op_type in ("Add", "Sub"):
            signs = (1.0, 1.0 if node.op_type == "Add" else -1.0)
            made = zip(node.input, signs, strict=True)
            return [(name, sign) for name, sign in made if self.view.initializer(name) is None]  # a bias is no term
        return None


FINAL, HEAD = "model.norm", "lm_head"


def reference(case: Case) -> Streams:
    """What the reference's modules take; asked once."""
    key = ("streams",)
    if key not in case.view.memory:
        weights = [slot.held for slot in case.slots if slot.held.endswith(".weight")]
        paths = list(dict.fromkeys(name.rpartition(".")[0] for name in weights))
        case.view.memory[key] = streams(case.live, paths, FINAL, HEAD)
    return case.view.memory[key]


def known(case: Case, wanted: Mapping[str, Sum]) -> Known:
    """The graph's values that are the reference's tensors."""
    view = case.view
    sums = {sum_of(node): node for node in view.nodes if node.op_type in SKIPS}
    consumers: dict[str, list[Consumer]] = defaultdict(list)
    names: dict[str, str] = {}
    for slot in case.slots:
        path, _, kind = slot.held.rpartition(".")
        taken = _taken(view, slot) if kind == "weight" else None
        if taken is None or any(each.node is slot.use.node for each in consumers[path]):
            continue
        consumers[path].append(Consumer(path, slot.use.node, taken))
        is_whole = sum(other.use.node is slot.use.node for other in case.slots if other.held.endswith("weight")) == 1
        if len(consumers[path]) == 1 and is_whole:
            names[with_bias(view, slot.use.node.output[0])] = path
    for name, made in wanted.items():
        # A layer's input is what the first module takes that takes nothing else.
        entries = [each for each in made if each.endswith(".in")]
        is_alone = not name.endswith(".in") and len(made) == len(entries) == 1 and bool(consumers.get(name))
        if is_alone and entries[0] not in names.values():
            names[consumers[name][0].value] = entries[0]
    return Known(names, {path: tuple(each) for path, each in consumers.items()}, sums, view)


def _taken(view: View, slot: Slot) -> str | None:
    """What the module of a weight takes."""
    node, place = slot.use.node, slot.use.place
    if node.op_type in PROJECTIONS:
        name = node.input[1 - place] if place < 2 else node.input[0]
        return _plain(view, name)
    return norm_input(view, node, place)


def _plain(view: View, name: str) -> str:
    """Before what only casts or reshapes."""
    while (node := view.maker.get(name)) is not None and node.op_type in PASSES:
        name = node.input[0]
    return name
