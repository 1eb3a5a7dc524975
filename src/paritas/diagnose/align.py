"""A package beside the reference: which values are which tensors, and the regions of the graph between them.

A cut is a value of the graph that the reference has too. Every node lies in a region between cuts, whoever wrote the
graph and however: one fused operator, forty single ones, or a fused operator that holds three modules.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.identity import Identity
from paritas.audit.view import PASSES, View
from paritas.diagnose.anchors import SKIPS, Anchor, Piece, anchors, norm_input, sum_of, users
from paritas.diagnose.capture import LOGITS, Array, Captured, Pass
from paritas.diagnose.extract import between
from paritas.diagnose.layout import Layout, layouts
from paritas.diagnose.naming import named, telling
from paritas.diagnose.rotations import rotations
from paritas.diagnose.session import Settings
from paritas.diagnose.taps import read
from paritas.runtime.package import Package
from paritas.runtime.ports import read_ports
from paritas.runtime.rows import giving_all

BY_PLACE = 0.8
"""Confidence in a norm whose weight is nobody's: it stands where the reference has a norm."""


@dataclass(frozen=True)
class Cut:
    """A value of the graph that the reference has too.

    Attributes:
        value: its name.
        pieces: the points that its columns are.
        layout: how the graph lays it out.
        element: ONNX's element type.
        operator: what makes it.
        modules: of the reference, whose weights anchor it.
        confidence: 0 to 1; 1 is by weight identity.
    """

    value: str
    pieces: tuple[Piece, ...]
    layout: Layout
    element: int
    operator: str
    modules: tuple[str, ...]
    confidence: float

    @property
    def declared(self) -> onnx.ValueInfoProto:
        """Its type, and its shape with the tokens left open."""
        sizes = [size if place and size > 0 else None for place, size in enumerate(self.layout.shape)]
        return onnx.helper.make_tensor_value_info(self.value, self.element, sizes)

    def wanted(self, one: Pass) -> Array:
        """The reference's ``[tokens, features]``."""
        return wanted(self.pieces, one)


@dataclass(frozen=True)
class Region:
    """What lies between cuts.

    Attributes:
        cut: what it gives.
        names: the reference's words for it, one for each piece of the cut.
        layer: its number; None if it belongs to none.
        operator: ONNX's word for the most telling of its nodes.
        inputs: values of the cuts that it takes.
        inside: modules of the reference that own weights and have no counterpart of their own in the graph.
        nodes: how many.
        terms: features of the widest tensor that it takes: the most that it may add up.
        confidence: of the least certain of its cuts.
    """

    cut: Cut
    names: tuple[str, ...]
    layer: int | None
    operator: str
    inputs: tuple[str, ...]
    inside: tuple[str, ...]
    nodes: int
    terms: int
    confidence: float


@dataclass(frozen=True)
class Alignment:
    """A package beside the reference.

    Attributes:
        proto: its graph; sums that a skip norm gives and nobody takes have names in it.
        cuts: in the order of the graph; a value that is two of its tensors has two.
        regions: one for each cut.
        sums: name of a sum -> the skip norm that gives it.
        missing: modules of the reference that own weights and have no counterpart in the graph.
        unexplained: initializers that are none of the checkpoint's, and nodes outside of every region.
    """

    proto: onnx.ModelProto
    cuts: tuple[Cut, ...]
    regions: tuple[Region, ...]
    sums: Mapping[str, onnx.NodeProto]
    missing: tuple[str, ...]
    unexplained: tuple[str, ...]

    @property
    def is_fp16(self) -> bool:
        """Whether it computes in that type."""
        return any(cut.element == onnx.TensorProto.FLOAT16 for cut in self.cuts)


