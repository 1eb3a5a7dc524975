"""Weight identity by value: where every initializer of a graph comes from, whatever it is called."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from paritas.audit.experts import as_gate_and_up
from paritas.audit.hashing import of_columns, of_rows
from paritas.audit.match import Part, match_columns, match_rows, match_whole
from paritas.audit.nearest import Near, Scales, nearest
from paritas.audit.sources import Index, Source
from paritas.audit.vectors import match_stacked, match_vector
from paritas.audit.view import View
from paritas.checkpoint import Tensor
from paritas.progress import Progress, silent
from paritas.runtime.quantized import Quantized, quantized
from paritas.runtime.stored import Stored

_BY_ROWS = frozenset({"Gather", "GatherBlockQuantized"})
_HEADS = 512  # no attention has more


@dataclass(frozen=True)
class Provenance:
    """Where one initializer comes from.

    Attributes:
        name, shape, dtype, bytes: of the initializer; of the integers, if it is quantised.
        transposed: parts are of its transposed.
        parts: what it is made of, by equal values; empty if nothing is equal.
        near: what it is nearest to; looked for only where nothing is equal.
        rest: rows (columns, if transposed) that no part covers.
        zero: rows that hold nothing but zeros, among the wrong ones and the rest.
        constant: every value is this one.
        quantized: bits and block, or None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    transposed: bool = False
    parts: tuple[Part, ...] = ()
    near: tuple[Near, ...] = ()
    rest: int = 0
    zero: tuple[int, ...] = ()
    constant: float | None = None
    quantized: str | None = None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Checkpoint tensors that it is made of."""
        return tuple(part.tensor for part in (*self.parts, *self.near))

    @property
    def transforms(self) -> tuple[str, ...]:
        """What was done to them."""
        if self.quantized:
            return (self.quantized,)
        cast = "" if self.dtype == "fp32" else f" as {self.dtype}"
        return tuple(dict.fromkeys([part.transform + cast for part in self.parts] + [_word(n) for n in self.near]))


@dataclass(frozen=True)
class Identity:
    """Weight identity of a whole graph.

    Attributes:
        initializers: every one that can hold a weight, in the order of the graph.
        unused: checkpoint tensors that no initializer is made of.
        sources: the checkpoint's tensors by name.
    """

    initializers: tuple[Provenance, ...]
    unused: tuple[str, ...]
    sources: Mapping[str, Source]

    @property
    def census(self) -> dict[str, int]:
        """Transform -> number of initializers."""
        words = [word for found in self.initializers for word in found.transforms or ("not from the checkpoint",)]
        return dict(Counter(words).most_common())

    def without(self, names: Set[str]) -> "Identity":
        """The same, where some initializers have turned out to be no weights."""
        return replace(self, initializers=tuple(each for each in self.initializers if each.name not in names))


def identify(
    view: View,
    tensors: Mapping[str, Tensor],
    known: Set[str] = frozenset(),
    progress: Progress = silent,
    packed: Mapping[str, Quantized] | None = None,
) -> Identity:
    """Look up every float tensor of the graph in the checkpoint, one in memory at a time.

    Args:
        view: the graph.
        tensors: of the checkpoint, by the text model's names.
        known: initializers that are no weights (RoPE tables).
        progress: told of bytes.
        packed: its weights of integers, where the graph is a rewritten one that does not tell them; None: it does.
    """
    packed = quantized(view.nodes, view.tensors) if packed is None else packed
    members = {name for weight in packed.values() for name in weight.members} | known
    stored = [t for t in view.tensors.values() if t.is_float and t.size > 1 and t.name not in members]
    weights = [as_gate_and_up(each, view) for each in stored]
    found = [Source(name, tensor) for name, tensor in tensors.items() if tensor.size > 1]
    indexes: dict[tuple[str, int], Index] = {}

    def index(dtype: str, columns: int) -> Index:
        if (dtype, columns) not in indexes:
            indexes[dtype, columns] = Index(found, dtype, columns)
        return indexes[dtype, columns]

    records: list[Provenance] = []
    total, done = sum(weight.bytes for weight in weights), 0
    for weight in weights:
        records.append(_identified(weight, view, index, found))
        done += weight.bytes
        progress("comparing weights", done, total)
    records += [_dequantized(weight, view, found) for weight in packed.values()]
    used = {name for record in records for name in record.tensors}
    used |= {other for record in records for part in record.parts for other in part.also}
    unused = tuple(source.name for source in found if source.name not in used)
    return Identity(tuple(records), unused, {source.name: source for source in found})


def _identified(weight: Stored, view: View, index: Callable[[str, int], Index], found: Sequence[Source]) -> Provenance:
    record = Provenance(weight.name, weight.shape, weight.dtype, weight.bytes)
    hint = _names(weight.name)
    rows, columns = weight.matrix
    if rows == 1:
        values = weight.vector()
        parts = match_vector(values, weight.dtype, found, hint)
        same = float(values[0]) if (values == values[0]).all() else None
        return replace(record, parts=parts, constant=None if parts else same, rest=0 if parts else columns)
    for transposed in _orientations(weight, view):
        likely = index(weight.dtype, rows if transposed else columns)
        if parts := _parts(weight, transposed, likely, hint):
            return _with_rows(replace(record, transposed=transposed, parts=parts), weight)
    if rows <= _HEADS and (parts := match_stacked(weight.rows(0, rows), weight.dtype, found)):
        return replace(record, parts=parts)
    return _without(record, weight, view, found, hint)


def _parts(weight: Stored, transposed: bool, index: Index, hint: Sequence[str]) -> tuple[Part, ...]:
    if not index.matrices:
        return ()
    if transposed:
        hashes = of_columns(weight.blocks(), weight.matrix)
        first = np.concatenate([block[:, 0] for _, block in weight.blocks()])

        def same(source: Source) -> bool:
            return np.array_equal(index.of(source), hashes)

        return match_whole(first, same, index, hint, weight.matrix[1]) or match_rows(hashes, index, hint)

    def equal(source: Source) -> bool:
        pairs = ((block, index.cast(source.read(start, start + len(block)))) for start, block in weight.blocks())
        return all(np.array_equal(one.view(np.uint32), other.view(np.uint32)) for one, other in pairs)

    first = weight.rows(0, 1)[0]
    return match_whole(first, equal, index, hint, weight.matrix[0]) or match_rows(_row_hashes(weight), index, hint)


def _row_hashes(weight: Stored) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return np.concatenate([of_rows(block) for _, block in weight.blocks()])


def _orientations(weight: Stored, view: View) -> tuple[bool, bool]:
    """Whether a weight lies transposed is tried in the order that its use suggests."""
    for node, place in view.takers.get(weight.name, ()):
        if node.op_type in _BY_ROWS:
            return False, True
        if node.op_type in ("MatMul", "Gemm", "FusedMatMul") and place == 1:
            by_rows = any(a.name == "transB" and a.i for a in node.attribute)
            return not by_rows, by_rows
    return False, True


def _with_rows(record: Provenance, weight: Stored) -> Provenance:
    count = weight.matrix[1] if record.transposed else weight.matrix[0]
    end = max(part.stop for part in record.parts)
    wrong = [row for part in record.parts for row in part.wrong] + list(range(end, count))
    zero = tuple(row for row in wrong if not _row(weight, row, record.transposed).any())
    return replace(record, rest=count - end, zero=zero)


def _row(weight: Stored, row: int, transposed: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    if not transposed:
        return weight.rows(row, row + 1)[0]
    return np.concatenate([block[:, row] for _, block in weight.blocks()])


def _without(
    record: Provenance, weight: Stored, view: View, found: Sequence[Source], hint: Sequence[str]
) -> Provenance:
    """A weight that equals nothing: what is it nearest to?"""
    rows, columns = weight.matrix
    whole = weight.vector().reshape(rows, columns)
    if (whole == whole.flat[0]).all():
        return replace(record, constant=float(whole.flat[0]), rest=rows)
    matrices = [source for source in found if source.values is None]
    for transposed in _orientations(weight, view):
        matrix = whole.T if transposed else whole
        if parts := match_columns(matrix, weight.dtype, matrices):
            return replace(record, transposed=transposed, parts=parts)
        near = nearest(*matrix.shape, lambda a, b, m=matrix: m[a:b], matrices, hint)
        if near:
            return replace(record, transposed=transposed, near=tuple(near), rest=len(matrix) - near[-1].stop)
    return replace(record, rest=rows)


def _dequantized(weight: Quantized, view: View, found: Sequence[Source]) -> Provenance:
    stored = view.tensors[weight.name]
    matrices = [source for source in found if source.values is None]
    scales = Scales(lambda a, b: weight.read(a, b)[1], weight.block)
    hint = _names(weight.name)
    near = nearest(weight.rows, weight.columns, lambda a, b: weight.read(a, b)[0], matrices, hint, scales)
    size = sum(view.tensors[name].bytes for name in weight.members)
    return Provenance(
        weight.name,
        (weight.rows, weight.columns),
        stored.dtype,
        size,
        near=tuple(near),
        rest=weight.rows - (near[-1].stop if near else 0),
        quantized=f"int{weight.bits} in blocks of {weight.block}",
    )


def _names(name: str) -> tuple[str, ...]:
    return tuple(_spellings(name))


def _spellings(name: str) -> Iterator[str]:
    """What the checkpoint may call an initializer of this name."""
    plain = name.strip("/").replace("/", ".")
    yield name
    yield plain
    for old, new in ((".MatMul.weight", ".weight"), (".attn.", ".self_attn."), ("_t", "")):
        plain = plain.removesuffix(old) + new if plain.endswith(old) else plain.replace(old, new)
        yield plain


def _word(near: Near) -> str:
    if near.rounded:
        return f"rounded to {near.rounded}"
    return "scaled" if near.factor != 1.0 and near.error < 1e-5 else "near"
