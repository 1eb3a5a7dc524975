"""Which checkpoint tensor every weight of the graph stands for, by its place, whatever values it holds.

By place, since a weight may hold anything: the values of another tensor, noise, zeros. The layers of a decoder are
written by the same code of an exporter, so a weight's place in the sequence of a layer's weights tells what it is:
what most layers hold there. Where the graph tells more (an activation follows, an attention takes it as its keys), the
graph is believed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.finding import layer_of
from paritas.audit.identity import Identity, Provenance
from paritas.audit.numbers import activation_after
from paritas.audit.sites import NORMS, PROJECTIONS, Site
from paritas.audit.sources import Source
from paritas.audit.view import PASSES, View, operand
from paritas.diagnose.attention_roles import roles, written_roles
from paritas.diagnose.edit import Edit, RefusedError
from paritas.diagnose.slices import place_of, room_for
from paritas.diagnose.widened_norms import norm_in_fp32
from paritas.runtime.quantized import Quantized, quantized

Rows = NDArray[np.float32]
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_MOSTLY = 0.6
_AS_STORED = frozenset({"Gather", "GatherBlockQuantized", "Conv", "CausalConvWithState"})


@dataclass(frozen=True)
class Use:
    """One node that computes with an initializer.

    Attributes:
        record: where the initializer comes from by value.
        node: that computes with it.
        place: which input of the node.
        taker: the first node on the way from the initializer, behind Casts of it, and which of its inputs.
        flips: transpositions on the way.
        offset: constant that is added on the way.
        order: of the node in the graph.
    """

    record: Provenance
    node: onnx.NodeProto
    place: int
    taker: tuple[onnx.NodeProto, int]
    flips: int
    offset: float
    order: int

    @property
    def transposed(self) -> bool:
        """Whether the initializer holds the transposed of a checkpoint's matrix."""
        if self.record.parts or self.record.near:
            return self.record.transposed
        if self.node.op_type in _AS_STORED or self.record.quantized:
            return False
        by_rows = any(a.name == "transB" and a.i for a in self.node.attribute)
        return (self.flips % 2 == 0) != by_rows


@dataclass(frozen=True)
class Slot:
    """A checkpoint tensor's place in the graph.

    Attributes:
        tensor: that belongs there.
        held: what the live reference calls it: a tied head is its own parameter.
        use: what is there.
        start, stop: rows of the initializer (of its transposed, where it is stored so) that stand for the tensor.
        source: the tensor's row that the first of them is.
        shared: whether other nodes compute with the same initializer.
    """

    tensor: str
    held: str
    use: Use
    start: int
    stop: int
    shared: bool
    source: int = 0

    @property
    def layer(self) -> int | None:
        """Of the tensor."""
        return layer_of(self.tensor)

    def value(self, view: View) -> Rows:
        """What the graph holds there, ``[rows, columns]``, in the checkpoint's order; a vector is one column."""
        return self.sign * self._matrix(view.tensors[self.use.record.name].array())[self.start : self.stop]

    @property
    def sign(self) -> np.float32:
        """-1 for a bias that is subtracted."""
        is_taken_away = self.use.node.op_type == "Sub" and self.use.place == 1 and self.tensor.endswith(".bias")
        return np.float32(-1 if is_taken_away else 1)

    def _matrix(self, stored: NDArray[Any]) -> Rows:
        flat = _flat(stored).astype(np.float32)
        return flat.T if self._turned(flat) else flat

    def _turned(self, flat: NDArray[Any]) -> bool:
        return self.use.transposed and flat.shape[1] > 1

    def write(self, edit: Edit, values: Rows, what: str) -> None:
        """Put other values there, ``[rows, columns]``; who shares the initializer keeps what it has.

        Raises:
            RefusedError: the graph does not admit it.
        """
        name = self.use.record.name
        stored = edit.values(name)
        matrix = np.array(self._matrix(stored))
        matrix[self.start : self.stop] = self.sign * values.reshape(self.stop - self.start, -1)
        turned = matrix.T if self._turned(_flat(stored)) else matrix
        wide = np.ascontiguousarray(turned).reshape(stored.shape)
        whole = wide.astype(stored.dtype)
        if not np.array_equal(whole.astype(np.float32), wide):
            self._widen(edit, wide, what)
            return
        if not self.shared:
            edit.set_initializer(name, whole, what)
            return
        node, place = self.use.taker
        edit.replace_input(
            node.output[0],
            place,
            edit.add_as_is(f"{name}.own", edit.taken(node.output[0], place, whole)),
            what,
        )

    def _widen(self, edit: Edit, wide: NDArray[Any], what: str) -> None:
        """A weight in fp32 in place of one that its type cannot hold, where the graph, or a norm, can compute so."""
        node, place = self.use.node, self.use.place
        given = edit.taken(node.output[0], place, wide)
        if node.op_type in NORMS and given.dtype == np.float16 and not self.use.flips and not self.use.offset:
            norm_in_fp32(edit, node.output[0], place, wide, what)
            return
        if self.use.flips or self.use.offset or given.dtype != np.float32:
            raise RefusedError(f"{self.use.record.name}: {self.use.record.dtype} cannot hold it")
        edit.replace_input(node.output[0], place, edit.add_as_is(f"{self.use.record.name}.wide", given), what)


