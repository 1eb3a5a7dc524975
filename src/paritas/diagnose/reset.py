"""Which regions are wrong by themselves: each is given the reference's own tensors, and gives what it makes of them.

The graph is cut at every value that the reference has too. All regions then run at once, in one session, each fed
from the reference: an error that a region shows there was made in it. A decode goes on from the keys and values that
the regions made of the reference's tensors.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.diagnose.align import Alignment, Cut, Region
from paritas.diagnose.anchors import Piece
from paritas.diagnose.capture import Array, Captured, Pass
from paritas.diagnose.diagnosis import RegionError
from paritas.diagnose.extract import extract
from paritas.diagnose.rounding import LAST_BIT, Rows, distance
from paritas.diagnose.session import Session, feeds, handed_on
from paritas.diagnose.skips import norms_alone
from paritas.diagnose.taps import Taps, tap
from paritas.runtime.package import Package
from paritas.runtime.ports import read_ports
from paritas.runtime.stored import tensors

FACTOR = 8.0
"""A region may differ by so many times what rounding does to the reference's own arithmetic: other kernels round at
other places. Right packages of four exporters stay below half of what they may; a test holds them to it."""
SPREAD = 2.0
"""And it may differ by what rounding does to a sum of as many terms as its widest input has features, in whatever order
it is added up: so many times the square root of their number, in last bits (Higham and Mary, 2019)."""

_Rows = Mapping[str, Rows]


@dataclass(frozen=True)
class _Measured:
    """A piece of a region in one phase, at its worst row."""

    accumulated: float
    local: float
    unit: float


def reset(
    package: Package, alignment: Alignment, captured: Captured, rounded: Sequence[_Rows], taps: Taps | None = None
) -> tuple[RegionError, ...]:
    """Local beside accumulated error of every region, in the order of the computation; prefill, then decode.

    Args:
        package: the package.
        alignment: with the reference.
        captured: the reference's tensors; its steps, if it has any, are the decode.
        rounded: what rounding does to each of them, of each pass (:func:`paritas.diagnose.rounding.rounding`).
        taps: the values of the cuts in the whole package; read here if they are not given.

    Raises:
        Invalid: ``runtime-failed``.
    """
    read = taps or whole(package, alignment, captured)
    alone = [each.made for each in fed(package, alignment, captured)]
    found = _errors(alignment, captured, rounded, read.passes, alone)
    doubtful = {error.value for error in found if error.is_source}
    spelled = _spelled_otherwise(package, alignment, captured, rounded, doubtful) if doubtful else frozenset[str]()
    return tuple(error for error in found if error.value not in spelled)


def whole(package: Package, alignment: Alignment, captured: Captured) -> Taps:
    """The values of all cuts in the package as it is, after the same calls."""
    ids = [token for one in captured.passes for token in one.ids]
    prefill = len(captured.prefill.ids) if captured.steps else None
    values = list(dict.fromkeys(cut.value for cut in alignment.cuts))
    return tap(package, ids, values, prefill, proto=alignment.proto)


def cut_graph(
    alignment: Alignment, open_values: frozenset[str], more: Iterable[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The graph cut at every cut, and the names under which the cuts' values are computed.

    A skip norm adds before it normalises, and its sum is a cut as well: its norm is given the reference's sum and
    nothing to add to it.

    Args:
        alignment: of the package.
        open_values: values that are not cut.
        more: other values that are computed.
    """
    values = [cut.value for cut in alignment.cuts]
    proto = onnx.ModelProto()
    proto.CopyFrom(alignment.proto)
    alone = norms_alone(proto, alignment.sums, frozenset(values) - open_values)
    given = {cut.value: cut.declared for cut in alignment.cuts if cut.value not in open_values}
    outputs = list(dict.fromkeys([*(alone.get(value, value) for value in values), *more]))
    part = extract(proto, given, outputs, given)
    names = {value: part.outputs[alone.get(value, value)] for value in values}
    return part.proto, {name: part.outputs[name] for name in more} | names


@dataclass(frozen=True)
class Fed:
    """One call of the cut graph.

    Attributes:
        taken: value -> what its takers are given: the reference's tensor, if it is cut.
        made: value -> what its maker gives.
    """

    taken: Mapping[str, NDArray[Any]]
    made: Mapping[str, NDArray[Any]]


def fed(
    package: Package,
    alignment: Alignment,
    captured: Captured,
    values: Sequence[str] = (),
    open_values: frozenset[str] = frozenset(),
) -> tuple[Fed, ...]:
    """Of each call, what the regions make of the reference's tensors.

    Args:
        package: the package.
        alignment: with the reference.
        captured: the reference's tensors.
        values: more values that are read, beside the cuts; inputs of the graph and initializers may be among them.
        open_values: cuts that are not cut.

    Raises:
        Invalid: ``runtime-failed``.
    """
    ports = read_ports(package.model, package.head_size, package.rewritten)
    made = {name for node in alignment.proto.graph.node if node.op_type != "Constant" for name in node.output}
    more = [name for name in values if name in made]
    proto, names = cut_graph(alignment, open_values, [*(each.present for each in ports.carried), *more])
    session = Session(proto, package.model)
    stored = tensors(alignment.proto, package.model.parent)
    constant = {name: stored[name].array() for name in values if name in stored}
    found: list[Fed] = []
    carried: Mapping[str, NDArray[Any]] = {}
    for one in captured.passes:
        given = feeds(ports, one.ids, one.past, carried)
        cut = {name: v for name, v in reference(alignment.cuts, one).items() if name not in open_values}
        out = session.run(given | cut, list(names.values()))
        results = {value: out[name] for value, name in names.items()}
        carried = handed_on(ports, results)
        found.append(Fed(results | constant | given | cut, results))
    return tuple(found)


