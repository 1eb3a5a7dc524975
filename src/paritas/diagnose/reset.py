"""Which regions are wrong by themselves: each is given the reference's own tensors, and gives what it makes of them.

The graph is cut at every value that the reference has too. All regions then run at once, in one session, each fed
from the reference: an error that a region shows there was made in it. A decode goes on from the keys and values that
the regions made of the reference's tensors.
"""

from collections.abc import Iterable, Mapping, Sequence
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
from paritas.diagnose.rounding import Rows, distance
from paritas.diagnose.session import Session, feeds, handed_on
from paritas.diagnose.skips import norms_alone
from paritas.diagnose.taps import Taps, tap
from paritas.runtime.package import Package
from paritas.runtime.ports import read_ports

FACTOR = 8.0
"""A region may differ by so many times what rounding does to the reference's own arithmetic: other kernels add up in
another order. Measured on right packages of four exporters: none needs more than 3."""

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
    fed = _alone(package, alignment, captured, frozenset())
    found = _errors(alignment, captured, rounded, read.passes, fed)
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
    alignment: Alignment, open_values: frozenset[str], presents: Iterable[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The graph cut at every cut, and the names under which the cuts' values are computed.

    A skip norm adds before it normalises, and its sum is a cut as well: its norm is given the reference's sum and
    nothing to add to it.

    Args:
        alignment: of the package.
        open_values: values that are not cut.
        presents: outputs of the graph that go from call to call.
    """
    values = [cut.value for cut in alignment.cuts]
    proto = onnx.ModelProto()
    proto.CopyFrom(alignment.proto)
    alone = norms_alone(proto, alignment.sums, frozenset(values) - open_values)
    given = {cut.value: cut.element for cut in alignment.cuts if cut.value not in open_values}
    outputs = list(dict.fromkeys([*(alone.get(value, value) for value in values), *presents]))
    part = extract(proto, given, outputs, given)
    names = {value: part.outputs[alone.get(value, value)] for value in values}
    return part.proto, names | {name: part.outputs[name] for name in presents}


def _alone(
    package: Package, alignment: Alignment, captured: Captured, open_values: frozenset[str]
) -> tuple[Mapping[str, NDArray[Any]], ...]:
    """Of each call, the values that the regions make of the reference's tensors; values that are open are not cut."""
    ports = read_ports(package.model, package.head_size)
    presents = [each.present for each in ports.carried]
    proto, names = cut_graph(alignment, open_values, presents)
    session = Session(proto, package.model)
    found: list[Mapping[str, NDArray[Any]]] = []
    carried: Mapping[str, NDArray[Any]] = {}
    for one in captured.passes:
        given = session.run(
            feeds(ports, one.ids, one.past, carried) | _reference(alignment.cuts, one), [*names.values()]
        )
        values = {value: given[name] for value, name in names.items()}
        carried = handed_on(ports, values)
        found.append({value: values[value] for value in names if value not in presents})
    return tuple(found)


def _reference(cuts: Iterable[Cut], one: Pass) -> dict[str, NDArray[Any]]:
    """The reference's tensors as the graph has them; a value that is two of them is the earlier."""
    found: dict[str, NDArray[Any]] = {}
    for cut in cuts:
        kind = onnx.helper.tensor_dtype_to_np_dtype(cut.element)
        found.setdefault(cut.value, cut.layout.written(cut.wanted(one)).astype(kind))
    return found


def _errors(
    alignment: Alignment,
    captured: Captured,
    rounded: Sequence[_Rows],
    read: Sequence[Mapping[str, NDArray[Any]]],
    fed: Sequence[Mapping[str, NDArray[Any]]],
) -> list[RegionError]:
    found: list[RegionError] = []
    for phase, calls in (("prefill", slice(0, 1)), ("decode", slice(1, None))):
        passes = captured.passes[calls]
        for region in alignment.regions if passes else ():
            for name, piece in zip(region.names, region.cut.pieces, strict=True):
                worst = _measured(region.cut, piece, passes, rounded[calls], read[calls], fed[calls])
                found.append(_error(region, name, worst, phase))
    return found


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
    cut: Cut,
    piece: Piece,
    passes: Sequence[Pass],
    rounded: Sequence[_Rows],
    read: Sequence[Mapping[str, NDArray[Any]]],
    fed: Sequence[Mapping[str, NDArray[Any]]],
) -> _Measured:
    """The row at which the local error is largest beside what rounding does there."""
    accumulated = np.concatenate([_rows(cut, piece, one, v[cut.value]) for one, v in zip(passes, read, strict=True)])
    local = np.concatenate([_rows(cut, piece, one, v[cut.value]) for one, v in zip(passes, fed, strict=True)])
    unit = np.concatenate([each[piece.point] for each in rounded])
    unit = FACTOR * np.maximum(unit, np.quantile(unit, 0.9))
    worst = int(np.argmax(local / unit))
    return _Measured(float(accumulated.max()), float(local[worst]), float(unit[worst]))


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
    fed = _alone(package, alignment, captured, frozenset(doubtful))
    wrong = {error.value for error in _errors(alignment, captured, rounded, fed, fed) if error.is_source}
    users = {value: [r.cut.value for r in alignment.regions if value in r.inputs] for value in doubtful}
    return frozenset(value for value, after in users.items() if after and not wrong.intersection(after))