def align(package: Package, view: View, identity: Identity, captured: Captured) -> Alignment:
    """Find the cuts and the regions.

    Args:
        package: whose graph ``view`` is.
        view: the graph.
        identity: where its weights come from.
        captured: the reference's tensors.

    Raises:
        Invalid: ``runtime-failed``: the package cannot be run.
    """
    ports = read_ports(package.model, package.head_size, package.rewritten)
    proto, sums = _with_sums(view)
    if ports.kept is not None:
        proto = giving_all(proto, ports.kept, ports.logits)
    found = list(anchors(view, identity, captured))
    found.append(Anchor(ports.logits, (Piece(LOGITS, 0, -1),), view.maker[ports.logits], (), 1.0))
    found += list(_by_place(view, identity, captured, found))
    found += list(rotations(view, found, captured))
    aligned = {path for anchor in found for path in anchor.modules}
    found = _without_bare_embedding(found, captured)
    values = list(dict.fromkeys(anchor.value for anchor in found))
    tapped = read(package, captured.prefill.ids, values, settings=Settings("off"), proto=proto).passes[0]
    makers = {name: node for node in proto.graph.node for name in node.output if name}
    cuts = _without_handed_on(_cuts(found, tapped, captured.prefill, makers), captured.prefill, makers)
    stored = {tensor for record in identity.initializers for tensor in record.tensors}
    held = {tensor[:end] for tensor in stored for end, letter in enumerate(tensor) if letter == "."}
    missing = tuple(p for p in captured.modules if p in captured.weighted and p not in aligned and p not in held)
    names = {cut.value for cut in cuts}
    parts = {value: between(makers, names, value) for value in names}
    regions = tuple(_region(cut, cuts, parts[cut.value], captured, missing) for cut in cuts)
    covered = {id(node) for nodes in parts.values() for node in nodes}
    stray = [node for node in proto.graph.node if id(node) not in covered and node.op_type != "Constant"]
    unknown = [r.name for r in identity.initializers if not r.parts and not r.near and r.constant is None]
    unexplained = (*unknown, *(node.name or node.output[0] for node in stray))
    return Alignment(proto, cuts, regions, sums, missing, unexplained)


def wanted(pieces: Sequence[Piece], one: Pass) -> Array:
    """The reference's ``[tokens, features]`` for columns of a value."""
    parts = [one.points[piece.point][:, piece.first : piece.first + piece.stop - piece.start] for piece in pieces]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _with_sums(view: View) -> tuple[onnx.ModelProto, dict[str, onnx.NodeProto]]:
    proto = onnx.ModelProto()
    proto.CopyFrom(view.proto)
    sums: dict[str, onnx.NodeProto] = {}
    for node in proto.graph.node:
        if node.op_type in SKIPS:
            name = sum_of(node)
            node.output.extend([""] * (4 - len(node.output)))
            node.output[3] = name
            sums[name] = node
    return proto, sums


def _by_place(view: View, identity: Identity, captured: Captured, found: Sequence[Anchor]) -> Iterator[Anchor]:
    """Norms of which no value is the checkpoint's: what they take or give is what a module without anchor does."""
    first = captured.prefill.first
    have = {first[piece.point]: a.value for a in found for piece in a.pieces[:1] if piece.point in first}
    values = {value: point for point, value in have.items()}
    owned = {path for anchor in found for path in anchor.modules}
    loose = [path for path in captured.modules if path in captured.weighted and path not in owned]
    ends = {kind: {first.get(f"{path}:{kind}"): path for path in loose} for kind in ("in", "out")}
    for record in identity.initializers:
        for node, place in users(view, record.name) if not record.parts and not record.near else ():
            taken = norm_input(view, node, place)
            path = ends["out"].get(values.get(node.output[0])) or ends["in"].get(values.get(taken or ""))
            if taken is not None and path is not None:
                anchor = Anchor(taken, (Piece(f"{path}:in", 0, -1),), node, (path,), BY_PLACE)
                yield anchor
                yield replace(anchor, value=node.output[0], pieces=(Piece(f"{path}:out", 0, -1),))


def _without_bare_embedding(found: Sequence[Anchor], captured: Captured) -> list[Anchor]:
    """Rows as they are gathered are not what the embedding gives, if a later value is: they are scaled in between."""
    first = captured.prefill.first
    given = first.get(f"{captured.embedding}:out")
    same = [anchor for anchor in found if first.get(anchor.pieces[0].point) == given]
    bare = [anchor for anchor in same if captured.embedding in anchor.modules]
    return [anchor for anchor in found if anchor not in bare] if len(same) > len(bare) else list(found)