def reference(cuts: Iterable[Cut], one: Pass) -> dict[str, NDArray[Any]]:
    """The reference's tensors as the graph has them; a value that is two of them is the earlier."""
    found: dict[str, NDArray[Any]] = {}
    for cut in cuts:
        kind = onnx.helper.tensor_dtype_to_np_dtype(cut.element)
        found.setdefault(cut.value, cut.layout.written(cut.wanted(one)).astype(kind))
    return found


def errors_of(
    phase: str,
    alignment: Alignment,
    passes: Sequence[Pass],
    rounded: Sequence[_Rows],
    read: Sequence[Mapping[str, NDArray[Any]]],
    alone: Sequence[Mapping[str, NDArray[Any]]],
) -> Iterator[RegionError]:
    """Of each region, over calls that belong together.

    Args:
        phase: what the calls are.
        alignment: of the package.
        passes: the reference's tensors, of each call.
        rounded: what rounding does to each of them.
        read: the cuts' values in the whole package.
        alone: the same, made of the reference's tensors.
    """
    for region in alignment.regions if passes else ():
        for name, piece in zip(region.names, region.cut.pieces, strict=True):
            worst = _measured(region, piece, passes, rounded, read, alone)
            yield _error(region, name, worst, phase)


def _errors(
    alignment: Alignment,
    captured: Captured,
    rounded: Sequence[_Rows],
    read: Sequence[Mapping[str, NDArray[Any]]],
    alone: Sequence[Mapping[str, NDArray[Any]]],
) -> list[RegionError]:
    return [
        error
        for phase, calls in (("prefill", slice(0, 1)), ("decode", slice(1, None)))
        for error in errors_of(phase, alignment, captured.passes[calls], rounded[calls], read[calls], alone[calls])
    ]


def _error(region: Region, name: str, worst: _Measured, phase: str) -> RegionError:
    return RegionError(
        region=name,
        layer=region.layer,
        operator=region.operator,
        value=region.cut.value,
        accumulated=worst.accumulated,
        local=worst.local,
        unit=worst.unit,
        confidence=region.confidence,
        phase=phase,
    )


def _measured(
    region: Region,
    piece: Piece,
    passes: Sequence[Pass],
    rounded: Sequence[_Rows],
    read: Sequence[Mapping[str, NDArray[Any]]],
    alone: Sequence[Mapping[str, NDArray[Any]]],
) -> _Measured:
    """The row at which the local error is largest beside what rounding does there."""
    cut = region.cut
    accumulated = np.concatenate([_rows(cut, piece, one, v[cut.value]) for one, v in zip(passes, read, strict=True)])
    local = np.concatenate([_rows(cut, piece, one, v[cut.value]) for one, v in zip(passes, alone, strict=True)])
    unit = np.concatenate([_unit(each, piece, one) for each, one in zip(rounded, passes, strict=True)])
    unit = np.maximum(FACTOR * np.maximum(unit, np.quantile(unit, 0.9)), SPREAD * region.terms**0.5 * LAST_BIT)
    worst = int(np.argmax(local / unit))
    return _Measured(float(accumulated.max()), float(local[worst]), float(unit[worst]))


def _unit(rounded: _Rows, piece: Piece, one: Pass) -> Rows:
    """One rounding, where nothing more is known of a point."""
    known = rounded.get(piece.point)
    return np.full(len(one.ids), LAST_BIT) if known is None else known


def _rows(cut: Cut, piece: Piece, one: Pass, value: NDArray[Any]) -> Rows:
    columns: Array = cut.layout.read(value, len(one.ids))[:, piece.start : piece.stop]
    wide = one.points[piece.point][:, piece.first : piece.first + piece.stop - piece.start]
    return distance(columns, wide)


def _spelled_otherwise(
    package: Package, alignment: Alignment, captured: Captured, rounded: Sequence[_Rows], doubtful: set[str]
) -> frozenset[str]:
    """Values that differ from the reference's, and yet all that is made of them does not: no fault, another spelling.

    Rows of queries and keys in another order, with a rotation that knows it, are the best known.
    """
    opened = [each.made for each in fed(package, alignment, captured, (), frozenset(doubtful))]
    wrong = {error.value for error in _errors(alignment, captured, rounded, opened, opened) if error.is_source}
    users = {value: [r.cut.value for r in alignment.regions if value in r.inputs] for value in doubtful}
    return frozenset(value for value, after in users.items() if after and not wrong.intersection(after))
