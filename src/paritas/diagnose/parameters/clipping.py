"""Queries, keys and values clipped behind their projections, as OLMo's are: seen with projections enlarged."""

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from paritas.audit.sites import Site, Trail
from paritas.audit.view import View
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Break, Difference
from paritas.diagnose.edit import Edit, RefusedError
from paritas.diagnose.live import Call, Live
from paritas.diagnose.subgraphs import op

_IDS = np.array([[1]], np.int64)  # at position 0 nothing is rotated
_GREAT, _MOST = 1e7, 0.9
_HALVES = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
_ENLARGED = (*_HALVES, "q_norm", "k_norm", "v_norm")
_FARTHEST = 12


def clip_differences(case: Case) -> Iterator[Difference]:
    """Every layer whose queries, keys or values are clipped at another number than the reference's, or at none."""
    right = clips(case.live)
    for site in case.sites:
        trails = {"q_proj": site.q, "k_proj": site.k, "v_proj": site.v}
        known = {name: trail for name, trail in trails.items() if trail is not None}
        if site.layer not in right or len(known) < len(trails):
            continue
        wanted = right[site.layer]
        got = {name: _clip(case.view, site, place) for place, name in enumerate(known)}
        wrong = [name for name in known if not _same(got[name], wanted[name])]
        if wrong:
            yield _difference(case, site, wrong, got, wanted)


def clips(live: Live) -> dict[int, dict[str, float | None]]:
    """Layer -> projection -> the number beyond which nothing of its output gets into attention; None if none is.

    Projections, and norms behind them, are enlarged until nearly everything stands at the number.
    """
    found: dict[int, dict[str, float | None]] = {}

    def look(layer: int) -> Callable[[Call], None]:
        def seen(call: Call) -> None:
            found[layer] = {name: _end(getattr(call, half).abs()) for name, half in _HALVES.items()}

        return seen

    modules = [getattr(attention, name, None) for attention in live.attentions.values() for name in _ENLARGED]
    with ExitStack() as stack:
        for module in modules:
            if module is not None:
                stack.enter_context(live.changing(module, lambda out: out * _GREAT))
        stack.enter_context(live.attending({layer: look(layer) for layer in live.attentions}))
        live.forward(_IDS)
    return found


def _end(sizes: Any) -> float | None:
    largest = float(sizes.max())
    return largest if float((sizes == sizes.max()).float().mean()) > _MOST else None


def _clip(view: View, site: Site, place: int) -> float | None:
    """The upper end of a Clip on the way into the operator."""
    name = site.node.input[place]
    for _ in range(_FARTHEST):
        node = view.maker.get(name)
        if node is None or not node.input or node.op_type == "MatMul":
            return None
        if node.op_type == "Clip":
            return view.number(node.input[2]) if len(node.input) > 2 else None
        name = node.input[0]
    return None


def _same(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isclose(one, other, rel_tol=1e-6))


def _difference(
    case: Case, site: Site, wrong: list[str], got: dict[str, float | None], wanted: dict[str, float | None]
) -> Difference:
    first = wrong[0]
    return Difference(
        parameter="qkv-clip",
        where=f"model.layers.{site.layer}.self_attn",
        layer=site.layer,
        package=got[first],
        reference=wanted[first],
        fact=f"{', '.join(wrong)}: what they give is {_words(got[first])}, in the reference {_words(wanted[first])}",
        breaks=_break(case, got[first], wanted[first]) if len({got[name] for name in wrong}) == 1 else None,
        repairs=lambda edit: _repair(edit, site, {name: wanted[name] for name in wrong}),
    )


def _words(value: float | None) -> str:
    return "not clipped" if value is None else f"clipped at {value:g}"


def _break(case: Case, got: float | None, wanted: float | None) -> Break | None:
    """The configuration's key that holds the number, with the package's number in it."""
    held: dict[str, Any] = case.live.config.to_dict()
    names = [name for name in held if isinstance(held[name], float) and _same(held[name], wanted)]

    @contextmanager
    def within() -> Generator[None]:
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(case.live.set(case.live.config, name, got))
            yield

    return within if names else None


def _repair(edit: Edit, site: Site, wanted: dict[str, float | None]) -> None:
    for place, name in enumerate(_HALVES):
        trail: Trail | None = {"q_proj": site.q, "k_proj": site.k, "v_proj": site.v}[name]
        if name not in wanted or trail is None:
            continue
        if wanted[name] is None or trail.weight is None or "norm" in trail.steps:
            raise RefusedError("what is clipped already, or normalised, is left as it is")
        ends = [edit.add_initializer("clip", np.array(sign * (wanted[name] or 0), np.float32)) for sign in (-1, 1)]
        rotary = trail.rotary
        output, at = (site.node.output[0], place) if rotary is None else (rotary.output[0], 0)
        clipped = op(edit, "Clip", edit.node(output).input[at], *ends)
        edit.replace_input(output, at, clipped, f"clipped at {wanted[name]:g}")
