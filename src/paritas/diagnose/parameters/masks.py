"""Which keys a query sees: the operator's window, or its mask evaluated; causal, window, padding."""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.audit.masks import visible
from paritas.audit.sites import Site
from paritas.audit.windows import mask_of, seen
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.live import Call
from paritas.diagnose.subgraphs import mask as mask_subgraph
from paritas.diagnose.subgraphs import static_mask
from paritas.runtime.padding import left_padding_obstacle

Visible = NDArray[np.bool_]
_FEW, _PADDED = 6, 2
_MASK = 3  # input of the standard's Attention


@dataclass(frozen=True)
class Sight:
    """What a query sees.

    Attributes:
        window: keys, its own included; None if all before it.
        causal: no later one.
        hides_padding: none of the padding before it.
        sees_itself: its own key.
        counts_past: in a later call, keys of the calls before; else the first tokens of a call see the first keys.
        regular: nothing else than what the others tell, in calls of several tokens after others too.
    """

    window: int | None
    causal: bool = True
    hides_padding: bool = True
    sees_itself: bool = True
    counts_past: bool = True
    regular: bool = True

    def shown(self, new: int, past: int) -> Visible:
        """``[new, past + new]`` without padding, where it is causal and counts the past."""
        shown = before(new, past, 0, self.window)
        return shown if self.sees_itself else shown & ~np.eye(new, past + new, past, dtype=bool)

    def words(self) -> str:
        """For people."""
        more = {
            "later keys too": self.causal,
            "keys of padding too": self.hides_padding,
            "but not its own": self.sees_itself,
            "counted from the first of all in every call": self.counts_past,
            "and no such pattern in every call": self.regular,
        }
        return ", ".join([seen(self.window), *(words for words, holds in more.items() if not holds)])


def mask_differences(case: Case) -> Iterator[Difference]:
    """Every attention operator whose queries see other keys than the reference's."""
    for site in case.sites:
        facts = case.live.facts.get(site.layer)
        if facts is None:
            continue
        wanted = Sight(facts.window)
        name = mask_of(site)
        own = site.values.get("local_window_size", -1)
        if site.operator == "GroupQueryAttention" and not name:
            got = Sight(None if own in (-1, 0) else int(own))
            if got != wanted:
                yield _of_attribute(case, site, got, wanted)
        elif site.operator == "Attention" and not name and site.values.get("is_causal") and facts.window is not None:
            yield _without_mask(case, site, Sight(None), wanted)
        elif name:
            rows = _rows(case, site, name)
            found = sight_of(case, rows, facts.window or 0)
            if found is not None and found != wanted:
                yield _of_mask(case, site, name, found, wanted)


def sight_of(case: Case, rows: Callable[[int, int, int], Visible | None], window: int) -> Sight | None:
    """What a query sees.

    Args:
        case: of the package.
        rows: new tokens, tokens before them, how many of all are padding -> ``[new, total]``.
        window: the reference's, 0 if it has none.
    """
    past = max(2 * window, 64) + 8
    last, whole, part = rows(1, past, 0), rows(_FEW, 0, 0), rows(_FEW, past, 0)
    # Where an operator takes padding only on the right, it does not stand before a text, and nothing hides it there.
    key = ("left padding",)
    if key not in case.view.memory:
        case.view.memory[key] = left_padding_obstacle(case.package.model) is None
    asked: bool = case.view.memory[key]
    has_mask = asked and any("mask" in value.name for value in case.view.proto.graph.input)
    padded = rows(_FEW, 0, _PADDED) if has_mask else whole
    if last is None or whole is None or padded is None or part is None:
        return None
    counts_past = not np.array_equal(part, np.tri(_FEW, past + _FEW, dtype=bool)) or not past
    row = last[0] if counts_past else whole[-1]
    first = int(row.argmax())
    found = Sight(
        window=None if not row.any() or first == 0 else len(row) - first,
        causal=not np.triu(whole, 1).any(),
        hides_padding=not has_mask or not padded[_PADDED:, :_PADDED].any(),
        sees_itself=bool(whole[-1, -1]),
        counts_past=counts_past,
    )
    steps = ((last, 1, past), (whole, _FEW, 0), (part, _FEW, past))
    known = not found.causal or not counts_past  # later keys are seen in some way or other
    regular = known or all(np.array_equal(each, found.shown(new, before)) for each, new, before in steps)
    return replace(found, regular=regular)


def _difference(site: Site, got: Sight, wanted: Sight) -> dict[str, object]:
    return {
        "parameter": "mask",
        "where": f"model.layers.{site.layer}.self_attn",
        "layer": site.layer,
        "package": got,
        "reference": wanted,
        "fact": f"{got.words()}; in the reference {wanted.words()}",
        "facts": {"origin": origin(got, wanted)},
    }


