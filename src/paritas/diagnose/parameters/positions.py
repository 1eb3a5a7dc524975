"""Where the graph puts a token: the positions of its rotations, evaluated for steps after others and after padding."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from paritas.audit.masks import integers
from paritas.audit.sites import Site
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.parameters.taken_rows import Taking, as_taken, takings
from paritas.diagnose.rotation_graphs import hangs_on_length
from paritas.diagnose.subgraphs import last_index, positions
from paritas.diagnose.turning import KEY, QUERY, turning_several

_NONE = Taking("", "")
_STEPS = ((4, 0, 0), (2, 12, 0), (1, 31, 0), (2, 12, 5))
"""New tokens, tokens before them, and how many of all are padding on the left."""


def position_differences(case: Case) -> Iterator[Difference]:
    """The positions that a graph gives to tokens; one difference for all layers that take the same value."""
    seen: set[str] = set()
    shared = _shared(case)
    for site in case.sites:
        if site.layer in case.live.facts and hangs_on_length(case, site.layer):
            continue  # rows of a table by length are no positions
        for name in _names(site):
            if name in seen or name not in case.view.maker:
                continue
            seen.add(name)
            found = [(step, _placed(case, site, name, *step)) for step in _STEPS]
            wrong = [(step, got) for step, got in found if got is not None and list(got) != _right(*step)]
            if wrong:
                alone = name not in shared
                yield _difference(case, site, name, *wrong[0], alone=alone)


def _shared(case: Case) -> set[str]:
    """Values that queries and keys of every layer take alike, so that they are the positions of the tokens."""
    of_layers = [set(_names(site)) for site in case.sites if any(True for _ in _names(site))]
    return {name for names in of_layers for name in names if all(each == {name} for each in of_layers)}


def _names(site: Site) -> Iterator[str]:
    yield from site.positions()
    if site.operator == "GroupQueryAttention" and site.values.get("do_rotary"):
        yield site.node.input[5]


def _placed(case: Case, site: Site, name: str, new: int, past: int, padded: int) -> NDArray[np.int64] | None:
    """Positions of the new tokens that are no padding."""
    if padded and _is_last(site, name):
        return None
    values = integers(case.view, name, new, past, padded)
    if values is None:
        return None
    if _is_last(site, name):
        last = int(values[0]) if values.size == 1 else 0
        return np.arange(last - new + 1, last + 1)
    return values[:new].astype(np.int64) if values.size >= new else None


def _is_last(site: Site, name: str) -> bool:
    return site.operator == "GroupQueryAttention" and name == site.node.input[5]


def _right(new: int, past: int, padded: int) -> list[int]:
    return [max(position - padded, 0) for position in range(past, past + new)]


def _difference(
    case: Case, site: Site, name: str, step: tuple[int, int, int], got: NDArray[np.int64], *, alone: bool
) -> Difference:
    new, past, padded = step
    wanted = _right(new, past, padded)

    def place(count: int, before: int, mask: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.stack([_row(case, site, name, count, before, row) for row in mask])

    def repairs(edit: Edit) -> None:
        right = last_index(edit, case) if _is_last(site, name) else positions(edit, case)
        edit.redirect(name, right, f"positions {name}: counted from the beginning of the text")

    where = f"{past} tokens" + (f", {padded} of them padding" if padded else "")
    layers = [each for each in case.sites if name in _names(each)]
    taken = [(each.layer, dict(takings(each))) for each in layers]
    apart = any(of.get(QUERY, _NONE).ids != of.get(KEY, _NONE).ids for _, of in taken)

    def breaks() -> AbstractContextManager[None]:
        if not alone:
            return case.live.placing(place)
        turns = {layer: {half: as_taken(case, each) for half, each in of.items()} for layer, of in taken}
        return turning_several(case.live, turns)

    return Difference(
        parameter="positions",
        where=f"model.layers.{site.layer}.self_attn" if len(layers) == 1 else name,
        layer=site.layer if len(layers) == 1 else None,
        package=tuple(int(each) for each in got),
        reference=tuple(wanted),
        fact=f"after {where}, the next are put at {_list(got)}; in the reference at {_list(wanted)}",
        breaks=breaks,
        repairs=repairs,
        facts={"past": past, "padded": padded, "apart": apart},
    )


def _row(case: Case, site: Site, name: str, new: int, past: int, mask: NDArray[np.int64]) -> NDArray[np.int64]:
    padded = int((mask == 0).cumprod().sum())
    got = _placed(case, site, name, new, past, padded)
    return np.array(_right(new, past, padded) if got is None else got, np.int64)


def _list(found: "NDArray[np.int64] | list[int]") -> str:
    return ", ".join(str(int(each)) for each in found)
