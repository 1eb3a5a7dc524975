"""Attention that is written out: its scale, its cap, which keys a query sees."""

import math
from collections.abc import Iterator

from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit, RefusedError
from paritas.diagnose.live import AttentionFacts, Call
from paritas.diagnose.parameters.masks import Sight, before, change_of, origin, sight_of
from paritas.diagnose.subgraphs import mask as mask_subgraph
from paritas.diagnose.written_place import Visible, WrittenPlace, gives_zero, shown, written_places

_CLOSE = 1e-5  # relative: roots of a scale in fp32 on either side


def written_differences(case: Case) -> Iterator[Difference]:
    """Every written-out attention that computes otherwise than the reference's."""
    for place in written_places(case):
        facts = case.live.facts.get(place.layer)
        if facts is not None:
            yield from _scale(case, place, facts)
            yield from _softcap(case, place, facts)
            yield from _mask(case, place, facts)


def _where(place: WrittenPlace) -> str:
    return f"model.layers.{place.layer}.self_attn"


def _scale(case: Case, place: WrittenPlace, facts: AttentionFacts) -> Iterator[Difference]:
    if math.isclose(place.scale, facts.scale, rel_tol=_CLOSE):
        return

    def change(call: Call) -> None:
        call.options["scaling"] = place.scale

    yield Difference(
        parameter="attention-scale",
        where=_where(place),
        layer=place.layer,
        package=place.scale,
        reference=facts.scale,
        fact=f"scores are multiplied by {place.scale:.7g}, in the reference by {facts.scale:.7g}",
        breaks=lambda: case.live.attending({place.layer: change}),
        repairs=lambda edit: place.set_scale(edit, facts.scale),
        facts={"head_dim": facts.head_dim},
    )


def _softcap(case: Case, place: WrittenPlace, facts: AttentionFacts) -> Iterator[Difference]:
    got, wanted = place.softcap, facts.softcap
    if got == wanted or (got and wanted and math.isclose(got, wanted, rel_tol=_CLOSE)):
        return

    def change(call: Call) -> None:
        call.options["softcap"] = got

    words = ["not capped" if cap is None else f"capped at {cap:g}" for cap in (got, wanted)]
    yield Difference(
        parameter="attention-softcap",
        where=_where(place),
        layer=place.layer,
        package=got,
        reference=wanted,
        fact=f"scores are {words[0]}, the reference's {words[1]}",
        breaks=lambda: case.live.attending({place.layer: change}),
        repairs=lambda edit: place.set_softcap(edit, wanted),
    )


def _mask(case: Case, place: WrittenPlace, facts: AttentionFacts) -> Iterator[Difference]:
    def rows(new: int, past: int, padded: int) -> Visible | None:
        return shown(case, place, new, past, padded)

    wanted = Sight(facts.window)
    got = sight_of(case, rows, facts.window or 0)
    if got is None or got == wanted:
        return

    def repairs(edit: Edit) -> None:
        if (mask := place.mask()) is None:
            raise RefusedError("the mask is not added to the scores")
        output, name = mask
        if name not in edit.node(output).input:
            raise RefusedError(f"the scores are not added to {name}")
        number = list(edit.node(output).input).index(name)
        right = mask_subgraph(edit, case, name, wanted.window)
        edit.replace_input(output, number, right, f"a mask of {wanted.words()}")

    def seen(new: int, past: int, padded: int) -> Visible:
        found = rows(new, past, padded)
        return before(new, past, padded, None) if found is None else found

    yield Difference(
        parameter="mask",
        where=_where(place),
        layer=place.layer,
        package=got,
        reference=wanted,
        fact=f"{got.words()}; in the reference {wanted.words()}",
        breaks=lambda: case.live.attending({place.layer: change_of(case, seen, gives_zero=gives_zero(case, place))}),
        repairs=repairs,
        facts={"origin": origin(got, wanted)},
    )
