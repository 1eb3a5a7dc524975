"""Tensors of a fixed size that a graph hands from call to call beside keys and values: convolutions, recurrences."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paritas.runtime.tensors import FLOATS, FLOATS_OR_UNSAID, Port

_SIDE = re.compile(r"^(past_key_values|past|present)[._]?")


@dataclass(frozen=True)
class Carried:
    """A tensor that goes from one call into the next.

    Attributes:
        past: input of the graph.
        present: output of the graph.
        fresh: its sizes before the first token, the batch left out; what is in it then is zero.
        dtype: of its elements.
    """

    past: str
    present: str
    fresh: tuple[int, ...]
    dtype: np.dtype[Any]


def read_states(inputs: Sequence[Port], outputs: Sequence[Port]) -> tuple[Carried, ...]:
    """Inputs whose sizes are all fixed, the batch left out, each with the output of the same name on the other side.

    ``past_conv.0`` goes with ``present_conv.0``. An input without a partner is left out, and is then no decoder's.
    """
    given = {_SIDE.sub("", port.name): port.name for port in outputs if port.element in FLOATS_OR_UNSAID}
    found: list[Carried] = []
    for port in inputs:
        sizes = tuple(size for size in port.dims[1:] if size is not None)
        other = given.get(_SIDE.sub("", port.name))
        whole = bool(sizes) and len(sizes) == len(port.dims) - 1
        if port.element in FLOATS and _SIDE.match(port.name) and whole and other and other != port.name:
            found.append(Carried(port.name, other, sizes, port.dtype))
    return tuple(found)
