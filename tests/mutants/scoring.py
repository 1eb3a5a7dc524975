"""Puts one mutant or control to verify and diagnose, and says how far they came."""

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from mutants.answers import is_named
from mutants.making import checkpoint, make
from mutants.mutant import Mutant
from paritas.checkpoint import open_checkpoint
from paritas.diagnose import repair, run
from paritas.diagnose.diagnosis import Diagnosis, Proof
from paritas.errors import ParitasError
from paritas.progress import silent
from paritas.runtime.package import open_package
from paritas.verify.evidence import Evidence
from paritas.verify.rounded import truths_for
from paritas.verify.run import judge
from paritas.verify.verdict import Verdict

RAW = ("onnxruntime",)
STEPS = ("detected", "localised", "named", "proved", "repaired")
"""How far a diagnosis may come with a mutant."""


@dataclass
class Score:
    """How far it came; every step of a mutant's is a yes or a no.

    Attributes:
        name, topic, blind: of the mutant; a control has no topic.
        clean: a control that is just what an exporter wrote.
        detected: verify does not prove it.
        localised: the regions that are wrong by themselves are where the fault acts, and there alone; or the places
            of the causes are.
        named: the causes are the fault, and nothing else.
        proved: both ways, and minimal.
        repaired: the repaired package is proven.
        verdict, floors: of verify.
        codes: of the causes.
        sources: regions that are wrong by themselves.
        places: of the causes.
        strays: of those two, what is not where the fault acts.
        reason: what went wrong, if something did.
        seconds: of a CPU: making, verifying, diagnosing, repairing.
    """

    name: str
    topic: str
    blind: bool = False
    clean: bool = False
    detected: bool = False
    localised: bool = False
    named: bool = False
    proved: bool = False
    repaired: bool = False
    verdict: str = ""
    floors: float | None = None
    codes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    reason: str = ""
    seconds: dict[str, float] = field(default_factory=dict)


def of_mutant(mutant: Mutant, out: Path, root: Path) -> Score:
    """Everything that can be said of a mutant.

    Args:
        mutant: which.
        out: a folder that is not there yet, for packages.
        root: where checkpoints are kept.
    """
    score = Score(mutant.name, mutant.topic.value, mutant.blind)
    clock = Clock(score)
    try:
        with clock("make"):
            package = make(mutant, out, root)
        folder = checkpoint(mutant.checkpoint, root)
        with clock("verify"):
            verified(score, judged(package, folder))
        with clock("diagnose"):
            diagnosed = run.diagnose(package, folder)
        _diagnosed(score, mutant, diagnosed.diagnosis)
        with clock("repair"):
            _repaired(score, diagnosed, out.with_name(f"{out.name}.repaired"))
    except ParitasError as error:
        score.reason = f"{error.code}: {error.fact}"
    except Exception as error:  # a crash of what is examined is a result, and has to be seen beside the others
        score.reason = f"crashed: {type(error).__name__}: {error}"
    return score


def judged(package: Path, folder: Path) -> Evidence:
    """What verify says of it in ONNX Runtime; the reference's answers are remembered."""
    opened = open_package(package)
    truths = truths_for(opened, open_checkpoint(folder), silent, cache=True, power=False)
    return judge(opened, truths, RAW)


def verified(score: Score, evidence: Evidence) -> None:
    """Write down the verdict."""
    score.verdict, score.floors = evidence.verdict.value, evidence.worst_floors
    score.detected = evidence.verdict is not Verdict.PROVEN


def _diagnosed(score: Score, mutant: Mutant, found: Diagnosis) -> None:
    score.codes = tuple(cause.suspect.code for cause in found.causes)
    score.sources = tuple(dict.fromkeys(region.region for region in found.where.sources)) if found.where else ()
    score.places = tuple(cause.suspect.where for cause in found.causes)
    strays = [[each for each in places if not acts(mutant, each)] for places in (score.sources, score.places)]
    score.localised = bool(score.sources and not strays[0]) or bool(score.places and not strays[1])
    score.strays = tuple(strays[0] + strays[1])
    score.named = is_named(mutant, score.codes)
    score.proved = bool(found.causes) and all(cause.proof is Proof.PROVED for cause in found.causes)
    if not found.diverges:
        score.reason = "diagnose sees no difference"
    elif not found.causes:
        score.reason = "no cause; suspects: " + (", ".join(dict.fromkeys(s.code for s in found.suspects)) or "none")
    elif not score.proved:
        score.reason = "; ".join(dict.fromkeys(f"{c.suspect.code} {c.proof.value}" for c in found.causes))


def acts(mutant: Mutant, where: str) -> bool:
    """Whether a place is one where the fault acts.

    Args:
        mutant: with its place.
        where: a region of the reference (``model.layers.1.self_attn[attention]``), or the place of a cause, which may
            be of many layers and say the module alone (``layers 0-6: self_attn``).
    """
    layers = _layers(where)
    if mutant.layers is not None and not layers <= set(mutant.layers):
        return False
    return any(re.search(mutant.module, f"{_LAYER.sub('', where)}{within}") for within in _WITHIN)


_LAYER = re.compile(r"^.*layers?[. ][\d, -]+(\.|: )")
_WITHIN = ("", "[attention]", "[rotation of queries]", "[activation]")


def _layers(where: str) -> set[int]:
    """Numbers of the layers of a place."""
    told = re.search(r"layers?[. ]([\d, -]+)", where)
    found: set[int] = set()
    for part in told[1].split(",") if told else ():
        first, _, last = part.strip(" .").partition("-")
        if first:
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _repaired(score: Score, diagnosed: run.Diagnosed, out: Path) -> None:
    if diagnosed.edit is None:
        return
    try:
        score.repaired = repair.write(diagnosed.case, diagnosed.edit, out).evidence.verdict is Verdict.PROVEN
    except ParitasError as error:
        score.reason = "; ".join(each for each in (score.reason, f"{error.code}: {error.fact}") if each)


class Clock:
    """Adds the CPU seconds of a step to a score."""

    def __init__(self, score: Score) -> None:
        self._score = score

    def __call__(self, step: str) -> "Clock":
        self._step, self._start = step, time.process_time()
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._score.seconds[self._step] = round(time.process_time() - self._start, 2)
