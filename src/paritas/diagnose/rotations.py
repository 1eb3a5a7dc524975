"""Queries and keys after their rotation, where the graph has an operator for it: the middle of attention."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx

from paritas.audit.view import PASSES, View
from paritas.diagnose.anchors import Anchor, Piece
from paritas.diagnose.capture import KEY, QUERY, Array, Captured

_STEADY = 1e-3  # a rotation leaves lengths as they are, or multiplies all of them by one factor
_HANDS_ON = PASSES | {"Split", "Slice"}


def rotations(view: View, found: Sequence[Anchor], captured: Captured) -> Iterator[Anchor]:
    """Outputs of RotaryEmbedding whose input is a module's output that the reference rotates, and does no more with."""
    made = {anchor.value: anchor for anchor in found if anchor.pieces[0].point.endswith(":out")}
    for node in view.nodes:
        if node.op_type == "RotaryEmbedding":
            origin = made.get(_origin(view, node, made))
            point = None if origin is None or origin.pieces[1:] else _rotated(origin.pieces[0], captured)
            if origin is not None and point is not None:
                yield replace(origin, value=node.output[0], pieces=(Piece(point, 0, -1),), node=node)


def _origin(view: View, node: onnx.NodeProto, made: Mapping[str, Anchor]) -> str:
    value = node.input[0]
    while value not in made and value in view.maker and view.maker[value].op_type in _HANDS_ON:
        value = view.maker[value].input[0]
    return value


def _rotated(piece: Piece, captured: Captured) -> str | None:
    """The query or key that has the lengths of a module's output, token by token."""
    one = captured.prefill
    parent = piece.point.partition(":")[0].rpartition(".")[0]
    given = one.points.get(piece.point)
    for point in (parent + QUERY, parent + KEY):
        turned = one.points.get(point)
        if given is not None and turned is not None and given.shape == turned.shape and _is_turned(given, turned):
            return point
    return None


def _is_turned(given: Array, turned: Array) -> bool:
    before, after = (np.linalg.norm(each.astype(np.float64), axis=1) for each in (given, turned))
    ratio = np.divide(after, before, out=np.zeros_like(after), where=before > 0)
    return bool(ratio.mean() > 0 and ratio.std() <= _STEADY * ratio.mean())
