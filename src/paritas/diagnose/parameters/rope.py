"""Rotations: the table that a layer rotates by, how many pairs, which dimensions make a pair, and whether at all."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paritas.audit.rope import formula
from paritas.audit.sites import Site
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.live import AttentionFacts
from paritas.diagnose.parameters.tables import Table, apart, beginning, others, read_table, widened
from paritas.diagnose.parameters.taken_rows import as_taken, taking_of
from paritas.diagnose.rotation_graphs import hangs_on_length, turned
from paritas.diagnose.subgraphs import integer
from paritas.diagnose.turning import KEY, QUERY, VALUE, alike, by_position, turning

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Rotation:
    """One rotation of an attention operator: of queries, of keys, or of both.

    Attributes:
        output: of the node that rotates.
        places: of cosines and sines among its inputs.
        table: that they are of.
        neighbours: whether pairs lie side by side.
        half: ``query`` or ``key``; empty if it rotates both.
    """

    output: str
    places: tuple[int, int]
    table: Table
    neighbours: bool
    half: str = ""


def rope_differences(case: Case) -> Iterator[Difference]:
    """Every layer that does not rotate as the reference does."""
    for site in case.sites:
        facts = case.live.facts.get(site.layer)
        if facts is None:
            continue
        own = facts.source == site.layer  # else its keys are another layer's, and are rotated there
        found = [each for each in rotations(case, site) if own or each.half != KEY]
        yield from _values(case, site)
        if not found and facts.rotates and _is_plain(site):
            yield _absent(case, site)
        elif found and not facts.rotates:
            yield _unwanted(case, site, found)
        elif found and not hangs_on_length(case, site.layer):
            yield from _table(case, site, found)
            yield from _pairing(case, site, found)


def rotations(case: Case, site: Site) -> Iterator[Rotation]:
    """Rotations of a fused operator, or of the nodes before it."""
    values = site.values
    inside = values.get("do_rotary") and len(site.node.input) > 8
    if inside and (table := read_table(case, site.node.input[7], site.node.input[8])) is not None:
        yield Rotation(site.node.output[0], (7, 8), table, bool(values.get("rotary_interleaved", 0)))
    for half, trail in ((QUERY, site.q), (KEY, site.k)):
        node = trail.rotary if trail else None
        if node is not None:
            first = 2 if node.domain == "com.microsoft" else 1
            if (table := read_table(case, node.input[first], node.input[first + 1])) is not None:
                interleaved = any(a.name == "interleaved" and a.i for a in node.attribute)
                yield Rotation(node.output[0], (first, first + 1), table, interleaved, half)


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
        else (lambda: alike(case.live, site.layer, by_position(rows, neighbours=neighbours))),
        repairs=(lambda edit: _write(edit, found, wanted)) if same else (lambda edit: rotate(edit, case, site)),
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
        breaks=lambda: alike(case.live, site.layer, by_position(rows, neighbours=got)),
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
        repairs=lambda edit: rotate(edit, case, site),
    )


def rotate(edit: Edit, case: Case, site: Site) -> None:
    """Rotate queries and keys as the reference does, in nodes before the operator; whatever rotated them does not.

    Raises:
        RefusedError: the graph has no positions, or the reference rotates otherwise.
    """
    facts, output = case.live.facts[site.layer], site.node.output[0]
    if site.values.get("do_rotary"):
        edit.set_attribute(output, "do_rotary", 0)
        for place in (7, 8):
            edit.replace_input(output, place, "")
    if site.k is None:
        _unpack(edit, output, facts)
    for place, (heads, trail) in enumerate(((facts.heads, site.q), (facts.kv_heads, site.k))):
        if place and facts.source != site.layer:
            continue  # another layer's keys
        old = trail.rotary if trail else None
        value = edit.node(output).input[place] if old is None else edit.node(old.output[0]).input[0]
        axis = None if old is None or any(a.name == "num_heads" and a.i for a in old.attribute) else 1
        new = turned(edit, case, site.layer, value, heads, axis)
        if old is None:
            edit.replace_input(output, place, new, "rotated as the reference does")
        else:
            title = f"{old.op_type} {old.name or old.output[0]}"
            edit.redirect(old.output[0], new, f"{title}: rotates as the reference does")


def _unpack(edit: Edit, output: str, facts: AttentionFacts) -> None:
    """Queries, keys and values, which an operator takes packed, each for itself."""
    widths = [count * facts.head_dim for count in (facts.heads, facts.kv_heads, facts.kv_heads)]
    first = edit.insert_node(
        "Split", [edit.node(output).input[0], integer(edit, widths)], outputs=3, attributes={"axis": -1}
    )
    for place, value in enumerate(edit.node(first).output):
        edit.replace_input(output, place, value, "unpacked")


def _values(case: Case, site: Site) -> Iterator[Difference]:
    """Values that are rotated as queries and keys are; no model does that."""
    rotary = site.v.rotary if site.v else None
    if rotary is None:
        return
    taking = taking_of(rotary)
    yield Difference(
        parameter="rope-on-values",
        where=f"model.layers.{site.layer}.self_attn",
        layer=site.layer,
        package="rotated",
        reference="as they are",
        fact="values are rotated, the reference's are not",
        breaks=lambda: turning(case.live, site.layer, {VALUE: as_taken(case, taking)}),
        repairs=lambda edit: edit.remove(rotary.output[0], edit.node(rotary.output[0]).input[0]),
    )


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
        breaks=lambda: alike(case.live, site.layer, by_position(rows, neighbours=rotation.neighbours)),
        repairs=repairs,
    )
