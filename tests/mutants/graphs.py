"""Small changes of a finished ONNX graph, whoever wrote it."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from mutants.mutant import Change
from rounding import stored

Find = Callable[[onnx.NodeProto], bool]
Array = NDArray[Any]


def of(*types: str) -> Find:
    """Nodes of these types."""
    return lambda node: node.op_type in types


def using(pattern: str) -> Find:
    """Nodes one of whose inputs has such a name."""
    return lambda node: any(re.search(pattern, name) for name in node.input)


def giving(pattern: str) -> Find:
    """Nodes one of whose outputs has such a name."""
    return lambda node: any(re.search(pattern, name) for name in node.output)


def both(*finds: Find) -> Find:
    """Nodes that all of them find."""
    return lambda node: all(find(node) for find in finds)


def found(model: onnx.ModelProto, find: Find, only: Sequence[int] | None = None) -> list[onnx.NodeProto]:
    """The nodes, in the graph's order; those in the places ``only`` of them. There must be some."""
    every = [node for node in model.graph.node if find(node)]
    assert every, "no such node"
    return every if only is None else [every[place] for place in only]


def in_turn(*changes: Change) -> Change:
    """One after the other."""

    def change(model: onnx.ModelProto) -> None:
        for each in changes:
            each(model)

    return change


def attributes(find: Find, only: Sequence[int] | None = None, **values: Any) -> Change:
    """Attributes of nodes; a function is given the old value."""

    def change(model: onnx.ModelProto) -> None:
        for node in found(model, find, only):
            old = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            for name, value in values.items():
                for at in [at for at, each in enumerate(node.attribute) if each.name == name]:
                    del node.attribute[at]
                new = value(old.get(name)) if callable(value) else value
                node.attribute.append(onnx.helper.make_attribute(name, new))

    return change


def another_type(find: Find, op_type: str, only: Sequence[int] | None = None, **values: Any) -> Change:
    """Another operator in the place of one."""

    def change(model: onnx.ModelProto) -> None:
        for node in found(model, find, only):
            node.op_type = op_type
            del node.attribute[:]
            node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in values.items())

    return change


def before(
    find: Find, place: int, op_type: str, *constants: Any, only: Sequence[int] | None = None, **values: Any
) -> Change:
    """A node between an input of each node that is found and that node."""

    def change(model: onnx.ModelProto) -> None:
        for node in found(model, find, only):
            made = f"{node.input[place]}.{op_type}.for.{node.output[0]}"
            _insert(model, _at(model, node), op_type, node.input[place], made, constants, values)
            node.input[place] = made

    return change


def after(
    find: Find, op_type: str, *constants: Any, output: int = 0, only: Sequence[int] | None = None, **values: Any
) -> Change:
    """A node between an output of each node that is found and whoever takes it; the name stays the new node's."""

    def change(model: onnx.ModelProto) -> None:
        for node in found(model, find, only):
            name = node.output[output]
            raw = f"{name}.before.{op_type}"
            node.output[output] = raw
            _insert(model, _at(model, node) + 1, op_type, raw, name, constants, values)

    return change


def _at(model: onnx.ModelProto, node: onnx.NodeProto) -> int:
    return next(at for at, each in enumerate(model.graph.node) if each is node or each.output == node.output)


def _insert(
    model: onnx.ModelProto,
    at: int,
    op_type: str,
    taken: str,
    made: str,
    constants: Sequence[Any],
    values: dict[str, Any],
) -> None:
    names = [taken]
    for constant in constants:
        if isinstance(constant, str):
            names.append(constant)
            continue
        names.append(f"{made}.constant.{len(names)}")
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(constant), names[-1]))
    model.graph.node.insert(at, onnx.helper.make_node(op_type, names, [made], **values))


def bypass(find: Find, only: Sequence[int] | None = None) -> Change:
    """Nodes left out: whoever took what they gave takes their first input."""

    def change(model: onnx.ModelProto) -> None:
        for node in found(model, find, only):
            rewire(model, node.output[0], node.input[0])
            model.graph.node.remove(node)

    return change


def rewire(model: onnx.ModelProto, old: str, new: str) -> None:
    """Whoever takes ``old`` takes ``new``; graph outputs keep their name."""
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = new


def inputs(find: Find, change_names: Callable[[list[str]], list[str]], only: Sequence[int] | None = None) -> Change:
    """Other inputs of nodes."""

    def change(model: onnx.ModelProto) -> None:
        for node in found(model, find, only):
            names = change_names(list(node.input))
            del node.input[:]
            node.input.extend(names)

    return change


def values(pattern: str, change_values: Callable[[Array], Any]) -> Change:
    """Values of each initializer, or of each Constant, of such a name; dtype and shape are kept."""

    def change(model: onnx.ModelProto) -> None:
        tensors = [t for t in model.graph.initializer if re.search(pattern, t.name)]
        for node in model.graph.node:
            if node.op_type == "Constant" and re.search(pattern, node.output[0]):
                tensors += [each.t for each in node.attribute if each.name == "value"]
        assert tensors, pattern
        for tensor in tensors:
            old = numpy_helper.to_array(tensor)
            new = np.asarray(change_values(old.copy())).astype(old.dtype)
            assert new.shape == old.shape, (tensor.name, new.shape)
            assert not np.array_equal(new, old), tensor.name
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(new), tensor.name))

    return change


def copied(pattern: str, source: str) -> Change:
    """Every initializer of such a name has the values of the one named ``source``."""

    def change(model: onnx.ModelProto) -> None:
        (other,) = stored(model, f"^{re.escape(source)}$")
        for tensor in stored(model, pattern):
            name = tensor.name
            assert list(tensor.dims) == list(other.dims), name
            tensor.CopyFrom(other)
            tensor.name = name

    return change


def own(find: Find, place: int, change_values: Callable[[Array], Any], only: Sequence[int] | None = None) -> Change:
    """A changed copy of the initializer that nodes share, for those nodes alone."""

    def change(model: onnx.ModelProto) -> None:
        tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in found(model, find, only):
            old = numpy_helper.to_array(tensors[node.input[place]])
            name = f"{node.input[place]}.{node.output[0]}"
            new = np.asarray(change_values(old.copy())).astype(old.dtype)
            assert not np.array_equal(new, old), name
            model.graph.initializer.append(numpy_helper.from_array(new, name))
            node.input[place] = name

    return change
