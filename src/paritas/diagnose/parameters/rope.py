"""Rotations: the table that a layer rotates by, how many pairs, which dimensions make a pair, and whether at all."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paritas.audit.rope import formula
from paritas.audit.sites import Site
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit, RefusedError
from paritas.diagnose.parameters.tables import Table, apart, beginning, others, read_table, widened
from paritas.diagnose.subgraphs import positions

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Rotation:
    """One rotation of an attention operator: of queries, of keys, or of both.

    Attributes:
        output: of the node that rotates.
        places: of cosines and sines among its inputs.
        table: that they are of.
        neighbours: whether pairs lie side by side.
    """

    output: str
    places: tuple[int, int]
    table: Table
    neighbours: bool


def rope_differences(case: Case) -> Iterator[Difference]:
    """Every layer that does not rotate as the reference does."""
    for site in case.sites:
        facts = case.live.facts.get(site.layer)
        if facts is None:
            continue
        found = list(rotations(case, site))
        if not found and facts.rotates and _is_plain(site):
            yield _absent(case, site)
        elif found and not facts.rotates:
            yield _unwanted(case, site, found)
        elif found:
            yield from _table(case, site, found)
            yield from _pairing(case, site, found)


def rotations(case: Case, site: Site) -> Iterator[Rotation]:
    """Rotations of a fused operator, or of the nodes before it."""
    values = site.values
    inside = values.get("do_rotary") and len(site.node.input) > 8
    if inside and (table := read_table(case, site.node.input[7], site.node.input[8])) is not None:
        yield Rotation(site.node.output[0], (7, 8), table, bool(values.get("rotary_interleaved", 0)))
    for trail in (site.q, site.k):
        node = trail.rotary if trail else None
        if node is not None:
            first = 2 if node.domain == "com.microsoft" else 1
            if (table := read_table(case, node.input[first], node.input[first + 1])) is not None:
                interleaved = any(a.name == "interleaved" and a.i for a in node.attribute)
                yield Rotation(node.output[0], (first, first + 1), table, interleaved)


def _is_plain(site: Site) -> bool:
    """The way from the projection to the operator is known, and nothing rotates on it."""
    return site.q.weight is not None and not site.values.get("do_rotary") and "rotary" not in site.q.steps


def _table(case: Case, site: Site, found: list[Rotation]) -> Iterator[Difference]:
    got = found[0].table
    count = len(got.cos)
    right = case.live.rope(site.layer, np.arange(count))
    if right is None:
        return
    wanted = Table(*right, "fp32", got.names)
    if got.cos.shape == wanted.cos.shape and not apart(got, wanted):
        return
    neighbours, table = found[0].neighbours, got

    def rows(places: NDArray[np.int64]) -> tuple[Rows, Rows]:
        at = np.minimum(places, count - 1)
        return table.cos[at], table.sin[at]

    same = got.cos.shape[1] == wanted.cos.shape[1]
    yield Difference(
        parameter="rope-table",
        where=f"model.layers.{site.layer}.self_attn",
        layer=site.layer,
        package=got,
        reference=wanted,
        fact=f"rotates by {got.words()}, the reference by {wanted.words()}{beginning(got, wanted)}",
        breaks=(lambda: case.live.rotating(site.layer, rows))
        if same
        else (lambda: case.live.rotating_by(site.layer, rows, neighbours=neighbours)),
        repairs=lambda edit: _write(edit, found, wanted),
        facts={"others": others(case, site.layer, count)},
    )


def _write(edit: Edit, found: list[Rotation], wanted: Table) -> None:
    for rotation in found:
        for place, name, rows in zip(rotation.places, rotation.table.names, (wanted.cos, wanted.sin), strict=True):
            key = f"table {name} {wanted.angles().tobytes().hex()} {len(rows)} {wanted.amplitude():.9g}"
            value = edit.once(key, lambda r=rotation, n=name, w=rows: _put(edit, r, n, w))
            edit.replace_input(rotation.output, place, value, f"{wanted.words()}, {len(rows):,} positions")


def _put(edit: Edit, rotation: Rotation, name: str, rows: Rows) -> str:
    """The value of a rotation's cosines or sines, with another table where the old one was."""
    table = rotation.table
    kind = table.kind if table.kind == edit.kind else np.float32  # in fp32 arithmetic nothing is rounded
    new = edit.add_as_is(f"{table.stored(name)}.right", widened(rows, table.twice).astype(kind))
    return new if table.stored(name) == name else edit.copy_way(table.stored(name), name, new)


