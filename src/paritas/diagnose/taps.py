"""Values inside a graph, read while it runs: added as outputs, without copying a weight, and without changing a result.

ONNX Runtime fuses operators, and a value that is asked for can keep it from that. So the logits beside the taps are
compared with the logits without them, bit for bit; where they differ, both are run without any graph optimisation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.diagnose.session import Session, Settings, feeds, handed_on
from paritas.runtime.package import Package
from paritas.runtime.ports import Ports, read_ports

BUDGET = 1 << 30
"""Bytes of tapped values that one run may give."""
Values = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Taps:
    """What was read.

    Attributes:
        passes: of each call, value -> array as the graph has it.
        logits: of each call, ``[tokens, vocabulary]``.
        settings: of the runtime, with which the values were read: without optimisation, if the taps would otherwise
            have changed the logits.
        undisturbed: whether the logits are known to be those without taps, bit for bit.
    """

    passes: tuple[Values, ...]
    logits: tuple[NDArray[Any], ...]
    settings: Settings
    undisturbed: bool


def tap(
    package: Package,
    ids: Sequence[int],
    values: Sequence[str],
    prefill: int | None = None,
    *,
    budget_bytes: int = BUDGET,
    settings: Settings | None = None,
    proto: onnx.ModelProto | None = None,
) -> Taps:
    """Run the package on one sequence and read ``values``.

    Args:
        package: what to run.
        ids: tokens.
        values: names of values of its graph; each of them must be one.
        prefill: tokens that are put at once, the others following one by one; None puts them all at once.
        budget_bytes: of values that are read in one run; more are read in several.
        settings: of the runtime.
        proto: the graph, if it is another than the package's; its external data are the package's.

    Raises:
        Invalid: ``runtime-failed``, or the graph is no decoder.
    """
    wanted = settings or Settings()
    for tried in (wanted, Settings("off", (), wanted.threads)):
        plain = logits(package, ids, prefill, tried, proto)
        found = read(package, ids, values, prefill, budget_bytes=budget_bytes, settings=tried, proto=proto)
        same = all(np.array_equal(one, other, equal_nan=True) for one, other in zip(plain, found.logits, strict=True))
        if same:
            return Taps(found.passes, found.logits, tried, True)
    return found


def read(
    package: Package,
    ids: Sequence[int],
    values: Sequence[str],
    prefill: int | None = None,
    *,
    budget_bytes: int = BUDGET,
    settings: Settings | None = None,
    proto: onnx.ModelProto | None = None,
) -> Taps:
    """As :func:`tap`, without looking whether the taps change anything.

    Raises:
        Invalid: ``runtime-failed``, or the graph is no decoder.
    """
    ports = read_ports(package.model, package.head_size, package.rewritten)
    calls, wanted = _calls(ids, prefill), settings or Settings()
    graph = with_outputs(package.proto if proto is None else proto, values)
    session = Session(graph, package.model, wanted)
    passes: list[Values] = [{} for _ in calls]
    found: list[NDArray[Any]] = []
    for batch in _batches(session, ports, calls, values, budget_bytes):
        given = _run(session, ports, calls, batch)
        found = [_rows(one[ports.logits]) for one in given]
        for kept, one in zip(passes, given, strict=True):
            kept.update({name: one[name] for name in batch})
    return Taps(tuple(passes), tuple(found), wanted, False)


def logits(
    package: Package, ids: Sequence[int], prefill: int | None, settings: Settings, proto: onnx.ModelProto | None = None
) -> tuple[NDArray[Any], ...]:
    """The logits of each call ``[tokens, vocabulary]``, without any tap.

    Raises:
        Invalid: ``runtime-failed``, or the graph is no decoder.
    """
    ports = read_ports(package.model, package.head_size, package.rewritten)
    session = Session(package.proto if proto is None else proto, package.model, settings)
    return tuple(_rows(values[ports.logits]) for values in _run(session, ports, _calls(ids, prefill), ()))


def with_outputs(proto: onnx.ModelProto, values: Sequence[str]) -> onnx.ModelProto:
    """The graph with ``values`` as outputs beside its own."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(proto)
    have = {output.name for output in tapped.graph.output}
    tapped.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in values if name not in have)
    return tapped


def _calls(ids: Sequence[int], prefill: int | None) -> list[tuple[int, Sequence[int]]]:
    """Tokens before each call, and its tokens."""
    if prefill is None:
        return [(0, ids)]
    return [(0, ids[:prefill]), *((place, [ids[place]]) for place in range(prefill, len(ids)))]


def _run(
    session: Session, ports: Ports, calls: Sequence[tuple[int, Sequence[int]]], values: Sequence[str]
) -> list[Values]:
    """Logits and values of each call."""
    found: list[Values] = []
    carried: Mapping[str, NDArray[Any]] = {}
    names = list(dict.fromkeys([*values, ports.logits, *(each.present for each in ports.carried)]))
    for past, new in calls:
        given = session.run(feeds(ports, new, past, carried), names)
        carried = handed_on(ports, given)
        found.append({name: given[name] for name in dict.fromkeys([*values, ports.logits])})
    return found


def _batches(
    session: Session,
    ports: Ports,
    calls: Sequence[tuple[int, Sequence[int]]],
    values: Sequence[str],
    budget: int,
) -> Iterator[list[str]]:
    """As many values at a time as fit: their sizes for one token are measured, and grow with the tokens at most."""
    probe = _run(session, ports, [(0, calls[0][1][:1])], values)[0]
    tokens = sum(len(new) for _, new in calls)
    batch: list[str] = []
    room = budget
    for name in values:
        size = probe[name].nbytes * tokens
        if batch and size > room:
            yield batch
            batch, room = [], budget
        batch.append(name)
        room -= size
    yield batch


def _rows(value: NDArray[Any]) -> NDArray[Any]:
    return value.reshape(-1, value.shape[-1])