def slots(
    view: View,
    identity: Identity,
    sites: Sequence[Site],
    names: Iterable[str],
    packed: Mapping[str, Quantized] | None = None,
) -> tuple[Slot, ...]:
    """Every place of the graph where a tensor of the checkpoint belongs, in the order of the graph.

    Args:
        view: the graph.
        identity: of its initializers.
        sites: its attention operators.
        names: of the checkpoint's tensors.
        packed: weights of integers, by the name of their initializer, where the graph is a rewritten one that does not
            tell them; None: it does.
    """
    packed = quantized(view.nodes, view.tensors) if packed is None else packed
    known = set(names)
    order = {id(node): place for place, node in enumerate(view.nodes)}
    uses = sorted((u for record in identity.initializers for u in _uses(view, record, order)), key=lambda u: u.order)
    told = _by_pattern(uses, known)
    told = _by_structure(view, roles(view, sites) | written_roles(view, identity), uses, told, known)
    counts = Counter(use.record.name for use in uses)
    shapes = {name: _shape(source) for name, source in identity.sources.items()}
    told = _by_elimination(uses, told, shapes)
    sizes = {name: shape[0] for name, shape in shapes.items()}
    found: list[Slot] = []
    for use, tensors in zip(uses, told, strict=True):
        found += _slots(use, tensors, counts[use.record.name] > 1, sizes)
    placed = {id(slot.use) for slot in found}
    for use in (each for each in uses if id(each) not in placed and each.record.constant != 1):
        found += _sliced(use, _held(view, use, packed), found, identity.sources, shapes)
    return tuple(found)


def _uses(view: View, record: Provenance, order: Mapping[int, int]) -> Iterator[Use]:
    for node, place in view.takers.get(record.name, ()):
        yield from _follow(view, Use(record, node, place, (node, place), 0, 0.0, 0), order)


def _follow(view: View, use: Use, order: Mapping[int, int]) -> Iterator[Use]:
    """Through what only casts, turns or offsets a weight, to what computes with it."""
    node = use.node
    given = operand(view, node) if node.op_type == "Add" else None
    dequantises = use.place == 0 and node.op_type == "DequantizeLinear"
    if node.op_type not in PASSES and given is None and not dequantises:
        yield replace(use, order=order[id(node)])
        return
    flips = use.flips + (node.op_type == "Transpose")
    offset = use.offset + (given[1] if given else 0.0)
    for taker, place in view.takers.get(node.output[0], ()):
        first = (taker, place) if node.op_type == "Cast" and use.taker[0] is node else use.taker
        yield from _follow(view, replace(use, node=taker, place=place, taker=first, flips=flips, offset=offset), order)


# By pattern.


def _by_pattern(uses: Sequence[Use], known: set[str]) -> list[tuple[str, ...]]:
    """For each use: the tensors that belong there; empty where that cannot be told."""
    numbers = _layers(uses)
    groups: dict[int, list[int]] = defaultdict(list)
    for place, number in enumerate(numbers):
        if number is not None:
            groups[number].append(place)
    honest = _are_honest(uses, known)
    votes: dict[tuple[int, int], Counter[tuple[str, ...]]] = defaultdict(Counter)
    for places in groups.values():
        for nth, place in enumerate(places):
            for suffixes, weight in _votes(uses[place], known, 3 if honest else 1):
                votes[len(places), nth][suffixes] += weight
    told: list[tuple[str, ...]] = [_outside(use, known) for use in uses]
    for number, places in groups.items():
        for nth, place in enumerate(places):
            ranked = votes[len(places), nth].most_common()
            wanted = [tuple(suffix.replace("#", str(number), 1) for suffix in each) for each, _ in ranked]
            told[place] = next((each for each in wanted if set(each) <= known), told[place])
    return told


