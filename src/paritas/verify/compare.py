"""One sequence's logits beside the reference's: how far apart, in floors, and where.

The near tie. A greedy token that differs is *always* within twice the measured difference of the
reference's best (otherwise the two could not have changed places), so that rule alone would excuse every
token of a broken package. It is therefore asked of the difference that the gate allows: a near tie is a gap
under twice the smaller of the measured difference and :data:`~paritas.verify.verdict.PROVEN_FLOORS` floors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.errors import Invalid
from paritas.verify.spool import release
from paritas.verify.verdict import PROVEN_FLOORS

Logits = NDArray[np.floating[Any]]
BLOCK = 32
"""Rows compared at once: 32 rows of a vocabulary of 262,144 are 64 MiB in fp64."""


@dataclass(frozen=True)
class Tokens:
    """Greedy tokens beside the reference's.

    Attributes:
        identical, near_ties, different: how many of each.
        first: position of the first that is different; None if none is.
        chosen: the package's token in place of each of the reference's.
        gaps: between the reference's two best logits there.
        near: indices of those that are near ties.
    """

    identical: int
    near_ties: int
    different: int
    first: int | None
    chosen: tuple[int, ...] = ()
    gaps: tuple[float, ...] = ()
    near: tuple[int, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """One sequence, position by position.

    Attributes:
        sequence: its name.
        differences: ``[positions]``, max over the vocabulary of the absolute difference; infinite where the
            package gave NaN or Inf.
        floors: ``[positions]``.
        vocab_ids: ``[positions]``, the token whose logit differs most.
        tokens: None if the sequence asks for none.
        cosines: ``[positions]``, of the two rows; NaN where the package gave NaN or Inf.
        same_best: ``[positions]``, whether both have the same greatest element.
    """

    sequence: str
    differences: NDArray[np.float64]
    floors: NDArray[np.float64]
    vocab_ids: NDArray[np.int64]
    tokens: Tokens | None
    cosines: NDArray[np.float64]
    same_best: NDArray[np.bool_]

    @property
    def ratios(self) -> NDArray[np.float64]:
        """Differences in floors, ``[positions]``."""
        return self.differences / self.floors

    @property
    def worst(self) -> int:
        """The position with the greatest difference in floors."""
        return int(self.ratios.argmax())

    @property
    def first_bad(self) -> int | None:
        """The first position beyond the gate."""
        bad = np.flatnonzero(self.ratios > PROVEN_FLOORS)
        return int(bad[0]) if bad.size else None

    @property
    def first_nonfinite(self) -> int | None:
        """The first position where the package gave NaN or Inf."""
        lost = np.flatnonzero(np.isinf(self.differences))
        return int(lost[0]) if lost.size else None


def compare(
    sequence: str,
    want: Logits,
    got: Logits,
    floors: NDArray[np.float64],
    *,
    prompt: int = 0,
    greedy: Sequence[int] = (),
) -> Comparison:
    """Compare ``got`` with ``want``, both ``[positions, vocab]``.

    Args:
        sequence: its name.
        want: the reference's logits, finite.
        got: the package's.
        floors: ``[positions]``, above zero.
        prompt: length of the prompt; the logits at ``prompt - 1`` choose the first of ``greedy``.
        greedy: the tokens that the reference chose.

    Raises:
        Invalid: ``vocabulary-differs``, ``logits-shape``.
    """
    check_shape(want.shape, got.shape)
    differences, vocab_ids = differ(want, got)
    tokens = _tokens(want, got, np.minimum(differences, PROVEN_FLOORS * floors), prompt, greedy)
    return Comparison(sequence, differences, floors, vocab_ids, tokens if greedy else None, *_alike(want, got))


def check_shape(want: tuple[int, ...], got: tuple[int, ...]) -> None:
    """Raise Invalid unless the package gave logits of the reference's shape ``[positions, vocab]``."""
    if got == want:
        return
    if len(got) == len(want) and got[:-1] == want[:-1]:
        raise Invalid(
            "vocabulary-differs",
            f"the package gives {got[-1]:,} logits a token, the checkpoint {want[-1]:,}",
            hint="Compare the package with the checkpoint that it was made from.",
        )
    raise Invalid(
        "logits-shape",
        f"the package gives logits {list(got)}, the checkpoint {list(want)} (positions, vocabulary)",
        hint="Export the graph with the logits of every position.",
    )


def differ(want: Logits, got: Logits) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Greatest absolute difference over the vocabulary, and the token it is at, each ``[positions]``.

    Infinite where ``got`` is not finite. Works in blocks of rows, in fp64; of mapped logits no more lie in memory.
    """
    most, where = np.empty(len(want)), np.empty(len(want), np.int64)
    for rows in blocks(len(want)):
        gap = np.subtract(got[rows], want[rows], dtype=np.float64)
        np.abs(gap, out=gap)
        gap[~np.isfinite(gap)] = np.inf
        where[rows] = gap.argmax(axis=1)
        most[rows] = gap.max(axis=1)
        release(want)
        release(got)
    return most, where


def _alike(want: Logits, got: Logits) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Cosine of the two rows, and whether they have the same greatest element, each ``[positions]``.

    People know these; neither judges anything, since both pass over a wrong epsilon.
    """
    cosines = np.empty(len(want))
    for rows in blocks(len(want)):
        one, other = want[rows].astype(np.float64), got[rows].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            inner = [np.einsum("pv,pv->p", a, b) for a, b in ((one, other), (one, one), (other, other))]
            cosines[rows] = inner[0] / np.sqrt(inner[1] * inner[2])
    return cosines, want.argmax(axis=1) == got.argmax(axis=1)


def blocks(rows: int) -> Iterator[slice]:
    """Slices of at most :data:`BLOCK` rows that together are all of them."""
    for start in range(0, rows, BLOCK):
        yield slice(start, min(start + BLOCK, rows))


def _tokens(want: Logits, got: Logits, allowed: NDArray[np.float64], prompt: int, greedy: Sequence[int]) -> Tokens:
    """Count the greedy tokens; ``allowed[p]`` is the difference at p that a near tie may rest on."""
    chosen = tuple(int(got[prompt - 1 + index].argmax()) for index in range(len(greedy)))
    gaps = tuple(_gap(want[prompt - 1 + index]) for index in range(len(greedy)))
    near: list[int] = []
    different: list[int] = []
    for index, (token, choice) in enumerate(zip(greedy, chosen, strict=True)):
        position = prompt - 1 + index
        if choice == token and bool(np.isfinite(got[position]).all()):
            continue
        (near if gaps[index] < 2 * allowed[position] else different).append(index)
    identical = len(greedy) - len(near) - len(different)
    first = prompt - 1 + different[0] if different else None
    return Tokens(identical, len(near), len(different), first, chosen, gaps, tuple(near))


def _gap(row: Logits) -> float:
    """Between the two greatest logits of a row ``[vocab]``."""
    second, best = np.partition(row, -2)[-2:]
    return float(best) - float(second)
