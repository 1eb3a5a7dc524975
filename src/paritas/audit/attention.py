"""Attributes of the attention against the spec, layer by layer."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from paritas.audit.finding import Finding, layers
from paritas.audit.masks import causal, hides_padding, integers
from paritas.audit.sites import Site
from paritas.audit.view import View
from paritas.audit.windows import mask_of, seen, window_at
from paritas.spec import Attention, Decoder

_CLOSE = 1e-6  # relative; an attribute is an fp32 number
_PROBE = 12
Check = Callable[[View, Site, Attention], Finding | None]


def attention_findings(view: View, found: Sequence[Site], spec: Decoder) -> Iterator[Finding]:
    """One finding for each wrong value, with all layers that have it."""
    wrong: dict[Finding, list[int]] = defaultdict(list)
    for site in found:
        if site.layer >= len(spec.layers):
            continue
        for check in _CHECKS:
            if fact := check(view, site, spec.layers[site.layer].attention):
                wrong[fact].append(site.layer)
    for fact, numbers in wrong.items():
        yield replace(fact, where=layers(numbers), message=f"{layers(numbers)}: {fact.message}")
    missing = sorted(set(range(len(spec.layers))) - {site.layer for site in found})
    if missing:
        yield Finding(
            "attention-not-audited",
            "note",
            layers(missing),
            "no fused attention operator was found for these layers",
            "paritas verify compares what they compute.",
        )


def _wrong(code: str, fact: str, remedy: str) -> Finding:
    """Of one layer; which one is written in when all that have the same fault are known."""
    return Finding(code, "error", "", fact, remedy)


def _scale(view: View, site: Site, spec: Attention) -> Finding | None:
    if site.q.weight is None or (site.k is not None and site.k.weight is None):
        return None
    own = site.values.get("scale") or spec.head_dim**-0.5
    scale = own * site.q.scale * (site.k.scale if site.k else 1.0)
    if math.isclose(scale, spec.scale, rel_tol=_CLOSE):
        return None
    return _wrong(
        "attention-scale-wrong",
        f"scores are multiplied by {scale:.7g}, the checkpoint says {spec.scale:.7g}",
        f"Set scale to {spec.scale:.9g}.",
    )


def _heads(view: View, site: Site, spec: Attention) -> Finding | None:
    heads = site.values.get("num_heads") or site.values.get("q_num_heads")
    kv_heads = site.values.get("kv_num_heads")
    if (heads in (None, spec.heads)) and (kv_heads in (None, spec.kv_heads)):
        return None
    return _wrong(
        "attention-heads-wrong",
        f"{heads} heads over {kv_heads} key-value heads, the checkpoint says {spec.heads} over {spec.kv_heads}",
        "Take both numbers from the checkpoint's configuration.",
    )


def _softcap(view: View, site: Site, spec: Attention) -> Finding | None:
    cap = site.values.get("softcap") or 0.0
    if cap == 0.0:
        return None
    return _wrong(
        "attention-softcap-wrong",
        f"scores are capped at {cap:g}, the checkpoint caps none",
        "Leave softcap out.",
    )


def _interleaved(view: View, site: Site, spec: Attention) -> Finding | None:
    values = [site.values.get("rotary_interleaved", 0)]
    for trail in (site.q, site.k):
        if trail and trail.rotary is not None:
            values += [a.i for a in trail.rotary.attribute if a.name == "interleaved"]
    if not any(values):
        return None
    return _wrong(
        "rope-pairing-wrong",
        "rotated pairs lie side by side (interleaved), the checkpoint's are half a head apart",
        "Set interleaved to 0.",
    )


def _qk_norm(view: View, site: Site, spec: Attention) -> Finding | None:
    if site.q.weight is None or site.k is None or site.k.weight is None:
        return None
    for trail in (site.q, site.k):
        has = "norm" in trail.steps
        if has != (spec.qk_norm is not None):
            return _wrong(
                "qk-norm-wrong",
                f"queries and keys are {'' if has else 'not '}normalised, the checkpoint's are{' not' if has else ''}",
                "Normalise each head's queries and keys exactly where the checkpoint has norms for them.",
            )
        if has and "rotary" in trail.steps and trail.steps.index("rotary") < trail.steps.index("norm"):
            return _wrong(
                "qk-norm-after-rope",
                "queries and keys are rotated before they are normalised",
                "Normalise first: the norm's weight is not the same for both halves of a pair.",
            )
    return None


def _window(view: View, site: Site, spec: Attention) -> Finding | None:
    window = window_at(view, site, spec.window or 0)
    if window is False or window == spec.window:
        return None
    return _wrong(
        "window-wrong",
        f"{seen(window)}, the checkpoint says {seen(spec.window)}",
        "Give each layer its own window; a window counts the query's own position.",
    )


def _causal(view: View, site: Site, spec: Attention) -> Finding | None:
    mask = mask_of(site)
    if site.operator == "GroupQueryAttention" or site.values.get("is_causal") or site.values.get("unidirectional"):
        return None
    if mask is None or causal(view, mask) is not False:
        return None
    return _wrong("mask-not-causal", "a query sees later keys", "Hide every key behind the query's own position.")


def _padding(view: View, site: Site, spec: Attention) -> Finding | None:
    mask = mask_of(site)
    if site.operator == "GroupQueryAttention" or mask is None or hides_padding(view, mask) is not False:
        return None
    return _wrong(
        "mask-shows-padding", "a query sees keys of the padding before it", "Put attention_mask into the mask."
    )


def _positions(view: View, site: Site, spec: Attention) -> Finding | None:
    for name in site.positions():
        value = integers(view, name, 2, _PROBE)
        if value is not None and value.size == 2 and list(value) != [_PROBE, _PROBE + 1]:
            return _positions_wrong([int(v) for v in value])
    if site.operator == "GroupQueryAttention" and site.values.get("do_rotary"):
        value = integers(view, site.node.input[5], 2, _PROBE)
        if value is not None and value.size == 1 and int(value[0]) != _PROBE + 1:
            return _positions_wrong([int(value[0]) - 1, int(value[0])])
    return None


def _positions_wrong(found: list[int]) -> Finding:
    return _wrong(
        "positions-wrong",
        f"two tokens after {_PROBE} are put at positions {found[0]} and {found[1]}",
        "Count positions from the beginning of the text, over what is in the cache too.",
    )


_CHECKS: tuple[Check, ...] = (
    _scale,
    _heads,
    _softcap,
    _interleaved,
    _qk_norm,
    _window,
    _causal,
    _padding,
    _positions,
)
