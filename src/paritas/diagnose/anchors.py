"""Which values of a graph are which tensors of the reference, by the weights beside them.

A node that takes a checkpoint tensor computes what the module of that tensor computes: its input and its output are
the module's. Nothing here looks at a name of the graph.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import onnx

from paritas.audit.identity import Identity, Provenance
from paritas.audit.match import Part
from paritas.audit.nearest import Near
from paritas.audit.sites import NORMS, PROJECTIONS
from paritas.audit.view import PASSES, View, operand
from paritas.diagnose.capture import Captured

SKIPS = frozenset({"SkipSimplifiedLayerNormalization", "SkipLayerNormalization"})
_GATHERS = frozenset({"Gather", "GatherBlockQuantized"})
_MEANS = frozenset({"ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2"})
_AS_IT_IS = PASSES - {"Transpose"}
_MOST = 40  # nodes of a norm that is written out
REORDERED = 0.5
"""Confidence in a weight whose rows are the module's in another order: meant so, or a fault."""


@dataclass(frozen=True)
class Piece:
    """Columns of a value, and where the reference has them.

    Attributes:
        point: of the reference.
        start, stop: columns of the value.
        first: the column of the point with which it begins.
    """

    point: str
    start: int
    stop: int
    first: int = 0


@dataclass(frozen=True)
class Anchor:
    """A value of the graph beside tensors of the reference.

    Attributes:
        value: its name.
        pieces: what it is made of, left to right; one without an end is all of its point.
        node: the operator that takes the weight.
        modules: paths of the reference's modules that own it; several, if they are packed.
        confidence: 0 to 1; 1 if every value of the weight is the checkpoint's.
    """

    value: str
    pieces: tuple[Piece, ...]
    node: onnx.NodeProto
    modules: tuple[str, ...]
    confidence: float


def anchors(view: View, identity: Identity, captured: Captured) -> Sequence[Anchor]:
    """Inputs and outputs of every module whose weight is found in the graph."""
    modules = _Modules(captured, identity)
    found: list[Anchor] = []
    for record in identity.initializers:
        if not record.parts and not record.near:
            continue
        taken = sorted(users(view, record.name), key=lambda use: view.order[id(use[0])])
        for use, (node, place) in enumerate(taken):
            found += _of_use(view, record, node, place, modules, use)
    return found


def users(view: View, name: str) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Nodes that compute with an initializer, behind those that reshape it, cast it or add a number to it."""
    for node, place in view.takers.get(name, ()):
        hands_on = node.op_type in PASSES or node.op_type == "DequantizeLinear"
        offset = node.op_type in ("Add", "Sub") and operand(view, node) is not None
        if (hands_on and place == 0) or offset:
            yield from users(view, node.output[0])
        else:
            yield node, place


def sum_of(node: onnx.NodeProto) -> str:
    """The name of the sum that a skip norm gives beside its result; the one it is to have, if it has none."""
    return node.output[3] if len(node.output) > 3 and node.output[3] else f"{node.output[0]}.sum"


class _Modules:
    """Paths of the reference's modules by the tensors that they own."""

    def __init__(self, captured: Captured, identity: Identity) -> None:
        self._captured, self._sources = captured, identity.sources
        self._paths = frozenset(point.partition(":")[0] for point in captured.prefill.points)

    def of(self, tensor: str, *, gathers: bool) -> str | None:
        """The module that computes with a tensor; a tied one is the embedding's for a gather, else the head's."""
        path = self._path(tensor.rpartition(".")[0]) or self._owner(tensor)
        ends = (self._captured.embedding, self._captured.head)
        return ends[0 if gathers else 1] if path in ends else path

    def call(self, path: str, use: int) -> str:
        """What the module does at the use of its weight with this number, if it is called as often."""
        again = f"{path}#{use + 1}"
        return again if f"{again}:in" in self._captured.prefill.points else path

    def _owner(self, tensor: str) -> str | None:
        """By the values: transformers may call a module otherwise than the checkpoint does."""
        source = self._sources[tensor]
        return self._captured.owners.get((source.shape, source.first.tobytes()))

    def _path(self, given: str) -> str | None:
        if given in self._paths:
            return given
        alike = [path for path in self._paths if path.endswith(f".{given}") or given.endswith(f".{path}")]
        return alike[0] if len(alike) == 1 else None