def _layers(uses: Sequence[Use]) -> list[int | None]:
    """By the names of initializer and node, where they say it; else by what most say around it."""
    named = [
        layer_of(use.record.name) if layer_of(use.record.name) is not None else layer_of(use.node.name) for use in uses
    ]
    if any(number is not None for number in named):
        return named
    valued = [next((layer_of(t) for t in use.record.tensors), None) for use in uses]
    return [_between(valued, place) for place in range(len(valued))]


def _between(numbers: Sequence[int | None], place: int) -> int | None:
    before = next((n for n in reversed(numbers[:place]) if n is not None), None)
    after = next((n for n in numbers[place + 1 :] if n is not None), None)
    return before if before == after else numbers[place]


def _are_honest(uses: Sequence[Use], known: set[str]) -> bool:
    """Whether initializers that are called as a tensor is mostly hold it."""
    named = [use for use in uses if use.record.name in known and use.record.tensors]
    right = [use for use in named if use.record.name in _all_of(use.record)]
    return bool(named) and len(right) > _MOSTLY * len(named)


def _all_of(record: Provenance) -> set[str]:
    return {*record.tensors, *(other for part in record.parts for other in part.also)}


def _votes(use: Use, known: set[str], named: int) -> Iterator[tuple[tuple[str, ...], int]]:
    """What a use says of its place: its values twice, its name as often as is told."""
    if use.record.tensors and all(layer_of(tensor) is not None for tensor in use.record.tensors):
        yield tuple(_suffix(tensor) for tensor in use.record.tensors), 2
    name = use.record.name
    if name in known and layer_of(name) is not None:
        yield (_suffix(name),), named


def _suffix(tensor: str) -> str:
    return tensor.replace(f".{layer_of(tensor)}.", ".#.", 1)


def _outside(use: Use, known: set[str]) -> tuple[str, ...]:
    """What belongs to no layer: by its name, else by its values."""
    name, tensors = use.record.name, use.record.tensors
    if use.node.op_type in PROJECTIONS and (name == _EMBEDDING or set(tensors) & {_EMBEDDING, _HEAD}):
        return (_HEAD,) if _HEAD in known else (_EMBEDDING,)
    if name in known:
        return (name,)
    return tensors if all(layer_of(tensor) is None for tensor in tensors) else ()


def _by_elimination(
    uses: Sequence[Use], told: list[tuple[str, ...]], shapes: Mapping[str, tuple[int, int]]
) -> list[tuple[str, ...]]:
    """A use that nothing tells of takes the only tensor of its shape that is nowhere else."""
    result, numbers = list(told), _layers(uses)
    left = set(shapes) - {tensor for tensors in told for tensor in tensors}
    for place, use in enumerate(uses):
        if result[place]:
            continue
        rows, columns = _flat_shape(use.record.shape)
        same = [t for t in left if layer_of(t) == numbers[place] and shapes[t] in ((rows, columns), (columns, rows))]
        if len(same) == 1:
            result[place] = (same[0],)
            left -= set(same)
    return result


# By structure.


def _by_structure(
    view: View, known_roles: Mapping[int, str], uses: Sequence[Use], told: list[tuple[str, ...]], known: set[str]
) -> list[tuple[str, ...]]:
    """Where the graph itself says which of two alike tensors belongs to a place."""
    result = list(told)
    for place, (use, tensors) in enumerate(zip(uses, told, strict=True)):
        if len(tensors) != 1:
            continue
        role = known_roles.get(id(use.node)) if use.place else None
        is_bias = use.node.op_type == "Add" and tensors[0].endswith(".bias")
        is_seen = is_bias or use.node.op_type in PROJECTIONS
        if role is None and is_seen and ".mlp." in tensors[0]:
            role = _gate_or_up(view, use)
        if role and (better := _in_role(tensors[0], role)) in known:
            result[place] = (better,)
    return result


