"""Rotations that are written out: the cosines and sines that queries and keys are multiplied by."""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate_part
from paritas.audit.masks import feeds
from paritas.audit.view import View
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.parameters.tables import Rows, Table, apart, beginning, others, read_table, widened
from paritas.diagnose.subgraphs import op, positions
from paritas.diagnose.written_place import WrittenPlace, nodes_between, written_places

_SAME = frozenset({"Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"})
_FEW = 4


def written_rope_differences(case: Case) -> Iterator[Difference]:
    """Every layer whose written-out rotation is not the reference's."""
    for place in written_places(case):
        facts = case.live.facts.get(place.layer)
        table = _table(case, place)
        if facts is None or not facts.rotates or table is None:
            continue
        right = case.live.rope(place.layer, np.arange(len(table.cos)))
        if right is None:
            continue
        wanted = Table(*right, "fp32", table.names)
        if table.cos.shape != wanted.cos.shape or apart(table, wanted):
            yield _difference(case, place, table, wanted)


def _table(case: Case, place: WrittenPlace) -> Table | None:
    """Cosines are those that are not zero at the first position."""
    names = place.found.q_tables
    if len(names) != 2:
        return None
    table = read_table(case, names[0], names[1])
    if table is not None and np.abs(table.cos[0]).max() < np.abs(table.sin[0]).max():
        table = read_table(case, names[1], names[0])
    return table


def _difference(case: Case, place: WrittenPlace, got: Table, wanted: Table) -> Difference:
    count = len(got.cos)

    def rows(at: NDArray[np.int64]) -> tuple[Rows, Rows]:
        at = np.minimum(at, count - 1)
        return got.cos[at], got.sin[at]

    same = got.cos.shape[1] == wanted.cos.shape[1]
    return Difference(
        parameter="rope-table",
        where=f"model.layers.{place.layer}.self_attn",
        layer=place.layer,
        package=got,
        reference=wanted,
        fact=f"rotates by {got.words()}, the reference by {wanted.words()}{beginning(got, wanted)}",
        breaks=(lambda: case.live.rotating(place.layer, rows))
        if same
        else (lambda: case.live.rotating_by(place.layer, rows, neighbours=got.twice == "neighbours")),
        repairs=(lambda edit: _write(edit, case, place, got)) if same else None,
        facts={"others": others(case, place.layer, count)},
    )


def _write(edit: Edit, case: Case, place: WrittenPlace, got: Table) -> None:
    """Each product with a cosine or a sine takes a row of the right table at its position."""
    length = case.package.context or case.truths.facts.positions or 4096
    right = case.live.rope(place.layer, np.arange(length))
    assert right is not None
    found = place.found
    ways = [nodes_between(case.view, found.q.value, found.q_end), nodes_between(case.view, found.k.value, found.k_end)]
    for number, name in enumerate(got.names):
        rows = widened(right[number], got.twice)
        key = f"rows {rows.tobytes().hex()[:4096]} {rows.shape}"
        for node, place_of, value in _takers(case.view, [each for way in ways for each in way], name):
            rank = _rank(case, value)
            new = edit.once(f"{key} {rank}", lambda r=rows, n=rank: _rows(edit, case, r, n))
            edit.replace_input(node.output[0], place_of, new, f"rows of a table of {length:,} positions")


def _takers(view: View, nodes: Sequence[onnx.NodeProto], name: str) -> Iterator[tuple[onnx.NodeProto, int, str]]:
    for node in nodes:
        for number, value in enumerate(node.input):
            origin = value
            while (maker := view.maker.get(origin)) is not None and maker.op_type in _SAME:
                origin = maker.input[0]
            if node.op_type == "Mul" and name in (value, origin):
                yield node, number, value


def _rank(case: Case, value: str) -> int:
    values = evaluate_part(case.view, [value], feeds(case.view, _FEW, 0), _FEW)
    return 3 if values is None else values[0].ndim


def _rows(edit: Edit, case: Case, rows: Rows, rank: int) -> str:
    """Rows ``[batch, new, head_dim]`` at the positions, with an axis for the heads where the old value has one."""
    taken = op(edit, "Gather", edit.add_initializer("rotation", rows), positions(edit, case))
    if rank < 4:
        return taken
    axes = edit.once("axis of heads", lambda: edit.add_initializer("axis", np.array([1], np.int64)))
    return op(edit, "Unsqueeze", taken, axes)
