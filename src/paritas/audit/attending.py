"""How one layer of a graph attends, and how a fused attention operator says it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paritas.audit.masks import causal, hides_padding, integers
from paritas.audit.sites import Site, Trail, shares_keys
from paritas.audit.told import UNKNOWN, ToldLayer, Unknown
from paritas.audit.view import View
from paritas.audit.windows import mask_of, window_at
from paritas.spec import Packing

PROBE = 12  # tokens before the two whose positions are looked at


@dataclass(frozen=True)
class Attending:
    """One attention of a graph; what could not be read is unknown.

    Attributes:
        layer: its number.
        scale: of the scores, factors of queries and keys included.
        softcap: of the scaled scores.
        heads, kv_heads: their numbers.
        neighbours: rotated pairs lie side by side.
        steps: of queries and of keys, ``norm`` and ``rotary`` in their order.
        window: keys that a query sees, its own included.
        causal: no query sees a later key.
        hides_padding: no query sees the padding before it.
        positions: of two tokens after :data:`PROBE` others.
        tables: names of the cosines and sines of its rotations.
        packing: how queries, keys and values are taken from one projection.
        in_turn: heads take turns at key-value heads, not in groups.
        own: the part of the scale that an operator multiplies by.
        rows: the value that says which rows of the tables are taken; None if those of the positions are.
    """

    layer: int
    scale: float | Unknown = UNKNOWN
    softcap: float | Unknown | None = UNKNOWN
    heads: int | Unknown = UNKNOWN
    kv_heads: int | Unknown = UNKNOWN
    neighbours: bool | Unknown = UNKNOWN
    steps: tuple[tuple[str, ...], ...] | Unknown = UNKNOWN
    window: int | Unknown | None = UNKNOWN
    causal: bool | Unknown = UNKNOWN
    hides_padding: bool | Unknown = UNKNOWN
    positions: tuple[int, ...] | Unknown = UNKNOWN
    tables: tuple[tuple[str, str], ...] = ()
    packing: Packing | Unknown | None = UNKNOWN
    in_turn: bool | Unknown = UNKNOWN
    own: float | Unknown = UNKNOWN
    rows: str | None = None


def of_operator(view: View, site: Site, told: ToldLayer) -> Attending:
    """What a fused operator's attributes, and the ways back from it, say."""
    values = site.values
    window = window_at(view, site, told.window if isinstance(told.window, int) else 0)
    return Attending(
        layer=site.layer,
        scale=_scale(site, told),
        own=_own(site, told),
        softcap=values.get("softcap") or None,
        heads=values.get("num_heads") or values.get("q_num_heads") or UNKNOWN,
        kv_heads=values.get("kv_num_heads") or UNKNOWN,
        neighbours=_neighbours(site),
        steps=_steps(site),
        window=UNKNOWN if window is False else window,
        causal=_causal(view, site),
        hides_padding=_hides_padding(view, site),
        positions=_positions(view, site),
        tables=tuple(dict.fromkeys(site.tables())),
        rows=next(iter(site.positions()), None),
    )


def joined(found: Sequence[Attending], ways: Sequence[Attending]) -> list[Attending]:
    """What operators say, and what was found out of the way to some of them."""
    by_layer = {way.layer: way for way in ways}
    return [_joined(each, by_layer[each.layer]) if each.layer in by_layer else each for each in found]


def _joined(each: Attending, way: Attending) -> Attending:
    scale = UNKNOWN if isinstance(each.own, Unknown) or isinstance(way.scale, Unknown) else each.own * way.scale
    steps, neighbours = way.steps, way.neighbours
    if each.tables and not way.tables and not isinstance(steps, Unknown):  # the operator rotates what comes to it
        steps, neighbours = tuple((*one, "rotary") for one in steps), each.neighbours
    return replace(
        each,
        scale=scale,
        heads=way.heads if isinstance(each.heads, Unknown) else each.heads,
        kv_heads=way.kv_heads if isinstance(each.kv_heads, Unknown) else each.kv_heads,
        neighbours=neighbours,
        steps=steps,
        positions=way.positions if isinstance(each.positions, Unknown) else each.positions,
        tables=each.tables or way.tables,
        packing=way.packing,
        in_turn=way.in_turn,
    )


def _known(trail: Trail | None) -> bool:
    return trail is not None and trail.weight is not None


def _own(site: Site, told: ToldLayer) -> float | Unknown:
    return site.values.get("scale") or (UNKNOWN if isinstance(told.head_dim, Unknown) else told.head_dim**-0.5)


def _scale(site: Site, told: ToldLayer) -> float | Unknown:
    own = _own(site, told)
    if isinstance(own, Unknown) or not _known(site.q) or (site.k is not None and not _known(site.k)):
        return UNKNOWN
    return own * site.q.scale * (site.k.scale if site.k else 1.0)


def _neighbours(site: Site) -> bool:
    values = [site.values.get("rotary_interleaved", 0)]
    for trail in (site.q, site.k):
        if trail and trail.rotary is not None:
            values += [a.i for a in trail.rotary.attribute if a.name == "interleaved"]
    return any(values)


def _steps(site: Site) -> tuple[tuple[str, ...], ...] | Unknown:
    trails = (site.q, site.k or site.q)
    if not all(map(_known, trails)):
        return UNKNOWN
    inside = [word for word, there in (("norm", site.norms), ("rotary", site.values.get("do_rotary"))) if there]
    return tuple((*trail.steps, *inside) for trail in trails)


def _causal(view: View, site: Site) -> bool | Unknown:
    mask = mask_of(site)
    if site.operator == "GroupQueryAttention" or site.values.get("is_causal") or site.values.get("unidirectional"):
        return True
    found = None if mask is None else causal(view, mask)
    return UNKNOWN if found is None else found


def _hides_padding(view: View, site: Site) -> bool | Unknown:
    """Of padding on the left; keys that GroupQueryAttention has cached know none of that."""
    mask = mask_of(site)
    lengths = "GroupQueryAttention" in (site.operator, shares_keys(view, site))
    found = None if mask is None or lengths else hides_padding(view, mask)
    return UNKNOWN if found is None else found


def _positions(view: View, site: Site) -> tuple[int, ...] | Unknown:
    wanted = (PROBE, PROBE + 1)
    found: tuple[int, ...] | Unknown = UNKNOWN
    for name in site.positions():
        value = integers(view, name, 2, PROBE)
        if value is not None and value.size == 2:
            found = tuple(int(v) for v in value)
            if found != wanted:
                return found
    if site.operator == "GroupQueryAttention" and site.values.get("do_rotary"):
        value = integers(view, site.node.input[5], 2, PROBE)
        if value is not None and value.size == 1:
            found = (int(value[0]) - 1, int(value[0]))
    return found
