"""States of a decoder as cells and groups: what the runtime keeps, may share, may forget and may take back."""

from collections.abc import Mapping

from paritas.metadata.decoder import RECURRENT, SLIDING, Decoder, States
from paritas.metadata.workflow import Alias, Cell, Group

COMPONENT = "decoder"


def cells(decoder: Decoder, begin: Mapping[str, str], most: str | None = None) -> dict[str, Cell]:
    """A cell for each state, named as its input.

    Args:
        decoder: whose states they are.
        begin: the value that each begins as.
        most: the value up to which states of tokens grow from turn to turn; None if a runtime hides their growth.
    """
    of = {state.past: group for group in decoder.groups for state in group.members}

    def cell(name: str) -> Cell:
        axis = of[name].axis
        bound = None if axis is None or most is None else (axis, most)
        return Cell(decoder.inputs[name], begin[name], group=of[name].kind, bound=bound)

    return {state.past: cell(state.past) for state in decoder.states}


def groups(decoder: Decoder, context: int) -> dict[str, Group]:
    """Groups by their kind.

    A common prefix may serve another request only where all that it left behind is kept by position: a recurrent
    state has no position in it, so beside one nothing is reused, and nothing is taken back.
    """
    by_position = all(group.kind != RECURRENT for group in decoder.groups)
    return {group.kind: _group(group, by_position, context) for group in decoder.groups}


def _group(group: States, by_position: bool, context: int) -> Group:
    return Group(
        kind=group.kind,
        axis=group.axis,
        layout=group.layout,
        in_place=group.in_place,
        prefix_reusable=by_position,
        evictable_prefix=group.kind == SLIDING,
        rollback=context if by_position else None,
        aliases=tuple(
            Alias(COMPONENT, state.past, state.past, state.present, state.role, state.layer) for state in group.members
        ),
    )