def _cuts(
    found: Sequence[Anchor], tapped: Mapping[str, NDArray[Any]], one: Pass, makers: Mapping[str, onnx.NodeProto]
) -> tuple[Cut, ...]:
    cuts: dict[tuple[str, tuple[str, ...]], Cut] = {}
    for anchor in found:
        pieces = _ended(anchor.pieces, one)
        layout = _layout(tapped[anchor.value], pieces, one) if pieces else None
        if layout is None:
            continue
        element = onnx.helper.np_dtype_to_tensor_dtype(tapped[anchor.value].dtype)
        maker = makers.get(anchor.value, anchor.node).op_type
        cut = Cut(anchor.value, pieces, layout, element, maker, anchor.modules, anchor.confidence)
        key = (anchor.value, tuple(one.first[piece.point] for piece in pieces))
        known = cuts.get(key)
        cuts[key] = cut if known is None else _both(known, cut)
    order = {name: place for place, name in enumerate(makers)}
    return tuple(sorted(cuts.values(), key=lambda cut: order[cut.value]))


def _without_handed_on(cuts: Sequence[Cut], one: Pass, makers: Mapping[str, onnx.NodeProto]) -> tuple[Cut, ...]:
    """Without values that are another cut's, only reshaped or cast."""
    points = {(cut.value, one.first[cut.pieces[0].point]) for cut in cuts}

    def is_handed_on(cut: Cut) -> bool:
        value = cut.value
        while value in makers and makers[value].op_type in PASSES:
            value = makers[value].input[0]
            if (value, one.first[cut.pieces[0].point]) in points:
                return True
        return False

    return tuple(cut for cut in cuts if not is_handed_on(cut))


def _both(one: Cut, other: Cut) -> Cut:
    modules = tuple(dict.fromkeys((*one.modules, *other.modules)))
    return replace(one, modules=modules, confidence=max(one.confidence, other.confidence))


def _ended(pieces: Sequence[Piece], one: Pass) -> tuple[Piece, ...]:
    """With the width of the whole point where none is given; nothing if the reference has no such columns."""
    found: list[Piece] = []
    for piece in pieces:
        width = one.points[piece.point].shape[1] if piece.point in one.points else 0
        stop = width if piece.stop < 0 else piece.stop
        if not width or piece.first + stop - piece.start > width:
            return ()
        found.append(replace(piece, stop=stop))
    return tuple(found)


def _layout(value: NDArray[Any], pieces: Sequence[Piece], one: Pass) -> Layout | None:
    """The layout in which a value looks most like the reference's tensor, of those that its shape allows."""
    rows = wanted(pieces, one)
    could = list(layouts(value.shape, *rows.shape))
    if len(could) < 2:
        return could[0] if could else None
    return max(could, key=lambda layout: _cosine(layout.read(value, len(rows)), rows))


def _cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    first, second = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    length = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / length if length > 0 and np.isfinite(length) else -1.0


def _region(
    cut: Cut, cuts: Sequence[Cut], nodes: Sequence[onnx.NodeProto], captured: Captured, missing: Sequence[str]
) -> Region:
    taken = {name for node in nodes for name in node.input}
    before = [other for other in cuts if other.value in taken and other.value != cut.value]
    inside = tuple(path for path in missing if _lies_within(path, before, cut, captured))
    first = captured.prefill.first
    same = {first[piece.point] for piece in cut.pieces}
    others = [o for o in cuts if o.value != cut.value and same & {first[piece.point] for piece in o.pieces}]
    elsewhere = {path for other in others for path in other.modules} - set(cut.modules)
    anchored = {path for other in cuts for path in other.modules} | {captured.embedding}
    loose = captured.weighted - anchored
    unseen = [path for path in captured.modules if path in loose and _lies_within(path, before, cut, captured)]
    return Region(
        cut=cut,
        names=tuple(named(piece.point, captured, elsewhere, unseen) for piece in cut.pieces),
        layer=captured.layer_of(captured.prefill.first[cut.pieces[0].point]),
        operator=telling([node.op_type for node in nodes]),
        inputs=tuple(dict.fromkeys(other.value for other in before)),
        inside=inside,
        nodes=len(nodes),
        terms=max(other.pieces[-1].stop for other in (before or [cut])),
        confidence=min([cut.confidence, *(other.confidence for other in before)]),
    )


def _lies_within(path: str, before: Sequence[Cut], cut: Cut, captured: Captured) -> bool:
    """Whether a module is computed after what a region takes first and before what it gives."""
    order = {point: place for place, point in enumerate(captured.prefill.points)}
    given = order.get(f"{path}:out")
    starts = [order[captured.prefill.first[p.point]] for other in before for p in other.pieces]
    ends = [order[captured.prefill.first[p.point]] for p in cut.pieces]
    return given is not None and bool(starts) and min(starts) < given <= max(ends)