def _pairing(case: Case, site: Site, found: list[Rotation]) -> Iterator[Difference]:
    wanted = case.live.facts[site.layer].neighbours
    got = found[0].neighbours
    if got == wanted:
        return
    table = found[0].table
    words = ("half a head apart", "side by side")

    def rows(places: NDArray[np.int64]) -> tuple[Rows, Rows]:
        at = np.minimum(places, len(table.cos) - 1)
        return table.cos[at], table.sin[at]

    def repairs(edit: Edit) -> None:
        for rotation in found:
            name = "rotary_interleaved" if rotation.places == (7, 8) else "interleaved"
            edit.set_attribute(rotation.output, name, int(wanted))

    yield Difference(
        parameter="rope-pairing",
        where=f"model.layers.{site.layer}.self_attn",
        layer=site.layer,
        package=words[got],
        reference=words[wanted],
        fact=f"rotated pairs lie {words[got]}, the reference's {words[wanted]}",
        breaks=lambda: case.live.rotating_by(site.layer, rows, neighbours=got),
        repairs=repairs,
    )


def _absent(case: Case, site: Site) -> Difference:
    return Difference(
        parameter="rope-missing",
        where=f"model.layers.{site.layer}.self_attn",
        layer=site.layer,
        package=None,
        reference="rotated",
        fact="queries and keys are not rotated, the reference's are",
        breaks=lambda: case.live.unrotated(site.layer),
        repairs=lambda edit: _rotate(edit, case, site),
    )


def _rotate(edit: Edit, case: Case, site: Site) -> None:
    """Let the operator rotate, or rotate before it.

    Raises:
        RefusedError: the graph has no positions, or the reference rotates otherwise.
    """
    count = _positions(case)
    right, facts = case.live.rope(site.layer, np.arange(count)), case.live.facts[site.layer]
    if right is None:
        raise RefusedError("the reference's rotation is no table of positions")
    key = f"rotation {right[0].tobytes().hex()[:4096]}"
    cos = edit.once(f"{key} cos", lambda: edit.add_initializer("cosines", right[0]))
    sin = edit.once(f"{key} sin", lambda: edit.add_initializer("sines", right[1]))
    output, what = site.node.output[0], f"a rotation of {count:,} positions"
    if site.operator == "GroupQueryAttention":
        edit.set_attribute(output, "do_rotary", 1)
        edit.set_attribute(output, "rotary_interleaved", int(facts.neighbours))
        edit.replace_input(output, 7, cos, what)
        edit.replace_input(output, 8, sin, what)
        return
    ids = positions(edit, case)
    for place, heads in ((0, facts.heads), (1, facts.kv_heads)):
        values = edit.node(output).input[place]
        attributes = {"num_heads": heads, "interleaved": int(facts.neighbours)}
        if 2 * right[0].shape[1] != facts.head_dim:
            attributes["rotary_embedding_dim"] = 2 * right[0].shape[1]
        turned = edit.insert_node("RotaryEmbedding", [values, cos, sin, ids], attributes=attributes)
        edit.replace_input(output, place, turned, what)


def _positions(case: Case) -> int:
    """As many as other layers have, or as the reference was made for."""
    tables = (rotation.table for site in case.sites for rotation in rotations(case, site))
    longest = max((len(table.cos) for table in tables), default=0)
    return longest or case.package.context or case.truths.facts.positions or 4096


def _unwanted(case: Case, site: Site, found: list[Rotation]) -> Difference:
    rotation = found[0]
    table = rotation.table

    def rows(places: NDArray[np.int64]) -> tuple[Rows, Rows]:
        at = np.minimum(places, len(table.cos) - 1)
        return table.cos[at], table.sin[at]

    def repairs(edit: Edit) -> None:
        for each in found:
            if each.places == (7, 8):
                edit.set_attribute(each.output, "do_rotary", 0)
            else:
                edit.remove(each.output, edit.node(each.output).input[0])

    return Difference(
        parameter="rope-unwanted",
        where=f"model.layers.{site.layer}.self_attn",
        layer=site.layer,
        package=formula(table.angles()),
        reference=None,
        fact=f"queries and keys are rotated by {table.words()}, the reference's are not",
        breaks=lambda: case.live.rotating_by(site.layer, rows, neighbours=rotation.neighbours),
        repairs=repairs,
    )