def origin(got: Sight, wanted: Sight) -> str:
    """What is wrong, whatever is right: a mask that shows everything shows it to every layer."""
    if not got.causal:
        return "not causal"
    if not (got.counts_past and got.sees_itself and got.regular):
        return "pattern"
    return "padding" if got.window == wanted.window else f"window {got.window} for {wanted.window}"


def _of_attribute(case: Case, site: Site, got: Sight, wanted: Sight) -> Difference:
    def rows(new: int, past: int, padded: int) -> Visible:
        return before(new, past, padded, got.window)

    return Difference(
        **_difference(site, got, wanted),  # type: ignore[arg-type]
        breaks=lambda: case.live.attending({site.layer: change_of(case, rows)}),
        repairs=lambda edit: edit.set_attribute(site.node.output[0], "local_window_size", wanted.window or -1),
    )


def _without_mask(case: Case, site: Site, got: Sight, wanted: Sight) -> Difference:
    """An operator that is causal by its attribute, over caches of a fixed length."""

    def rows(new: int, past: int, padded: int) -> Visible:
        return before(new, past, padded, got.window)

    def repairs(edit: Edit) -> None:
        output = site.node.output[0]
        right = static_mask(edit, case, site.node.input[1], wanted.window or 0)
        edit.replace_input(output, _MASK, right, f"a mask of {wanted.words()}")
        edit.set_attribute(output, "is_causal", 0)

    return Difference(
        **_difference(site, got, wanted),  # type: ignore[arg-type]
        breaks=lambda: case.live.attending({site.layer: change_of(case, rows)}),
        repairs=repairs,
    )


def _rows(case: Case, site: Site, name: str) -> Callable[[int, int, int], Visible | None]:
    """What an operator with a mask shows."""

    def rows(new: int, past: int, padded: int) -> Visible | None:
        found = visible(case.view, name, new, past, padded)
        if found is None or not site.values.get("is_causal"):
            return found
        return found & np.tri(new, past + new, past, dtype=bool)

    return rows


def _of_mask(case: Case, site: Site, name: str, got: Sight, wanted: Sight) -> Difference:
    shown = _rows(case, site, name)

    def rows(new: int, past: int, padded: int) -> Visible:
        found = shown(new, past, padded)
        return before(new, past, padded, None) if found is None else found

    place = list(site.node.input).index(name)
    return Difference(
        **_difference(site, got, wanted),  # type: ignore[arg-type]
        breaks=lambda: case.live.attending({site.layer: change_of(case, rows)}),
        repairs=lambda edit: edit.replace_input(
            site.node.output[0], place, mask_subgraph(edit, case, name, wanted.window), f"a mask of {wanted.words()}"
        ),
    )


def before(new: int, past: int, padded: int, window: int | None) -> Visible:
    """``[new, total]`` of a causal mask with a window, and padding before the text."""
    keys, queries = np.arange(past + new)[None], np.arange(past, past + new)[:, None]
    shown = (keys <= queries) & (keys >= padded)
    return shown if window is None else shown & (keys > queries - window)


def change_of(
    case: Case, rows: Callable[[int, int, int], Visible], *, gives_zero: bool = False
) -> Callable[[Call], None]:
    """A fault: the mask of a call, row by row of the batch.

    Args:
        case: of the reference.
        rows: new tokens, tokens before them, how many of all are padding -> ``[new, total]``.
        gives_zero: whether a query that sees nothing gets zeros; else all values alike, as a finite mask gives it.
    """
    memory: dict[tuple[int, int, int], Visible] = {}

    def row(new: int, past: int, padded: int) -> Visible:
        if (new, past, padded) not in memory:
            memory[new, past, padded] = rows(new, past, padded)
        return memory[new, past, padded]

    def change(call: Call) -> None:
        new, past = call.query.shape[2], case.live.past
        padded = [int((each == 0).cumprod().sum()) for each in case.live.mask]
        shown = np.stack([row(new, past, count) for count in padded])[:, None]
        hidden = call.query.new_tensor(np.finfo(np.float32).min)
        if gives_zero:
            shown = np.concatenate([shown, ~shown.any(axis=-1, keepdims=True)], axis=-1)
            call.key, call.value = (_with_nothing(each) for each in (call.key, call.value))
        call.mask = call.query.new_zeros(shown.shape).masked_fill(~call.query.new_tensor(shown).bool(), hidden)

    return change


def _with_nothing(heads: Any) -> Any:
    """Keys or values with one of zeros behind them."""
    return importlib.import_module("torch").cat([heads, 0 * heads[:, :, :1]], dim=2)
