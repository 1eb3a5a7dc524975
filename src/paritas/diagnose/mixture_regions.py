"""A mixture of the graph as a function, whatever it is written in, and what it computes with: told by regression.

Fed with the reference's own input and scores, a mixture gives a sum of what its experts give. The weights of that sum
are solved for, token by token; how the experts combine their projections is the way under which nothing is left over.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.view import View
from paritas.diagnose.anchors import with_bias
from paritas.diagnose.case import Case
from paritas.diagnose.extract import extract, taken_by
from paritas.diagnose.mixtures import Gating, Held, Mixture
from paritas.diagnose.session import Session
from paritas.errors import Invalid

Rows = NDArray[np.float32]
_CLOSE = 2e-4
_LOUDER = 4.0  # inputs are asked once more, so many times greater: limits show


@dataclass(frozen=True)
class Region:
    """One mixture of the graph.

    Attributes:
        x, scores: values that it takes.
        outputs: values that it gives; their sum is what it gives.
        nodes: between them.
        session: that computes them.
    """

    x: str
    scores: str
    outputs: tuple[str, ...]
    nodes: tuple[onnx.NodeProto, ...]
    session: Session

    def __call__(self, x: Rows, scores: Rows) -> Rows | None:
        """``[tokens, hidden]``; None if it does not run."""
        try:
            made = self.session.run({self.x: x[None], self.scores: scores[None]}, list(self.session.types))
        except Invalid:
            return None
        wide = [each.reshape(len(x), -1) for each in made.values()]
        return np.sum(wide, axis=0) if len({each.shape for each in wide}) == 1 else None


def region(case: Case, mixture: Mixture) -> Region | None:
    """The graph's counterpart, found by the router's weight; None if there is none that stands alone."""
    slot = next((each for each in case.slots if each.tensor == f"{mixture.path}.gate.weight"), None)
    if slot is None or slot.use.place != 1:
        return None
    view, x = case.view, slot.use.node.input[0]
    scores = with_bias(view, slot.use.node.output[0])
    inside, outputs = _reach(view, x, scores)
    if not outputs:
        return None
    part = extract(case.view.proto, [x, scores], outputs)
    if {each.name for each in part.proto.graph.input} != {x, scores}:
        return None
    try:
        return Region(x, scores, outputs, inside, Session(part.proto, case.package.model))
    except Invalid:
        return None


def _reach(view: View, x: str, scores: str) -> tuple[tuple[onnx.NodeProto, ...], tuple[str, ...]]:
    """Nodes that hang on nothing but a mixture's input, and values of theirs that others take."""
    mine, constant = {x, scores}, {each.name for each in view.proto.graph.initializer}
    inside, outside = list[onnx.NodeProto](), list[onnx.NodeProto]()
    for node in view.nodes:
        taken = taken_by(node)
        if all(name in constant for name in taken):
            constant.update(node.output)
        elif all(name in mine or name in constant for name in taken):
            mine.update(node.output)
            inside.append(node)
        else:
            outside.append(node)
    wanted = {name for node in outside for name in taken_by(node)} | {each.name for each in view.proto.graph.output}
    given = tuple(name for node in inside for name in node.output if name in wanted and name != scores)
    return tuple(inside), given


@dataclass(frozen=True)
class Read:
    """What a mixture of the graph computes with.

    Attributes:
        gating: of its experts.
        weights: of each expert, ``[tokens, experts]``.
        share: of the shared expert, ``[tokens]``.
    """

    gating: Gating
    weights: Rows
    share: Rows | None


def read(case: Case, mixture: Mixture, found: Region, held: Held) -> Read | None:
    """Solve for the weights, under the likeliest way of combining that leaves nothing over."""
    loud = np.concatenate([mixture.x, np.float32(_LOUDER) * mixture.x])
    scores = np.concatenate([mixture.scores, mixture.scores])
    made = found(loud, scores)
    if made is None or mixture.count + (mixture.shared is not None) > loud.shape[1]:
        return None
    shared = mixture.shared_of(loud)
    for gating in _likely(case.view, mixture, found):
        basis = mixture.basis(held, gating, loud)
        weights, left = _solved(made, basis, shared)
        if left <= _CLOSE:
            quiet = weights[: len(mixture.x)]
            share = None if shared is None else quiet[:, -1]
            return Read(gating, quiet[:, : mixture.count], share)
    return None


def _solved(made: Rows, basis: Rows, shared: Rows | None) -> tuple[Rows, float]:
    """Weights ``[tokens, columns]``, and what they leave over of the greatest number of a token."""
    solved, left = list[NDArray[np.float64]](), 0.0
    for token in range(len(made)):
        columns = basis[:, token].T.astype(np.float64)
        if shared is not None:
            columns = np.concatenate([columns, shared[token][:, None].astype(np.float64)], axis=1)
        weights = _fitted(columns, made[token].astype(np.float64))
        left = max(left, float(np.abs(columns @ weights - made[token]).max() / max(np.abs(made[token]).max(), 1e-30)))
        solved.append(weights)
    return np.array(solved, np.float32), left


def _fitted(columns: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    found: Any = cast(Any, np.linalg.lstsq)(columns, wanted, rcond=None)
    return found[0]


def _likely(view: View, mixture: Mixture, found: Region) -> Iterator[Gating]:
    own = mixture.gating
    for exchanged in (False, True):
        yield Gating(own.activation, own.alpha, own.limit, exchanged)
    numbers = list(dict.fromkeys(abs(each) for each in numbers_of(view, found.nodes)))
    yield from _clamped(own, numbers)
    for word in ("silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "none"):
        yield from (Gating(word, exchanged=exchanged) for exchanged in (False, True))


def _clamped(own: Gating, numbers: Sequence[float]) -> Iterator[Gating]:
    """One of the two numbers another that the graph has, then both."""
    if own.activation == "clamped":
        yield from (Gating("clamped", own.alpha, each) for each in numbers)
        yield from (Gating("clamped", each, own.limit) for each in numbers)
    yield from (Gating("clamped", one, other) for one in numbers for other in numbers)


def numbers_of(view: View, nodes: Sequence[onnx.NodeProto]) -> Iterator[float]:
    """Numbers among attributes and constants of nodes, those of their subgraphs among them."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.FLOAT and attribute.f:
                yield float(f"{attribute.f:.7g}")
            if attribute.HasField("g"):
                yield from numbers_of(view, attribute.g.node)
        yield from (float(f"{number:.7g}") for name in node.input if (number := view.number(name)))
