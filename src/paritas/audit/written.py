"""Where queries and keys meet, in an attention operator or in a product of their own: found by the weights before."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from paritas.audit.identity import Provenance
from paritas.audit.projections import Projection, projections_behind
from paritas.audit.sites import Site
from paritas.audit.view import View

_FARTHEST = 60  # nodes between a softmax and the scores
_SAME = frozenset({"Cast", "Identity", "Unsqueeze", "Squeeze"})


@dataclass(frozen=True)
class Written:
    """Queries and keys from their projections to the place where they meet.

    Attributes:
        layer: of the queries' weight.
        q, k: the projections.
        q_end, k_end: the values that are multiplied.
        q_tables, k_tables: cosines and sines that queries, and keys, are multiplied by on the way, by name.
        product: the value of their product; None inside of an operator.
        softmax: the node that takes it; None inside of an operator.
        heads: of queries and of keys, where an operator says them.
    """

    layer: int
    q: Projection
    k: Projection
    q_end: str
    k_end: str
    q_tables: tuple[str, ...]
    k_tables: tuple[str, ...]
    product: str | None = None
    softmax: onnx.NodeProto | None = None
    heads: tuple[int | None, int | None] = (None, None)

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that is looked at."""
        return (self.q_end, self.k_end, *self.q_tables, *self.k_tables)


def written(view: View, made: Mapping[str, Provenance]) -> Sequence[Written]:
    """Every softmax of a product of queries and keys, in the order of the graph."""
    found: list[Written] = []
    for node in view.nodes:
        scores = _scores(view, node.input[0]) if node.op_type == "Softmax" else None
        if scores is not None:
            found += _between(view, made, (scores.input[0], scores.input[1]), scores.output[0], node)
    return found


def before_operators(view: View, made: Mapping[str, Provenance], found: Sequence[Site]) -> Sequence[Written]:
    """The way to each attention operator whose queries and keys are normalised or rotated in nodes of their own."""
    result: list[Written] = []
    for site in found:
        if site.k is None or (site.q.weight is not None and site.k.weight is not None):
            continue
        values = site.values
        heads = (values.get("num_heads") or values.get("q_num_heads"), values.get("kv_num_heads"))
        if site.operator == "MultiHeadAttention":
            heads = (heads[0], heads[0])
        result += _between(view, made, (site.node.input[0], site.node.input[1]), heads=heads)
    return result


def _between(
    view: View,
    made: Mapping[str, Provenance],
    ends: tuple[str, str],
    product: str | None = None,
    softmax: onnx.NodeProto | None = None,
    heads: tuple[int | None, int | None] = (None, None),
) -> Iterator[Written]:
    q, k = (_one(view, made, name, word) for name, word in zip(ends, ("q_proj", "k_proj"), strict=True))
    if q is None or k is None or q.layer is None:
        return
    tables = [
        tuple(dict.fromkeys(_multipliers(view, projection.value, end)))
        for projection, end in zip((q, k), ends, strict=True)
    ]
    yield Written(q.layer, q, k, *ends, tables[0], tables[1], product, softmax, heads)


def _scores(view: View, name: str) -> onnx.NodeProto | None:
    """The nearest product of two values neither of which is a weight."""
    waiting, seen = deque([name]), set[str]()
    while waiting and len(seen) < _FARTHEST:
        name = waiting.popleft()
        node = view.maker.get(name)
        if name in seen or node is None or node.op_type == "Shape":
            continue
        seen.add(name)
        if node.op_type != "MatMul":
            waiting.extend(each for each in node.input if each)
        elif all(view.initializer(each) is None for each in node.input):
            return node
    return None


def _one(view: View, made: Mapping[str, Provenance], name: str, word: str) -> Projection | None:
    found = projections_behind(view, made, [name])
    if len({projection.value for projection in found}) > 1:
        found = [projection for projection in found if any(word in tensor for tensor in projection.record.tensors)]
    return found[0] if found else None


def _multipliers(view: View, start: str, end: str) -> Iterator[str]:
    """What the values on the way from ``start`` to ``end`` are multiplied by, where it hangs on the positions."""
    way = {start}
    for node in sorted(_nodes(view, start, end), key=lambda node: view.order[id(node)]):
        if way.isdisjoint(node.input):
            continue
        way.update(node.output)
        if node.op_type == "RotaryEmbedding":
            first = 2 if node.domain == "com.microsoft" else 1
            yield from node.input[first : first + 2]
        elif node.op_type == "Mul":
            for name in node.input:
                if name not in way and name not in view.tensors and _varies(view, name):
                    yield _origin(view, name)


def _nodes(view: View, start: str, end: str) -> Iterator[onnx.NodeProto]:
    """Every node on whose values ``end`` hangs, but for those before ``start``, and for what hangs on shapes."""
    waiting, seen = [end], {start}
    while waiting:
        name = waiting.pop()
        node = view.maker.get(name)
        if name not in seen and node is not None and node.op_type != "Shape":
            yield node
            seen.update(node.output)
            waiting.extend(each for each in node.input if each)
        seen.add(name)


def _varies(view: View, name: str) -> bool:
    key = ("varies", name)
    if key not in view.memory:
        inputs = {value.name for value in view.proto.graph.input}
        view.memory[key] = not inputs.isdisjoint(view.roots(name))
    return view.memory[key]


def _origin(view: View, name: str) -> str:
    """The value before nodes that only give it another shape or type, which each layer may have for itself."""
    while (node := view.maker.get(name)) is not None and node.op_type in _SAME:
        name = node.input[0]
    return name
