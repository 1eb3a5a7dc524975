"""The window of an attention operator: its attribute, or what its mask shows."""

from typing import Literal

from paritas.audit.masks import window_of
from paritas.audit.sites import Site
from paritas.audit.view import View

USUAL = 4096  # windows up to this one are found on layers that should have none
_MASK = {"Attention": 3, "MultiHeadAttention": 5, "GroupQueryAttention": 10}


def mask_of(site: Site) -> str | None:
    """The value that masks an operator's scores."""
    place = _MASK[site.operator]
    return site.node.input[place] if len(site.node.input) > place and site.node.input[place] else None


def window_at(view: View, site: Site, most: int) -> int | Literal[False] | None:
    """Keys that a query sees, its own included; None if it sees all before it, False if that cannot be told.

    Args:
        view: the graph.
        site: the operator.
        most: a window up to this many keys is found in a mask.
    """
    own = site.values.get("local_window_size", -1)
    if own not in (-1, 0):
        return int(own)
    mask = mask_of(site)
    if mask is None:
        return None
    found = window_of(view, mask, max(most, USUAL))
    return False if found is None else found or None


def seen(window: int | None) -> str:
    """A window in words."""
    return "a query sees every key before it" if window is None else f"a query sees {window:,} keys"
