"""How queries and keys become scores in a fused attention operator: the scale and the cap."""

import math
from collections.abc import Iterator

from paritas.audit.sites import Site
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.live import AttentionFacts, Call

_CLOSE = 1e-6


def score_differences(case: Case) -> Iterator[Difference]:
    """Scale and softcap of every attention operator."""
    for site in case.sites:
        facts = case.live.facts.get(site.layer)
        if facts is not None:
            yield from _scale(case, site, facts)
            yield from _softcap(case, site, facts)


def _scale(case: Case, site: Site, facts: AttentionFacts) -> Iterator[Difference]:
    outside = site.q.scale * (site.k.scale if site.k else 1.0)
    own = site.values.get("scale") or facts.head_dim**-0.5
    got = own * outside
    if math.isclose(got, facts.scale, rel_tol=_CLOSE):
        return

    def change(call: Call) -> None:
        call.options["scaling"] = got

    yield Difference(
        parameter="attention-scale",
        where=f"model.layers.{site.layer}.self_attn",
        layer=site.layer,
        package=got,
        reference=facts.scale,
        fact=f"scores are multiplied by {got:.7g}, in the reference by {facts.scale:.7g}",
        breaks=lambda: case.live.attending({site.layer: change}),
        repairs=lambda edit: edit.set_attribute(site.node.output[0], "scale", facts.scale / outside),
        facts={"head_dim": facts.head_dim},
    )


def _softcap(case: Case, site: Site, facts: AttentionFacts) -> Iterator[Difference]:
    got = site.values.get("softcap") or None
    if got == facts.softcap or (got and facts.softcap and math.isclose(got, facts.softcap, rel_tol=_CLOSE)):
        return

    def change(call: Call) -> None:
        call.options["softcap"] = got

    yield Difference(
        parameter="attention-softcap",
        where=f"model.layers.{site.layer}.self_attn",
        layer=site.layer,
        package=got,
        reference=facts.softcap,
        fact=f"scores are {_capped(got)}, the reference's {_capped(facts.softcap)}",
        breaks=lambda: case.live.attending({site.layer: change}),
        repairs=lambda edit: edit.set_attribute(site.node.output[0], "softcap", float(facts.softcap or 0.0)),
    )


def _capped(cap: float | None) -> str:
    return "not capped" if cap is None else f"capped at {cap:g}"
