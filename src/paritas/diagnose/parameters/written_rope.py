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
from paritas.diagnose.edit import Edit, RefusedError
from paritas.diagnose.parameters.tables import Rows, Table, apart, beginning, others, read_table
from paritas.diagnose.rotation_graphs import hangs_on_length, rows
from paritas.diagnose.subgraphs import integer, op
from paritas.diagnose.turning import alike, by_position
from paritas.diagnose.written_place import WrittenPlace, nodes_between, written_places

_SAME = frozenset({"Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"})
_FEW = 4


def written_rope_differences(case: Case) -> Iterator[Difference]:
    """Every layer whose written-out rotation is not the reference's."""
    for place in written_places(case):
        facts = case.live.facts.get(place.layer)
        table = _table(case, place)
        if facts is None or not facts.rotates or table is None or hangs_on_length(case, place.layer):
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

    def own(at: NDArray[np.int64]) -> tuple[Rows, Rows]:
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
        breaks=(lambda: case.live.rotating(place.layer, own))
        if same
        else (lambda: alike(case.live, place.layer, by_position(own, neighbours=got.twice == "neighbours"))),
        repairs=(lambda edit: write_rows(edit, case, place)) if same else None,
        facts={"others": others(case, place.layer, count)},
    )


def write_rows(edit: Edit, case: Case, place: WrittenPlace) -> None:
    """Each product with a cosine or a sine takes what the reference multiplies by in that call.

    Raises:
        RefusedError: the graph has no positions, or what it multiplies by is not read.
    """
    got = _table(case, place)
    if got is None:
        raise RefusedError("what queries and keys are multiplied by is not told")
    found = place.found
    ways = [nodes_between(case.view, found.q.value, found.q_end), nodes_between(case.view, found.k.value, found.k_end)]
    for name, right in zip(got.names, rows(edit, case, place.layer), strict=True):
        for node, place_of, value in _takers(case.view, [each for way in ways for each in way], name):
            new = _shaped(edit, right, got.twice, _rank(case, value))
            edit.replace_input(node.output[0], place_of, new, "rows at the positions of the tokens")


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


def _shaped(edit: Edit, value: str, twice: str, rank: int) -> str:
    """Rows ``[batch, new, pairs]`` with columns as often, and an axis for the heads, where the graph has them so."""

    def make() -> str:
        wide = value
        if twice == "halves":
            wide = op(edit, "Concat", value, value, axis=-1)
        if twice == "neighbours":
            each = op(edit, "Unsqueeze", value, integer(edit, [-1]))
            wide = op(edit, "Reshape", op(edit, "Concat", each, each, axis=-1), integer(edit, [0, 0, -1]))
        return wide if rank < 4 else op(edit, "Unsqueeze", wide, integer(edit, [1]))

    return edit.once(f"{value} {twice} {rank >= 4}", make)
