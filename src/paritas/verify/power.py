"""What a run could have seen: small faults in the reference, measured in the same floors; and where nothing looked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paritas.verify.compare import Logits, differ
from paritas.verify.probes import Sequence
from paritas.verify.reference import Facts, Reference

NEAR = 160
"""Tokens of the long sequence on which a fault is measured that does not need its end."""


@dataclass(frozen=True)
class Sight:
    """One fault under one probe.

    Attributes:
        fault: in words.
        probe: that would have met it.
        floors: the greatest difference that it makes.
    """

    fault: str
    probe: str
    floors: float


class Power:
    """Measures faults on sequences that the reference has answered.

    Attributes:
        differences: (fault, sequence) -> the greatest difference at each of the first positions.
    """

    def __init__(self, reference: Reference, sequences: Iterable[Sequence], logits: Mapping[str, Logits]) -> None:
        self._reference, self._logits = reference, logits
        self._sequences = [each for each in sequences if each.name in ("short", "long", "window")]
        self.differences: dict[tuple[str, str], NDArray[np.float64]] = {}

    def measure(self) -> None:
        """Put every fault in and take it back; the reference then answers as before, to the bit."""
        used = frozenset(token for sequence in self._sequences for token in sequence.ids)
        for fault in self._reference.faults(used):
            with fault.within():
                for sequence in self._sequences:
                    ids = sequence.ids if fault.distant else sequence.ids[:NEAR]
                    found, _ = differ(self._logits[sequence.name][: len(ids)], self._reference.one_pass(ids))
                    self.differences[fault.name, sequence.name] = found
        if self.differences:
            self._check_restored()

    def sights(self, floors: Mapping[str, NDArray[np.float64]]) -> tuple[Sight, ...]:
        """Every fault in floors, under each probe."""
        return tuple(
            Sight(fault, name, float((found / floors[name][: len(found)]).max()))
            for (fault, name), found in self.differences.items()
        )

    def _check_restored(self) -> None:
        sequence = self._sequences[0]
        if not np.array_equal(self._reference.one_pass(sequence.ids), self._logits[sequence.name]):
            raise RuntimeError("the reference does not answer as it did before faults were put into it and taken back")


def blind_spots(facts: Facts, tested: Mapping[str, int], untested: Mapping[str, str]) -> tuple[str, ...]:
    """Where no probe looked, in words.

    Args:
        facts: of the model.
        tested: probes that some runtime answered -> tokens of their longest sequence.
        untested: the others -> what they would have crossed.
    """
    reached = max(tested.values(), default=0)
    rows = "batches of more than two rows" if {"padding", "padding-right"} & tested.keys() else "batches"
    if facts.positions is None:
        beyond = [f"positions from {reached:,} on"]
    elif facts.positions > reached:
        beyond = [f"positions from {reached:,} to {facts.positions - 1:,}"]
    else:
        beyond = []
    return (*beyond, *(f"{probe} ({boundary})" for probe, boundary in untested.items()), rows)
