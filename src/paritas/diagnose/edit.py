"""Changes of a package's graph, each with a line that says it. External data is not copied: what changes is inline."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from paritas.audit.view import View
from paritas.runtime.exact import NARROW, widened

Array = NDArray[Any]


class RefusedError(Exception):
    """A graph does not admit a change."""


class Edit:
    """A copy of a package's graph that is open to change.

    Attributes:
        source: the unchanged model.
        proto: the changed model; external data lies where the package's lies.
        lines: what was changed, a line each, in order.
        kind: numpy's type of most of what it computes.
    """

    def __init__(self, view: View) -> None:
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(view.proto)
        self.lines: list[str] = []
        self._view = view
        self.source = view.proto
        self.kind = _computes_in(view.proto)
        self._changed: dict[str, Array] = {}
        self._made: dict[str, str] = {}
        self._nodes = list(self.proto.graph.node)
        self._names = {name for node in self._nodes for name in (*node.input, *node.output)}
        self._names |= {tensor.name for tensor in self.proto.graph.initializer}

    # Reading.

    def node(self, output: str) -> onnx.NodeProto:
        """The node that makes a value.

        Raises:
            RefusedError: there is none.
        """
        for node in self._nodes:
            if output in node.output:
                return node
        raise RefusedError(f"no node of the graph makes {output!r}")

    def takers(self, value: str) -> list[tuple[onnx.NodeProto, int]]:
        """Nodes that take a value, and at which input."""
        return [(node, place) for node in self._nodes for place, name in enumerate(node.input) if name == value]

    def values(self, name: str) -> Array:
        """What an initializer or a Constant holds by now, in its own type."""
        return self._changed[name] if name in self._changed else self._view.tensors[name].array()

    # Initializers.

    def set_initializer(self, name: str, values: Array, what: str = "") -> None:
        """Give an initializer, or a Constant, other values of its own shape and type."""
        self._forget_constant(name)
        for tensor in self.proto.graph.initializer:
            if tensor.name == name:
                values = values.astype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
                tensor.CopyFrom(numpy_helper.from_array(np.array(values, order="C"), name))
                break
        else:
            self.proto.graph.initializer.append(numpy_helper.from_array(np.array(values, order="C"), name))
        self._changed[name] = values
        self.lines.append(f"initializer {name}: {what or 'other values'}")

    def add_initializer(self, name: str, values: Array) -> str:
        """A new initializer; its name, which is made unique. In a graph of fp16 or bf16 it is of that type."""
        return self.add_as_is(name, values.astype(self.kind) if values.dtype == np.float32 else values)

    def add_as_is(self, name: str, values: Array) -> str:
        """A new initializer of the values' own type; its name, which is made unique."""
        name = self._unique(name)
        self._changed[name] = values
        self.proto.graph.initializer.append(numpy_helper.from_array(np.array(values, order="C"), name))
        return name

    def _forget_constant(self, name: str) -> None:
        self._nodes = [n for n in self._nodes if not (n.op_type == "Constant" and name in n.output)]

    # Nodes.

    def set_attribute(self, output: str, name: str, value: Any) -> None:
        """Set, or with None remove, an attribute of the node that makes ``output``."""
        node = self.node(output)
        before = {a.name: helper.get_attribute_value(a) for a in node.attribute}.get(name, "not there")
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
        if value is not None:
            node.attribute.append(helper.make_attribute(name, value))
        after = "left out" if value is None else _word(value)
        self.lines.append(f"attribute {name} of {_title(node)}: {_word(before)} -> {after}")

    def replace_input(self, output: str, place: int, value: str, what: str = "") -> None:
        """Let the node that makes ``output`` take another value at an input."""
        node = self.node(output)
        while len(node.input) <= place:
            node.input.append("")
        before, node.input[place] = node.input[place], value
        self.lines.append(f"input {place} of {_title(node)}: {before or 'nothing'} -> {what or value}")

    def set_operand(self, output: str, place: int, values: Array, name: str) -> None:
        """Let the node that makes ``output`` take a new constant; others that share the old one keep it."""
        new = self.add_as_is(name, self.taken(output, place, values))
        self.replace_input(output, place, new, f"{name} = {_word(values)}")

    def taken(self, output: str, place: int, values: Array) -> Array:
        """Values in the type that the node that makes ``output`` takes at an input by now."""
        name = self.node(output).input[place] if place < len(self.node(output).input) else ""
        maker = next((node for node in self._nodes if name and name in node.output), None)
        if name in self._changed or name in self._view.tensors:
            return values.astype(self.values(name).dtype)
        if maker is not None and maker.op_type == "Cast":
            return values.astype(helper.tensor_dtype_to_np_dtype(next(a.i for a in maker.attribute if a.name == "to")))
        return values

    def insert_node(
        self,
        operator: str,
        inputs: Sequence[str],
        *,
        domain: str = "",
        outputs: int = 1,
        attributes: Mapping[str, Any] | None = None,
    ) -> str:
        """A new node; its first output, which nothing takes yet."""
        names = [self._unique(f"repaired.{operator}") for _ in range(outputs)]
        node = helper.make_node(operator, list(inputs), names, names[0], domain=domain, **dict(attributes or {}))
        self._nodes.append(node)
        self._import(domain)
        return names[0]

    def redirect(self, old: str, new: str, what: str, keep: Sequence[onnx.NodeProto] = ()) -> None:
        """Let everything that takes ``old`` take ``new``, but what ``new`` itself is made of, and ``keep``."""
        own = self._made_of(new, old)
        spared = [*own, *keep]
        for node in self._nodes:
            if not any(node is each for each in spared):
                for place, name in enumerate(node.input):
                    if name == old:
                        node.input[place] = new
        if any(output.name == old for output in self.proto.graph.output):
            self._swap_output(old, new)
        self.lines.append(what)

    def supersede(self, old: str, new: str, what: str) -> None:
        """Let ``new`` have the name of ``old``, so that subgraphs that take that from outside take it too."""
        before = self._unique(f"{old}.before")
        for node in self._nodes:
            node.output[:] = [before if name == old else old if name == new else name for name in node.output]
            node.input[:] = [old if name == new else name for name in node.input]
        self.lines.append(what)

    def _made_of(self, new: str, old: str) -> list[onnx.NodeProto]:
        """Nodes between ``old`` and ``new``."""
        makers = {name: node for node in self._nodes for name in node.output}
        found: list[onnx.NodeProto] = []
        waiting = [new]
        while waiting:
            name = waiting.pop()
            node = makers.get(name)
            if name == old or node is None or any(node is each for each in found):
                continue
            if not node.output[0].startswith("repaired."):
                continue
            found.append(node)
            waiting.extend(node.input)
        return found

    def _swap_output(self, old: str, new: str) -> None:
        """The graph's output keeps its name, and is what ``new`` was."""
        before = self._unique(f"{old}.before")
        for node in self._nodes:
            node.input[:] = [before if name == old else name for name in node.input]
            node.output[:] = [before if name == old else old if name == new else name for name in node.output]
        for node in self._nodes:
            node.input[:] = [old if name == new else name for name in node.input]

    def copy_way(self, start: str, end: str, new: str) -> str:
        """The nodes between ``start`` and ``end`` once more, from ``new``: what ``end`` would be then.

        Raises:
            RefusedError: there are none.
        """
        names = {start: new}
        if end == widened(start) and not any(end in node.output for node in self._nodes):
            return new  # a Cast of the graph in fp32 arithmetic, which the package as it is shipped does not have
        for node in _ordered(self._between(start, end)):
            copied = onnx.NodeProto.FromString(node.SerializeToString())
            copied.input[:] = [names.get(name, name) for name in node.input]
            names |= {name: self._unique(f"repaired.{name}") for name in node.output if name}
            copied.output[:] = [names.get(name, name) for name in node.output]
            copied.name = copied.output[0]
            self._nodes.append(copied)
        return names[end]

    def _between(self, start: str, end: str) -> list[onnx.NodeProto]:
        makers = {name: node for node in self._nodes for name in node.output}
        found: list[onnx.NodeProto] = []
        while end != start:
            if end not in makers:
                raise RefusedError(f"no node of the graph makes {end!r}")
            found.append(makers[end])
            end = makers[end].input[0]
        return found[::-1]

    def set_operator(self, output: str, operator: str, domain: str = "") -> None:
        """Let another operator with the same inputs and attributes make ``output``."""
        node = self.node(output)
        self.lines.append(f"operator {_title(node)}: {node.op_type} -> {operator}")
        node.op_type, node.domain = operator, domain
        self._import(domain)

    def once(self, key: str, make: Callable[[], str]) -> str:
        """A value that several repairs share: made by the first of them."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def remove(self, output: str, keep: str) -> None:
        """Take a node out: who took ``output`` takes ``keep``."""
        node = self.node(output)
        self.redirect(output, keep, f"{_title(node)} is taken out", keep=[node])

    # The whole.

    def model(self) -> onnx.ModelProto:
        """The changed model, its nodes in an order in which they can run."""
        ordered = list(_ordered(self._nodes))
        copied = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
        del self.proto.graph.node[:]
        self.proto.graph.node.extend(copied)
        self._nodes = list(self.proto.graph.node)
        return self.proto

    def graph(self) -> bytes:
        """The changed model, serialised."""
        return self.model().SerializeToString()

    def _unique(self, name: str) -> str:
        number, found = 1, name
        while found in self._names:
            number, found = number + 1, f"{name}.{number}"
        self._names.add(found)
        return found

    def _import(self, domain: str) -> None:
        if not any(opset.domain == domain for opset in self.proto.opset_import):
            self.proto.opset_import.append(helper.make_opsetid(domain, 1))


def _computes_in(proto: onnx.ModelProto) -> Any:
    """The type of most values: of a graph that takes, gives or makes fp16 or bf16, that one."""
    ports = {value.type.tensor_type.elem_type for value in (*proto.graph.input, *proto.graph.output)}
    casts = {a.i for node in proto.graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
    kind = next(iter(sorted((ports | casts) & NARROW)), onnx.TensorProto.FLOAT)
    return helper.tensor_dtype_to_np_dtype(kind)


def _ordered(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, each after those that make what it takes; as they stood, where that is one.

    Raises:
        ValueError: values are made of each other.
    """
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    done, begun = set[int](), set[int]()
    for start in range(len(nodes)):
        waiting = [start]
        while waiting:
            place = waiting[-1]
            if place in done:
                waiting.pop()
                continue
            missing = [makers[n] for n in _taken(nodes[place]) if n in makers and makers[n] not in done]
            if begun.intersection(missing):
                raise ValueError(f"{_title(nodes[place])} takes what is made of it")
            if missing:
                begun.add(place)
                waiting.extend(missing)
            else:
                done.add(waiting.pop())
                yield nodes[place]


def _taken(node: onnx.NodeProto) -> Iterator[str]:
    """Values that a node takes, its subgraphs' included."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
            for inner in graph.node:
                yield from _taken(inner)
            yield from (output.name for output in graph.output)


def _title(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or node.output[0]}"


def _word(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, np.ndarray):
        array = cast(Array, value)
        return f"{array.reshape(-1)[0]:.9g}" if array.size == 1 else f"{list(array.shape)}"
    return str(value)
