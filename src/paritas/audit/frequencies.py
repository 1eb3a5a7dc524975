"""Inverse frequencies that a graph makes its cosines and sines of, against those of the checkpoint's RoPEs."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from paritas.audit.finding import Finding
from paritas.audit.rope import formula, words
from paritas.audit.tensors import Stored
from paritas.audit.view import View
from paritas.graph.rope import inverse_frequencies
from paritas.spec import Decoder, Rope

_FEWEST = 4
_LAST_BITS = 3 * 2**-23  # relative, as for tables


def frequencies_of(view: View) -> Sequence[Stored]:
    """Vectors that fall from one radian a position or less, and are no weight for that: none is sorted."""
    vectors = (t for t in view.tensors.values() if t.is_float and t.matrix[0] == 1 and t.size >= _FEWEST)
    return [stored for stored in vectors if _falls(stored.vector())]


def _falls(values: NDArray[np.float32]) -> bool:
    return bool(values[-1] > 0 and values[0] <= 1 and (np.diff(values) < 0).all() and values[-1] < values[0] / 2)


def frequency_findings(found: Sequence[Stored], spec: Decoder) -> Iterator[Finding]:
    """Frequencies that are none of the checkpoint's, and RoPEs of the checkpoint that none of the graph's are."""
    ropes = list(dict.fromkeys(layer.attention.rope for layer in spec.layers))
    matched = {stored.name: next((r for r in ropes if _equal(stored, r)), None) for stored in found}
    says = "; ".join(words(rope) for rope in ropes)
    for stored in found:
        if matched[stored.name] is None:
            yield Finding(
                "rope-table-wrong",
                "error",
                stored.name,
                f"inverse frequencies of {formula(stored.vector())}, the checkpoint says {says}",
                f"Hold those of {says}.",
            )
    if found and all(matched.values()):
        for rope in ropes:
            if rope not in matched.values():
                yield Finding(
                    "rope-table-wrong",
                    "error",
                    ", ".join(matched),
                    f"no layer rotates by {words(rope)}, which the checkpoint says of some",
                    "Give each layer its own frequencies.",
                )


def _equal(stored: Stored, rope: Rope) -> bool:
    wanted, got = inverse_frequencies(rope), stored.vector()
    allowed = np.float32({"fp16": 2.0**-10, "bf16": 2.0**-7}.get(stored.dtype, _LAST_BITS))
    return wanted.shape == got.shape and bool(np.all(np.abs(got - wanted) <= allowed * wanted))
