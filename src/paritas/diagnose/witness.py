"""The sequences that experiments are made on: as few of the run's own as show every way in which the package fails."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paritas.diagnose.case import Case
from paritas.diagnose.difference import Break
from paritas.diagnose.edit import Edit
from paritas.errors import Invalid
from paritas.runtime.decoder import Decoder
from paritas.runtime.padding import left_padding_obstacle
from paritas.runtime.session import RawSession
from paritas.verify.asking import ask
from paritas.verify.compare import check_shape, differ
from paritas.verify.floor import USUAL
from paritas.verify.probes import Manner, Probe
from paritas.verify.spool import spooled
from paritas.verify.truth import Truth
from paritas.verify.verdict import PROVEN_FLOORS

Logits = NDArray[np.float32]
_ORDER = (Manner.ONE_PASS, Manner.STEPS, Manner.PADDED_LEFT, Manner.CHUNKS, Manner.PADDED_RIGHT)
_USUAL = _ORDER[:3]
_REACHING = frozenset({"window", "long", "decode"})
"""Probes that cross the window, or go far beyond a few tokens, and are cheaper than the last positions."""


@dataclass(frozen=True)
class Asked:
    """One probe, and what the unchanged package answered.

    Attributes:
        probe: of the run.
        truths: of its sequences.
        answers: the package's own logits, ``[positions, vocab]`` each.
        floors: worst difference of the package.
    """

    probe: Probe
    truths: tuple[Truth, ...]
    answers: tuple[Logits, ...]
    floors: float


class Witness:
    """Measures changes of the package, and faults in the reference.

    Args:
        case: the package.
        known: probe -> worst difference in floors, where a verification has measured that; else it is measured.

    Attributes:
        asked: the probes that experiments are made on; all probes, if none fails.
        floors: worst difference of the unchanged package over them.
    """

    def __init__(self, case: Case, known: Mapping[str, float] | None = None) -> None:
        self._case = case
        self._padded: dict[str, tuple[Logits, ...]] = {}
        session = RawSession(case.package, brief=True)
        self.asked: tuple[Asked, ...] = tuple(_fewest(case, session, known))
        self.floors = max((each.floors for each in self.asked), default=0.0)

    @property
    def fails(self) -> bool:
        """Whether there is anything to diagnose."""
        return self.floors > PROVEN_FLOORS

    @property
    def names(self) -> tuple[str, ...]:
        """Probe and sequences, for people."""
        return tuple(f"{each.probe.id}: {each.probe.boundary}" for each in self.asked)

    def measure(self, edit: Edit) -> float:
        """Worst difference of the changed package from the reference, in floors; infinite if it does not run."""
        try:
            session = RawSession(self._case.package, graph=edit.graph(), brief=True)
            return max(_floors(each.truths, _put(session, each)) for each in self.asked)
        except (Invalid, ValueError):
            return float("inf")

    def reproduced(self, breaks: Break) -> float:
        """Worst difference of the broken reference from the package's own logits, in floors.

        A broken model may be noisier than the right one (a softmax on a knife's edge, greater logits). Where the floors
        of the right one do not do, they are measured anew, as in :mod:`paritas.verify.floor`: with a last bit of every
        weight moved.
        """
        plain = [self._allowed(each, number) for each in self.asked for number in range(len(each.truths))]
        if not any(np.isfinite(floors).any() for floors in plain):
            return float("inf")
        with breaks():
            given = self._given()
            if (worst := self._beside(given, plain)) <= PROVEN_FLOORS:
                return worst
            moved: list[list[Logits]] = []
            for seed in (1, 2):
                with self._case.live.nudged(seed):
                    moved.append(self._given())
        return self._beside(given, [_own_floors(*each) for each in zip(given, plain, *moved, strict=True)])

    def _allowed(self, asked: Asked, number: int) -> NDArray[np.float64]:
        """Floors of a sequence; nothing is asked of one in which the reference with padding is not what it is alone.

        transformers 5.24 zeroes padding before the input projection of a convolution, whose bias then goes on.
        """
        floors = np.asarray(asked.truths[number].floors)
        if asked.probe.manner is not Manner.PADDED_LEFT:
            return floors
        if asked.probe.id not in self._padded:
            self._padded[asked.probe.id] = _put(self._case.live, asked)
        found, _ = differ(asked.truths[number].logits, self._padded[asked.probe.id][number])
        return floors if float((found / floors).max()) <= PROVEN_FLOORS else np.full_like(floors, np.inf)

    def _given(self) -> list[Logits]:
        return [answer for each in self.asked for answer in _put(self._case.live, each)]

    def _beside(self, given: Sequence[Logits], floors: Sequence[NDArray[np.float64]]) -> float:
        own = [answer for each in self.asked for answer in each.answers]
        ratios = (differ(one, other)[0] / f[: len(one)] for one, other, f in zip(own, given, floors, strict=True))
        return max(float(each.max()) for each in ratios)


def _own_floors(given: Logits, floors: NDArray[np.float64], *moved: Logits) -> NDArray[np.float64]:
    """The right model's floors, or the broken one's, where those are greater."""
    own = np.max([differ(given, each)[0] for each in moved], axis=0)
    return np.maximum(floors[: len(given)], np.maximum(own, np.quantile(own, USUAL)))


def _askable(case: Case) -> Iterator[Probe]:
    """Probes that compare logits with the reference's."""
    obstacle = left_padding_obstacle(case.package.model)
    for probe in case.truths.probes:
        if probe.obstacle is None and probe.manner in _ORDER and not (obstacle and probe.manner is Manner.PADDED_LEFT):
            yield probe


def _answered(case: Case, session: RawSession, probe: Probe) -> Asked:
    """What the package answers to a probe.

    Raises:
        Invalid: it does not.
    """
    truths = tuple(case.truths.by_name[name] for name in probe.sequences)
    answers = tuple(map(spooled, ask(session, probe, tuple(truth.sequence for truth in truths))))
    return Asked(probe, truths, answers, _floors(truths, answers))


def _put(decoder: Decoder, asked: Asked) -> tuple[Logits, ...]:
    return ask(decoder, asked.probe, tuple(truth.sequence for truth in asked.truths))


def _floors(truths: Sequence[Truth], answers: Sequence[Logits]) -> float:
    worst = 0.0
    for truth, answer in zip(truths, answers, strict=True):
        check_shape((len(answer), truth.logits.shape[1]), answer.shape)
        found, _ = differ(truth.logits[: len(answer)], answer)
        worst = max(worst, float((found / truth.floors[: len(answer)]).max()))
    return worst


def _fewest(case: Case, session: RawSession, known: Mapping[str, float] | None) -> Iterator[Asked]:
    """Of the probes that fail: of each manner the one that fails worst; in parts and padded right only if nothing else.

    If none fails, all of them. Answers are large, and no more are held than those of the worst of each manner so far.

    Raises:
        Invalid: the package answers none.
    """
    worst: dict[Manner, Asked] = {}
    right: list[Asked] = []
    refused: list[Invalid] = []
    for probe in _worth_asking(case, known):
        if probe.manner not in _USUAL and worst:
            break
        try:
            asked = _answered(case, session, probe)
        except Invalid as refusal:
            refused.append(refusal)
            continue
        if asked.floors <= PROVEN_FLOORS:
            right.append(replace(asked, answers=()))
        elif probe.manner not in worst or _rank(asked) > _rank(worst[probe.manner]):
            worst[probe.manner] = asked
    if refused and not (worst or right):
        raise refused[0]
    yield from [worst[manner] for manner in _ORDER if manner in worst] or right


def _rank(asked: Asked) -> tuple[bool, float]:
    return asked.probe.id in _REACHING, asked.floors


def _worth_asking(case: Case, known: Mapping[str, float] | None) -> Iterator[Probe]:
    """All that can be asked, the usual first; where a verification has measured them and some fail, those."""
    probes = [probe for probe in _askable(case) if known is None or probe.id in known]
    probes.sort(key=lambda probe: probe.manner not in _USUAL)
    failing = [probe for probe in probes if known is not None and known[probe.id] > PROVEN_FLOORS]
    yield from failing or probes


class Clock:
    """Seconds since it was made, or since the last lap."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def seconds(self) -> float:
        """So far."""
        return time.perf_counter() - self._start

    def lap(self) -> float:
        """So far, and from the beginning again."""
        past = self.seconds()
        self._start += past
        return past
