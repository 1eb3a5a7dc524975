"""Cosines and sines as a package stores them, in the reference.

transformers rounds them to the model's dtype each time it computes them. A package stores them rounded once. Where a
stored table is, at the positions that are asked, the reference's own numbers rounded to the table's dtype, the
reference goes on with the table's numbers; where it is not, with its own.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from paritas.runtime.held import NARROW, Held

Rows = NDArray[np.float32]

_HALF = {"fp16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 2.0**-134)}
"""Half the distance of two neighbours: of 1, and of the smallest numbers."""
_FP32 = 2.0**-20
"""What two ways to compute a cosine in fp32 may differ by."""


@dataclass(frozen=True)
class Table:
    """``[positions, width]``, and its dtype."""

    dtype: str
    values: Rows

    def at(self, positions: NDArray[np.int64], wanted: Rows) -> Rows | None:
        """The rows at ``positions``, if they are ``wanted`` ``[tokens, width]`` rounded; None if not."""
        if wanted.shape[-1] != self.values.shape[1] or positions.max(initial=0) >= len(self.values):
            return None
        rows = self.values[positions]
        ulp, least = _HALF[self.dtype]
        # Half a step of the binade that a number lies in is at most `ulp` times the number.
        allowed = np.maximum(ulp * np.abs(wanted), least) + _FP32
        return rows if bool((np.abs(rows - wanted) <= allowed).all()) else None


def read_tables(held: Held, widths: Sequence[int]) -> tuple[Table, ...]:
    """Every matrix of fp16 or bf16 as wide as half a head or a head, with no number beyond what a cosine may be."""
    found: list[Table] = []
    for each in held.floats:
        stored = each.stored
        if stored.dtype in NARROW and len(stored.shape) == 2 and stored.shape[1] in widths:
            values = stored.vector().reshape(stored.shape)
            if float(np.abs(values).max()) < _LARGEST:
                found.append(Table(stored.dtype, values))
    return tuple(found)


_LARGEST = 4.0  # a cosine times the attention factor of YaRN or LongRoPE


def rounds(tables: Sequence[Table], switches: Sequence[int] = ()) -> Callable[..., Any]:
    """A forward hook for transformers' rotary modules, which give cosines and sines ``[batch, tokens, width]``.

    Args:
        tables: of the package.
        switches: lengths beyond which RoPE rotates otherwise. The rows for calls beyond one may follow that many rows
            for calls up to it, in one table.
    """
    torch = importlib.import_module("torch")

    def replaced(values: Any, positions: NDArray[np.int64]) -> Any:
        each = np.resize(positions, values.shape[:2])  # one row of positions may be for all rows of a batch
        return torch.stack([one_row(values[row], each[row]) for row in range(len(each))])

    def one_row(values: Any, positions: NDArray[np.int64]) -> Any:
        if values.dtype not in (torch.float32, torch.float64):
            return values  # transformers has rounded them itself
        wanted = values.float().numpy()
        half = wanted.shape[-1] // 2
        for table in tables:
            for first in (0, *switches):
                for part, times in ((wanted[:, :half], 2), (wanted, 1)):
                    if (rows := table.at(first + positions, part)) is not None:
                        return torch.from_numpy(np.tile(rows, (1, times))).to(values.dtype)
        return values

    def hook(_module: Any, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        positions = named.get("position_ids", given[1] if len(given) > 1 else None)
        if positions is None or not isinstance(output, tuple):
            return output
        at = positions.reshape(-1, positions.shape[-1]).numpy()
        return tuple(replaced(values, at) for values in cast(tuple[Any, ...], output))

    return hook
