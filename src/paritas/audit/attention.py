"""How a graph attends against what the checkpoint tells, layer by layer."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from paritas.audit.attending import PROBE, Attending
from paritas.audit.finding import Finding, layers
from paritas.audit.told import UNKNOWN, Told, ToldLayer, Unknown
from paritas.audit.windows import seen
from paritas.spec import Dynamic, Pairing, Place, Rope

_CLOSE = 1e-6  # relative; an attribute is an fp32 number
Check = Callable[[Attending, ToldLayer, str], Finding | None]


def attention_findings(found: Sequence[Attending], told: Told, dtype: str, context: int) -> Iterator[Finding]:
    """One finding for each wrong value, with all layers that have it.

    Args:
        found: how the graph attends.
        told: what should be.
        dtype: of the graph's weights; constants of a short type are rounded.
        context: positions that the package promises: a window that is not shorter is none.
    """
    wrong: dict[Finding, list[int]] = defaultdict(list)
    checks = (*_CHECKS, _scale_in(dtype), _window_within(context))
    for each in found:
        for check in checks:
            if fact := check(each, told.layer(each.layer), told.by):
                wrong[fact].append(each.layer)
    for fact, numbers in wrong.items():
        yield replace(fact, where=layers(numbers), message=f"{layers(numbers)}: {fact.message}")
    yield from _not_audited(found, told)


def _not_audited(found: Sequence[Attending], told: Told) -> Iterator[Finding]:
    attending = {number for number, layer in enumerate(told.layers) if layer.attends is not False}
    missing = sorted(attending - {each.layer for each in found})
    unread: dict[str, list[int]] = defaultdict(list)
    for each in found:
        wanted = told.layer(each.layer)
        facts = {
            "scale": (each.scale, wanted.scale),
            "softcap": (each.softcap, wanted.softcap),
            "window": (each.window, wanted.window),
            "order of norm and rotation": (each.steps, wanted.qk_norm),
        }
        lost = [word for word, (got, said) in facts.items() if got is UNKNOWN and said is not UNKNOWN]
        if lost:
            unread[", ".join(lost)].append(each.layer)
    if missing:
        unread["attention: neither a fused operator nor a softmax of scores was found"] = missing
    for what, numbers in unread.items():
        yield Finding(
            "attention-not-audited",
            "note",
            layers(numbers),
            f"{layers(numbers)}: could not be read off the graph: {what}",
            "paritas verify compares what they compute.",
        )


def _wrong(code: str, fact: str, remedy: str) -> Finding:
    """Of one layer; which one is written in when all that have the same fault are known."""
    return Finding(code, "error", "", fact, remedy)


def _scale_in(dtype: str) -> Check:
    close = {"fp16": 2**-9, "bf16": 2**-6}.get(dtype, _CLOSE)

    def check(found: Attending, told: ToldLayer, by: str) -> Finding | None:
        if isinstance(found.scale, Unknown) or isinstance(told.scale, Unknown):
            return None
        if math.isclose(found.scale, told.scale, rel_tol=close):
            return None
        return _wrong(
            "attention-scale-wrong",
            f"scores are multiplied by {found.scale:.7g}, {by} says {told.scale:.7g}",
            f"Set scale to {told.scale:.9g}.",
        )

    return check


def _heads(found: Attending, told: ToldLayer, by: str) -> Finding | None:
    pairs = ((found.heads, told.heads), (found.kv_heads, told.kv_heads))
    if all(isinstance(a, Unknown) or isinstance(b, Unknown) or a == b for a, b in pairs):
        return None
    return _wrong(
        "attention-heads-wrong",
        f"{_number(found.heads)} heads over {_number(found.kv_heads)} key-value heads, "
        f"{by} says {_number(told.heads)} over {_number(told.kv_heads)}",
        "Take both numbers from the checkpoint's configuration.",
    )


def _number(value: int | Unknown) -> str:
    return "some" if isinstance(value, Unknown) else str(value)


def _softcap(found: Attending, told: ToldLayer, by: str) -> Finding | None:
    got, wanted = found.softcap, told.softcap
    if isinstance(got, Unknown) or isinstance(wanted, Unknown) or got == wanted:
        return None
    if got and wanted and math.isclose(got, wanted, rel_tol=_CLOSE):
        return None
    return _wrong(
        "attention-softcap-wrong",
        f"scores are {f'capped at {got:g}' if got else 'not capped'}, "
        f"{by} caps {f'them at {wanted:g}' if wanted else 'none'}",
        f"Write softcap {wanted:g}." if wanted else "Leave softcap out.",
    )


def _pairing(found: Attending, told: ToldLayer, by: str) -> Finding | None:
    if isinstance(told.rope, Unknown) or told.rope is None or isinstance(found.neighbours, Unknown):
        return None
    wanted = told.rope.pairing is Pairing.NEIGHBOURS
    if not found.tables or found.neighbours == wanted:
        return None
    words = ("half a head apart", "side by side (interleaved)")
    return _wrong(
        "rope-pairing-wrong",
        f"rotated pairs lie {words[found.neighbours]}, {by} says {words[wanted]}",
        f"Set interleaved to {int(wanted)}.",
    )


def _qk_norm(found: Attending, told: ToldLayer, by: str) -> Finding | None:
    if isinstance(found.steps, Unknown) or isinstance(told.qk_norm, Unknown):
        return None
    for steps in found.steps:
        has = "norm" in steps
        if has != (told.qk_norm is not None):
            return _wrong(
                "qk-norm-wrong",
                f"queries and keys are {'' if has else 'not '}normalised, the checkpoint's are{' not' if has else ''}",
                "Normalise queries and keys exactly where the checkpoint has norms for them.",
            )
        if told.qk_norm is None or "rotary" not in steps:
            continue
        after = steps.index("rotary") < steps.index("norm")
        if after and told.qk_norm.place is Place.BEFORE_ROPE:
            return _wrong(
                "qk-norm-after-rope",
                "queries and keys are rotated before they are normalised",
                "Normalise first: the norm's weight is not the same for both halves of a pair.",
            )
        if not after and told.qk_norm.place is Place.AFTER_ROPE:
            return _wrong(
                "qk-norm-before-rope",
                "queries and keys are normalised before they are rotated",
                "Rotate first: the norm's weight is not the same for both halves of a pair.",
            )
    return None


def _window_within(context: int) -> Check:
    def check(found: Attending, told: ToldLayer, by: str) -> Finding | None:
        if isinstance(found.window, Unknown) or isinstance(told.window, Unknown):
            return None
        got, wanted = (None if each is None or each >= context else each for each in (found.window, told.window))
        if got == wanted:
            return None
        return _wrong(
            "window-wrong",
            f"{seen(found.window)}, {by} says {seen(told.window)}",
            "Give each layer its own window; a window counts the query's own position.",
        )

    return check


def _causal(found: Attending, told: ToldLayer, by: str) -> Finding | None:
    if found.causal is not False:
        return None
    return _wrong("mask-not-causal", "a query sees later keys", "Hide every key behind the query's own position.")


def _padding(found: Attending, told: ToldLayer, by: str) -> Finding | None:
    if found.hides_padding is not False:
        return None
    return _wrong(
        "mask-shows-padding", "a query sees keys of the padding before it", "Put attention_mask into the mask."
    )


def _positions(found: Attending, told: ToldLayer, by: str) -> Finding | None:
    if isinstance(found.positions, Unknown) or found.positions == (PROBE, PROBE + 1):
        return None
    if isinstance(told.rope, Rope) and isinstance(told.rope.scaling, Dynamic):
        return None  # rows of a table that is made for the call: what they say depends on the call's length
    return _wrong(
        "positions-wrong",
        f"two tokens after {PROBE} are put at positions {found.positions[0]} and {found.positions[-1]}",
        "Count positions from the beginning of the text, over what is in the cache too.",
    )


def _groups(found: Attending, told: ToldLayer, by: str) -> Finding | None:
    if found.in_turn is not True:
        return None
    return _wrong(
        "attention-groups-wrong",
        f"head h reads key-value head h % {found.kv_heads}, the checkpoint's heads read them in groups",
        "Repeat each key-value head for all heads of its group, one after the other.",
    )


def _packing(found: Attending, told: ToldLayer, by: str) -> Finding | None:
    got, wanted = found.packing, told.packing
    if isinstance(got, Unknown) or isinstance(wanted, Unknown) or got is None or wanted is None or got == wanted:
        return None
    return _wrong(
        "attention-packing-wrong",
        f"queries, keys and values are taken from one projection {got}, {by} packs them {wanted}",
        "Split the projection as the checkpoint packs it.",
    )


_CHECKS: tuple[Check, ...] = (_heads, _groups, _packing, _softcap, _pairing, _qk_norm, _causal, _padding, _positions)