def _in_role(tensor: str, role: str) -> str:
    """The tensor's name with the part that says its role exchanged."""
    for pair in (("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj"), ("q_norm", "k_norm")):
        for word in pair:
            if f".{word}." in tensor and role in pair:
                return tensor.replace(f".{word}.", f".{role}.")
    return tensor


def _gate_or_up(view: View, use: Use) -> str | None:
    """The gate goes through the activation, which takes it once or several times; the other is multiplied by that."""
    name, takers = use.node.output[0], list[onnx.NodeProto]()
    for _ in range(4):
        takers = [node for node, _ in view.takers.get(name, ())]
        if len(takers) != 1 or takers[0].op_type not in (*PASSES, "Add"):
            break
        name = takers[0].output[0]
    if len(takers) > 1 or activation_after(view, name) is not None:
        return "gate_proj"
    is_product = len(takers) == 1 and takers[0].op_type == "Mul" and operand(view, takers[0]) is None
    return "up_proj" if is_product else None


# Rows.


def _slots(use: Use, tensors: tuple[str, ...], shared: bool, sizes: Mapping[str, int]) -> Iterator[Slot]:
    record = use.record
    if not tensors or any(t not in sizes for t in tensors):
        return
    if tensors == record.tensors and record.parts and len(tensors) > 1:
        for part in record.parts:
            if not part.permuted:
                yield Slot(part.tensor, part.tensor, use, part.start, part.stop, shared, part.source)
        return
    rows, _ = _flat_shape(record.shape if not use.transposed else record.shape[::-1])
    if len(tensors) == 1 and rows < sizes[tensors[0]]:
        if (source := _source(use, tensors[0])) is not None:
            yield Slot(tensors[0], tensors[0], use, 0, rows, shared, source)
        return
    start, is_head = 0, tensors == (_EMBEDDING,) and use.node.op_type in PROJECTIONS
    for tensor in tensors:
        yield Slot(tensor, _HEAD if is_head else tensor, use, start, start + sizes[tensor], shared)
        start += sizes[tensor]


def _held(view: View, use: Use, packed: Mapping[str, Quantized]) -> Rows:
    """What an initializer stands for, ``[rows, columns]``, in the checkpoint's order."""
    if (weight := packed.get(use.record.name)) is not None:
        return weight.read(0, weight.rows)[0]
    flat = _flat(view.tensors[use.record.name].array()).astype(np.float32)
    return flat.T if use.transposed and flat.shape[1] > 1 else flat


def _sliced(
    use: Use, matrix: Rows, known: Sequence[Slot], sources: Mapping[str, Source], shapes: Mapping[str, tuple[int, int]]
) -> Iterator[Slot]:
    """A part of a tensor, whose row it begins at is told by its values, or by the only room that is left."""
    (layer,), (rows, columns) = _layers([use]), matrix.shape
    whole = {slot.tensor for slot in known if slot.stop - slot.start == shapes[slot.tensor][0]}
    near = [tensor for tensor in shapes if layer_of(tensor) == layer and tensor not in whole]
    starts = {tensor: place_of(matrix, sources[tensor]) for tensor in near}
    found = next(((tensor, start) for tensor, start in starts.items() if start is not None), None)
    if found is None:
        covered = {t: [(s.source, s.source + s.stop - s.start) for s in known if s.tensor == t] for t in near}
        found = room_for(rows, columns, {t: ranges for t, ranges in covered.items() if ranges}, shapes)
    if found is not None:
        yield Slot(found[0], found[0], use, 0, rows, False, found[1])


def _source(use: Use, tensor: str) -> int | None:
    """The row of a tensor at which an initializer begins that is a part of it."""
    return next((part.source for part in use.record.parts if part.tensor == tensor), None)


def _shape(source: Source) -> tuple[int, int]:
    return (source.rows, source.columns) if source.values is None else (source.values.size, 1)


def _flat_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    long = [n for n in shape if n != 1]
    return (int(np.prod(shape)), 1) if len(long) < 2 else (long[0], int(np.prod(long[1:])))


def _flat(stored: NDArray[Any]) -> NDArray[Any]:
    long = [n for n in stored.shape if n != 1]
    return stored.reshape(-1, 1) if len(long) < 2 else stored.reshape(long[0], -1)