def _of_use(
    view: View, record: Provenance, node: onnx.NodeProto, place: int, modules: _Modules, use: int
) -> Iterator[Anchor]:
    given: Sequence[Part | Near] = record.parts or record.near
    gathers = node.op_type in _GATHERS and place == 0
    owners = [modules.of(part.tensor, gathers=gathers) for part in given]
    if any(path is None for path in owners):
        return
    paths = [modules.call(path, use) for path in owners if path is not None]
    sure = _confidence(record)
    anchor = Anchor("", (), node, tuple(path.partition("#")[0] for path in paths), sure)
    if gathers:
        yield replace(anchor, value=node.output[0], pieces=(Piece(f"{paths[0]}:out", 0, -1),))
    elif node.op_type in PROJECTIONS and place == 1:
        yield replace(anchor, value=node.input[0], pieces=(Piece(f"{paths[0]}:in", 0, -1),))
        pieces = _columns(record, paths)
        if pieces:
            yield replace(anchor, value=with_bias(view, node.output[0]), pieces=pieces)
    else:
        yield from _of_norm(view, node, place, anchor, paths[0])


def _of_norm(view: View, node: onnx.NodeProto, place: int, anchor: Anchor, path: str) -> Iterator[Anchor]:
    taken = norm_input(view, node, place)
    if taken is not None:
        yield replace(anchor, value=taken, pieces=(Piece(f"{path}:in", 0, -1),))
        given = with_bias(view, node.output[0]) if node.op_type == "Mul" else node.output[0]
        yield replace(anchor, value=given, pieces=(Piece(f"{path}:out", 0, -1),))


def norm_input(view: View, node: onnx.NodeProto, place: int) -> str | None:
    """What a node normalises, if it takes a norm's weight at ``place``; None if it is no norm."""
    if node.op_type in SKIPS:
        return sum_of(node) if place == 2 else None
    if node.op_type in NORMS:
        return _uncentred(view, node.input[0]) if place == 1 else None
    return _written_out(view, node.input[1 - place]) if node.op_type == "Mul" and place < 2 else None


def _written_out(view: View, value: str) -> str | None:
    """The value that a norm in single operators begins with: all that leads to ``value`` comes from it alone."""
    order = {id(node): place for place, node in enumerate(view.nodes)}
    frontier, meets = {value}, False
    for _ in range(_MOST):
        made = [name for name in frontier if name in view.maker]
        if len(frontier) == 1 and meets and not _is_centred(view, value):
            return value
        if len(made) != len(frontier):
            return None
        last = max(made, key=lambda name: order[id(view.maker[name])])
        node = view.maker[last]
        meets = meets or node.op_type in _MEANS
        frontier = (frontier - {last}) | {name for name in node.input if name and not _is_constant(view, name)}
        value = next(iter(frontier)) if len(frontier) == 1 else value
    return None


def _is_centred(view: View, value: str) -> bool:
    """A value less its own mean is the middle of a LayerNorm, not its beginning."""
    return _uncentred(view, value) != value


def _uncentred(view: View, value: str) -> str:
    """The value before its own mean is taken away, which LayerNorm does once more."""
    node = view.maker.get(_uncast(view, value))
    if node is None or node.op_type != "Sub":
        return value
    mean = view.maker.get(_uncast(view, node.input[1]))
    is_mean = mean is not None and mean.op_type in _MEANS and mean.input[0] == node.input[0]
    return node.input[0] if is_mean else value


def _uncast(view: View, value: str) -> str:
    while (node := view.maker.get(value)) is not None and node.op_type == "Cast":
        value = node.input[0]
    return value


def _is_constant(view: View, name: str) -> bool:
    return name in view.tensors or view.initializer(name) is not None or view.constant(name) is not None


def with_bias(view: View, value: str) -> str:
    """The value after a stored vector is added to it, or to what it is cast or reshaped to, if one is."""
    for node, place in view.takers.get(value, ()):
        if node.op_type in _AS_IT_IS and place == 0:
            handed = node.output[0]
            return value if (added := with_bias(view, handed)) == handed else added
        if node.op_type == "Add" or (node.op_type == "Sub" and place == 0):
            stored = view.initializer(node.input[1 - place])
            if stored is not None and stored.matrix[0] == 1 and stored.size > 1:
                return node.output[0]
    return value


def _columns(record: Provenance, paths: Sequence[str]) -> tuple[Piece, ...]:
    """The outputs of a matrix by the rows it is made of; nothing where rows of several tensors alternate."""
    given: Sequence[Part | Near] = record.parts or record.near
    if len(given) > 1 and all(isinstance(part, Part) and part.permuted for part in given):
        return ()
    found: list[Piece] = []
    for part, path in zip(given, paths, strict=True):
        first = part.source if isinstance(part, Part) else 0
        found.append(Piece(f"{path}:out", part.start, part.stop, first))
    return tuple(found)


def _confidence(record: Provenance) -> float:
    """The share of a weight that is the checkpoint's; of one that is only near, how near it is."""
    if record.near:
        return max(0.0, min(1.0, 1.0 - max(near.error for near in record.near)))
    if any(part.permuted for part in record.parts):
        return REORDERED
    rows = max(part.stop for part in record.parts) + record.rest
    wrong = sum(len(part.wrong) for part in record.parts) + record.rest
    return 1.0 - wrong / rows if rows else 1.0
