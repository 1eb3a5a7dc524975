"""Which keys a query sees: the operator's window, or its mask evaluated; causal, window, padding."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
    """

    window: int | None
    causal: bool
    hides_padding: bool

    def words(self) -> str:
        """For people."""
        more = [] if self.causal else ["later keys too"]
        more += [] if self.hides_padding else ["keys of padding too"]
        return ", ".join([seen(self.window), *more])


def mask_differences(case: Case) -> Iterator[Difference]:
    """Every attention operator whose queries see other keys than the reference's."""
    for site in case.sites:
        facts = case.live.facts.get(site.layer)
        if facts is None:
            continue
        wanted = Sight(facts.window, causal=True, hides_padding=True)
        name = mask_of(site)
        own = site.values.get("local_window_size", -1)
        if site.operator == "GroupQueryAttention" and not name:
            got = Sight(None if own in (-1, 0) else int(own), causal=True, hides_padding=True)
            if got != wanted:
                yield _of_attribute(case, site, got, wanted)
        elif site.operator == "Attention" and not name and site.values.get("is_causal") and facts.window is not None:
            yield _without_mask(case, site, Sight(None, causal=True, hides_padding=True), wanted)
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
    last, whole = rows(1, past, 0), rows(_FEW, 0, 0)
    has_mask = any("mask" in value.name for value in case.view.proto.graph.input)
    padded = rows(_FEW, 0, _PADDED) if has_mask else whole
    if last is None or whole is None or padded is None:
        return None
    count = int(last[0].sum())
    return Sight(
        window=None if count == past + 1 else count,
        causal=not np.triu(whole, 1).any(),
        hides_padding=not has_mask or not padded[_PADDED:, :_PADDED].any(),
    )


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


def change_of(case: Case, rows: Callable[[int, int, int], Visible]) -> Callable[[Call], None]:
    """A fault: the mask of a call, row by row of the batch."""
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
        call.mask = call.query.new_zeros(shown.shape).masked_fill(~call.query.new_tensor(shown).bool(), hidden)

    return change
