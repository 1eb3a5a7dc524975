"""What becomes of queries and keys in nodes of their own: the graph is cut behind the projections, and evaluated.

What numbers of ours become on their way says how heads are laid out, how queries and keys are normalised and rotated,
in which order, and by what they are multiplied.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.audit.attending import PROBE, Attending
from paritas.audit.evaluate import evaluate_part
from paritas.audit.masks import cached, feeds
from paritas.audit.scoring import Scored, scored
from paritas.audit.told import UNKNOWN, Told, ToldLayer, Unknown
from paritas.audit.turning import Side, Way, first_position, normaliser, norms_of, once
from paritas.audit.view import View
from paritas.audit.written import Written

Values = NDArray[Any]
Norms = Mapping[str, NDArray[np.float32]]
_NEW = 6


def of_written(view: View, found: Sequence[Written], told: Told, norms: Norms) -> list[Attending]:
    """How each of them attends, from the projections through the softmax.

    Args:
        view: the graph.
        found: its written-out attentions.
        told: what should be.
        norms: weights of the checkpoint's norms of queries and keys, with what the model adds to them, by name.
    """
    read = of_ways(view, found, told, norms)
    return [_with(each, facts) for each, facts in zip(read, scored(view, found, given(found, _NEW), told), strict=True)]


def of_ways(view: View, found: Sequence[Written], told: Told, norms: Norms) -> list[Attending]:
    """How each of them attends, as far as the place where queries and keys meet."""
    past = PROBE if cached(view) else 0
    ends = _ends(view, found, past)
    return [
        Attending(each.layer) if values is None else _read(each, values, told.layer(each.layer), norms, past)
        for each, values in zip(found, ends, strict=True)
    ]


def given(found: Iterable[Written], new: int) -> dict[str, Values]:
    """Random queries and keys, large enough for an epsilon to be nothing beside them."""
    random = np.random.default_rng(7)
    made: dict[str, Values] = {}
    for each in found:
        for one in (each.q, each.k):
            if one.value not in made:
                size = 100 if one.kind is np.float32 else 8  # squares of fp16 end at 65,504
                made[one.value] = one.filled(size * random.normal(size=(new, one.width)))
    return made


def _ends(view: View, found: Sequence[Written], past: int) -> list[dict[str, Values] | None]:
    """For each: its values by name, those of the projections too, of :data:`_NEW` tokens after ``past``."""
    ours = given(found, _NEW)
    steps = {**feeds(view, _NEW, past), **ours}
    every = list(dict.fromkeys(name for each in found for name in each.names))
    flat = evaluate_part(view, every, steps, _NEW)
    if flat is not None:
        together = {**dict(zip(every, flat, strict=True)), **ours}
        return [together for _ in found]
    result: list[dict[str, Values] | None] = []
    for each in found:
        alone = evaluate_part(view, each.names, steps, _NEW)
        result.append(None if alone is None else {**dict(zip(each.names, alone, strict=True)), **ours})
    return result


def _read(each: Written, values: Mapping[str, Values], told: ToldLayer, norms: Norms, past: int) -> Attending:
    try:
        sides = _sides(each, values, told, norms)
    except ValueError:  # numpy's, of shapes that are not those of queries and keys
        return Attending(each.layer)
    q, k = (side.found() for side in sides)
    tables = _paired(each.q_tables, values, q) | _paired(each.k_tables, values, k)
    read = Attending(each.layer, heads=len(sides[0].end), kv_heads=sides[1].own, tables=tuple(tables))
    if q is None or k is None:
        return read
    first = first_position(told.rope, sides[0].rotations, q[0].exchanged)
    return replace(
        read,
        scale=q[1] * k[1],
        neighbours=q[0].neighbours is True or k[0].neighbours is True,
        steps=(q[0].steps, k[0].steps),
        positions=UNKNOWN if isinstance(first, Unknown) else (first - past + PROBE, first - past + PROBE + 1),
        packing=q[0].packing,
        in_turn=k[0].in_turn,
    )


def _sides(each: Written, values: Mapping[str, Values], told: ToldLayer, norms: Norms) -> tuple[Side, Side]:
    """Queries and keys.

    Raises:
        ValueError: the values have other shapes.
    """
    ends = _meeting(each, values)
    heads, size = len(ends[0]), ends[0].shape[-1]
    packed = each.q.value == each.k.value
    own = (heads, (each.k.width - heads * size) // (2 * size) if packed else each.k.width // size)
    places = (each.q.start("q_proj.weight"), each.k.start("k_proj.weight"))
    starts = (places[0] or 0, (heads * size if packed else 0) if places[1] is None else places[1])
    weights = norms_of(each.layer, norms)
    q, k = (
        Side(
            rows=np.asarray(values[projection.value], np.float64).reshape(_NEW, -1),
            start=starts[place],
            own=own[place],
            packed=packed and places[1] is None,
            place=place,
            end=ends[place],
            rotations=tuple(rows for name in names if (rows := once(values[name], _NEW)) is not None),
            norm=normaliser(weights[place], told, size),
            exact=projection.kind is np.float32,
        )
        for place, (projection, names) in enumerate(((each.q, each.q_tables), (each.k, each.k_tables)))
    )
    return q, k


def _meeting(each: Written, values: Mapping[str, Values]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Queries and keys where they meet, each ``[heads of queries, tokens, head_dim]``."""
    queries, keys = (np.asarray(values[name], np.float64) for name in (each.q_end, each.k_end))
    if each.product is not None:
        keys = keys.swapaxes(-1, -2)
        keys = np.broadcast_to(keys, (*queries.shape[:-2], *keys.shape[-2:]))
    else:
        queries, keys = (_by_head(value, count) for value, count in zip((queries, keys), each.heads, strict=True))
        keys = keys[np.arange(len(queries)) * len(keys) // len(queries)]
    size = queries.shape[-1]
    return queries.reshape(-1, _NEW, size), keys.reshape(queries.size // (_NEW * size), -1, size)[:, -_NEW:]


def _by_head(value: NDArray[np.float64], count: int | None) -> NDArray[np.float64]:
    """``[heads, tokens, head_dim]`` of an operator's input, which may have the heads side by side."""
    if value.ndim == 4:
        return value[0]
    return value.reshape(value.shape[-2], count or 1, -1).swapaxes(0, 1)


def _paired(
    names: Sequence[str], values: Mapping[str, Values], way: tuple[Way, float] | None
) -> dict[tuple[str, str], None]:
    """Cosines and sines by name, in this order; what else is multiplied by is no table."""
    tables = [name for name in names if once(values[name], _NEW) is not None]
    if len(tables) != 2:
        return {}
    cos, sin = reversed(tables) if way and way[0].exchanged else tables
    return {(cos, sin): None}


def _with(read: Attending, facts: Scored | None) -> Attending:
    """What is read of the way to the scores and of the way from them, together."""
    if facts is None:
        return read
    unread = isinstance(read.scale, Unknown) or isinstance(facts.factor, Unknown)
    return replace(
        read,
        scale=UNKNOWN if unread else read.scale * facts.factor,  # pyright: ignore[reportOperatorIssue] - both numbers
        softcap=facts.softcap,
        window=facts.window,
        causal=facts.causal,
        hides_padding=facts.hides_padding,
    )
