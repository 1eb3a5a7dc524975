"""Regions under padding: the same row with padding beside it has to give the same tensors."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.align import Alignment, Cut
from paritas.diagnose.capture import Captured, Pass
from paritas.diagnose.diagnosis import RegionError
from paritas.diagnose.reset import cut_graph, errors_of, reference
from paritas.diagnose.rounding import Rows
from paritas.diagnose.session import Session, feeds
from paritas.diagnose.taps import with_outputs
from paritas.runtime.package import Package
from paritas.runtime.padding import left_padding_obstacle
from paritas.runtime.ports import read_ports

PADDING = 5  # tokens beside the row
Values = Mapping[str, NDArray[Any]]


def padded(
    package: Package,
    alignment: Alignment,
    captured: Captured,
    rounded: Sequence[Mapping[str, Rows]],
    comparable: Collection[str],
) -> tuple[RegionError, ...]:
    """As :func:`paritas.diagnose.reset.reset` for the prefill, with padding before it.

    Where an operator of the graph takes padding only on the right, it stands there. Empty if the graph cannot be told
    of padding. Values that are not ``comparable`` (another spelling of the reference's) are neither cut nor compared.

    Raises:
        Invalid: ``runtime-failed``.
    """
    ports = read_ports(package.model, package.head_size, package.rewritten)
    if ports.attention_mask is None or ports.new == 1:
        return ()
    left = left_padding_obstacle(package.model) is None
    one = captured.prefill
    given = feeds(ports, _beside(one.ids, left), 0, {}, _mask(len(one.ids), left))
    values = [cut.value for cut in alignment.cuts]
    whole = Session(with_outputs(alignment.proto, values), package.model).run(given, list(dict.fromkeys(values)))
    proto, names = cut_graph(alignment, frozenset(values) - frozenset(comparable), ())
    fed = given | reference(alignment.cuts, _wider(one, left))
    made = Session(proto, package.model).run(fed, list(names.values()))
    alone = {value: made[name] for value, name in names.items()}
    rows = [_real(alignment.cuts, each, len(one.ids), left) for each in (whole, alone)]
    found = errors_of("padded", alignment, [one], [rounded[0]], [rows[0]], [rows[1]])
    return tuple(error for error in found if error.value in comparable)


def _beside(ids: Sequence[int], left: bool) -> list[int]:
    padding = [ids[0]] * PADDING
    return [*padding, *ids] if left else [*ids, *padding]


def _mask(tokens: int, left: bool) -> NDArray[np.int64]:
    return np.pad(np.ones(tokens, np.int64), (PADDING, 0) if left else (0, PADDING))


def _wider(one: Pass, left: bool) -> Pass:
    """The reference's tensors with the first row in the padding's place: what stands there must not matter."""

    def wide(rows: NDArray[Any]) -> NDArray[Any]:
        padding = np.repeat(rows[:1], PADDING, axis=0)
        return np.concatenate([padding, rows] if left else [rows, padding])

    return replace(one, points={point: wide(rows) for point, rows in one.points.items()})


def _real(cuts: Sequence[Cut], values: Values, tokens: int, left: bool) -> dict[str, NDArray[Any]]:
    """Without the padding's rows, as the graph has them."""
    real = slice(PADDING, None) if left else slice(0, tokens)
    return {cut.value: cut.layout.written(cut.layout.read(values[cut.value], tokens + PADDING)[real]) for cut in cuts}
