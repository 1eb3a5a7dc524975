"""Cosines and sines that the graph takes for the new tokens of one call, whatever they hang on."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate_part
from paritas.audit.masks import feeds
from paritas.audit.sites import Site
from paritas.audit.view import PASSES
from paritas.diagnose.case import Case
from paritas.diagnose.difference import NotBrokenError
from paritas.diagnose.live import Live
from paritas.diagnose.parameters.tables import Rows, once, twice_of
from paritas.diagnose.turning import KEY, QUERY, Turn, Turning

_SEVERAL = 4


@dataclass(frozen=True)
class Taking:
    """Where a rotation takes its cosines and sines from.

    Attributes:
        cos, sin: names of the values.
        ids: of the value that says which rows; empty if the values are rows already.
        is_last: whether ``ids`` is the last token's index, as GroupQueryAttention takes it.
        neighbours: whether pairs lie side by side; None if the values tell.
    """

    cos: str
    sin: str
    ids: str = ""
    is_last: bool = False
    neighbours: bool | None = None


@dataclass(frozen=True)
class Step:
    """A call of one row: new tokens, tokens before them, how many of all are padding before the text."""

    new: int
    past: int = 0
    padded: int = 0


def takings(site: Site) -> Iterator[tuple[str, Taking]]:
    """Of queries and of keys, by :data:`~paritas.diagnose.turning.QUERY` and KEY."""
    node, values = site.node, site.values
    if site.operator == "GroupQueryAttention" and values.get("do_rotary") and len(node.input) > 8:
        ids = node.input[9] if len(node.input) > 9 else ""
        inside = Taking(
            node.input[7], node.input[8], ids or node.input[5], not ids, bool(values.get("rotary_interleaved", 0))
        )
        yield from ((half, inside) for half in (QUERY, KEY))
    for half, trail in ((QUERY, site.q), (KEY, site.k)):
        if trail and trail.rotary is not None:
            yield half, taking_of(trail.rotary)


def taking_of(node: onnx.NodeProto) -> Taking:
    """Of a RotaryEmbedding."""
    first, place = (2, 1) if node.domain == "com.microsoft" else (1, 3)
    ids = node.input[place] if len(node.input) > place else ""
    neighbours = any(a.name == "interleaved" and a.i for a in node.attribute)
    return Taking(node.input[first], node.input[first + 1], ids, neighbours=neighbours)


def rows_taken(case: Case, taking: Taking, step: Step) -> Turn | None:
    """What the new tokens of a call are rotated by, ``[1, new, pairs]``; None if that cannot be told."""
    key = ("rows taken", taking, step)
    if key not in case.view.memory:
        case.view.memory[key] = _taken(case, taking, step)
    return case.view.memory[key]


def _taken(case: Case, taking: Taking, step: Step) -> Turn | None:
    cos, sin = (_rows(case, name, step) for name in (taking.cos, taking.sin))
    places = _places(case, taking, step) if taking.ids else None
    if cos is None or sin is None or (taking.ids and places is None):
        return None
    if places is not None:
        if places.max(initial=0) >= len(cos) or places.min(initial=0) < 0:
            return None
        cos, sin = cos[places], sin[places]
    if len(cos) != step.new or len(sin) != step.new:
        return None
    twice = _twice(case, taking, cos, step)
    neighbours = twice == "neighbours" if taking.neighbours is None else taking.neighbours
    return Turn(once(cos, twice)[None], once(sin, twice)[None], neighbours)


def _twice(case: Case, taking: Taking, cos: Rows, step: Step) -> str:
    """How columns stand twice: the first position alone, where all cosines are 1, does not tell."""
    if step.new > 1:
        return twice_of(cos)
    several = _rows(case, taking.cos, Step(_SEVERAL))
    return twice_of(cos if several is None else several)


def _rows(case: Case, name: str, step: Step) -> Rows | None:
    """The value, a row a token or a position: stored as it is, gathered out of what is stored, or computed."""
    view = case.view
    while (node := view.maker.get(name)) is not None and node.op_type in PASSES:
        name = node.input[0]
    if name in view.tensors:
        return _stored(case, name)
    if node is not None and node.op_type == "Gather" and (table := view.initializer(node.input[0])) is not None:
        values = _evaluated(case, node.input[1], step)
        places = np.zeros(0, np.int64) if values is None else values.reshape(-1).astype(np.int64)
        rows = _stored(case, table.name)
        return rows[places] if places.size and int(places.max()) < len(rows) else None
    values = _evaluated(case, name, step)
    return None if values is None else _flat(values)


def _stored(case: Case, name: str) -> Rows:
    key = ("rows stored", name)
    if key not in case.view.memory:
        case.view.memory[key] = _flat(case.view.tensors[name].array())
    return case.view.memory[key]


def _flat(values: NDArray[np.generic]) -> Rows:
    return np.asarray(values, np.float32).reshape(-1, values.shape[-1])


def _places(case: Case, taking: Taking, step: Step) -> NDArray[np.int64] | None:
    values = _evaluated(case, taking.ids, step)
    if values is None:
        return None
    flat = values.reshape(-1).astype(np.int64)
    if not taking.is_last:
        return flat if len(flat) == step.new else None
    return None if step.padded or len(flat) != 1 else np.arange(step.new) + int(flat[0]) - step.new + 1


def _evaluated(case: Case, name: str, step: Step) -> NDArray[np.generic] | None:
    if name in case.view.tensors:
        return case.view.tensors[name].array()
    given = feeds(case.view, step.new, step.past, step.padded)
    if name in given:
        return given[name]
    values = evaluate_part(case.view, [name], given, step.new)
    return None if values is None else values[0]


def as_taken(case: Case, taking: Taking) -> Turning:
    """What the package rotates by, in the reference's calls."""

    def turn(live: Live) -> Turn:
        new, past = live.positions.shape[1], live.past
        padded = [int((row == 0).cumprod().sum()) for row in live.mask]
        rows = [rows_taken(case, taking, Step(new, past, count)) for count in padded]
        known = [row for row in rows if row is not None]
        if len(known) < len(rows):
            raise NotBrokenError(f"{taking.cos} is not known in every call")
        cos, sin = (np.concatenate([getattr(row, half) for row in known]) for half in ("cos", "sin"))
        return Turn(cos, sin, known[0].neighbours)

    return turn
