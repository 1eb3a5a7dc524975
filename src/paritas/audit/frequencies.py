"""Inverse frequencies that a graph makes its cosines and sines of, against those of the checkpoint's RoPEs."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from paritas.audit.finding import Finding
from paritas.audit.rope import formula, words
from paritas.audit.told import Told, Unknown
from paritas.audit.view import View
from paritas.graph.rope import far, inverse_frequencies
from paritas.runtime.stored import Stored
from paritas.spec import LongRope, Rope

_FEWEST = 4
_LAST_BITS = 3 * 2**-23  # relative, as for tables


def frequencies_of(view: View) -> Sequence[Stored]:
    """Vectors that fall from one radian a position or less, and are no weight for that: none is sorted."""
    vectors = (t for t in view.tensors.values() if t.is_float and t.matrix[0] == 1 and t.size >= _FEWEST)
    return [stored for stored in vectors if _falls(stored.vector())]


def _falls(values: NDArray[np.float32]) -> bool:
    return bool(values[-1] > 0 and values[0] <= 1 and (np.diff(values) < 0).all() and values[-1] < values[0] / 2)


def frequency_findings(found: Sequence[Stored], told: Told) -> Iterator[Finding]:
    """Frequencies that are none of the checkpoint's, and RoPEs of the checkpoint that none of the graph's are."""
    ropes = [rope for rope in dict.fromkeys(layer.rope for layer in told.layers) if isinstance(rope, Rope)]
    if not ropes or any(isinstance(layer.rope, Unknown) for layer in told.layers):
        return
    parts = {rope: [rope, *([far(rope)] if isinstance(rope.scaling, LongRope) else [])] for rope in ropes}
    matched = {s.name: next((r for r in ropes if any(_equal(s, p) for p in parts[r])), None) for s in found}
    says = "; ".join(words(rope) for rope in ropes)
    for stored in found:
        if matched[stored.name] is None:
            yield Finding(
                "rope-table-wrong",
                "error",
                stored.name,
                f"inverse frequencies of {formula(stored.vector())}, {told.by} says {says}",
                f"Hold those of {says}.",
            )
    if found and all(matched.values()):
        for rope in ropes:
            if rope not in matched.values():
                yield Finding(
                    "rope-table-wrong",
                    "error",
                    ", ".join(matched),
                    f"no layer rotates by {words(rope)}, which {told.by} says of some",
                    "Give each layer its own frequencies.",
                )


def _equal(stored: Stored, rope: Rope) -> bool:
    wanted, got = inverse_frequencies(rope), stored.vector()
    allowed = np.float32({"fp16": 2.0**-10, "bf16": 2.0**-7}.get(stored.dtype, _LAST_BITS))
    return wanted.shape == got.shape and bool(np.all(np.abs(got - wanted) <= allowed * wanted))
