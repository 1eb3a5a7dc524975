"""What is asked of a package: sequences of tokens, and the probes that put them."""

from dataclasses import dataclass
from enum import Enum, auto

from paritas.verify.prompts import PROMPTS
from paritas.verify.reference import Facts
from paritas.verify.text import Source

SHORT, LONG, NEW_TOKENS = 12, 160, 20
LOGITS_LIMIT = 2 << 30
"""Bytes that the logits of one sequence may take, so that a small machine can hold them."""


@dataclass(frozen=True)
class Sequence:
    """Tokens that the reference and the package are both given.

    Attributes:
        name: unique in a run.
        ids: what is fed.
        prefill: tokens of the first call when it is put step by step.
        stop: tokens that are put when it is put step by step; equal to ``prefill`` if it never is.
        greedy: tokens the reference chose, the first by the logits of the prompt's last token.
        prompt: tokens before the first chosen one; 0 if none is chosen.
    """

    name: str
    ids: tuple[int, ...]
    prefill: int
    stop: int
    greedy: tuple[int, ...] = ()
    prompt: int = 0


class Manner(Enum):
    """How a probe puts its sequences."""

    ONE_PASS = auto()
    STEPS = auto()
    PADDED_BATCH = auto()
    CHANGED_LAST_TOKEN = auto()


@dataclass(frozen=True)
class Probe:
    """One question.

    Attributes:
        id: as the evidence calls it.
        boundary: what it crosses, for people.
        manner: how its sequences are put.
        sequences: their names.
        obstacle: why it cannot be asked of this model; None if it can.
    """

    id: str
    boundary: str
    manner: Manner
    sequences: tuple[str, ...]
    obstacle: str | None = None


@dataclass(frozen=True)
class Plan:
    """A run's sequences and probes; ``prompts`` become sequences once the reference has answered."""

    sequences: tuple[Sequence, ...]
    prompts: tuple[tuple[str, tuple[int, ...]], ...]
    probes: tuple[Probe, ...]


def make_plan(facts: Facts, source: Source) -> Plan:
    """The probes for a model that is as ``facts`` says, with ids of ``source``."""
    room = facts.positions or (1 << 30)
    prompts = tuple((f"greedy-{number}", source.prompt(text)) for number, text in enumerate(PROMPTS, start=1))
    prompts = tuple((name, ids) for name, ids in prompts if len(ids) + NEW_TOKENS <= room)
    short = _whole("short", source.running(min(SHORT, room)))
    long, long_probes = _long(facts, source, room)
    rows = _rows(long.ids if long else short.ids, source)
    probes = (
        Probe("short", f"{len(short.ids)} tokens in one pass", Manner.ONE_PASS, ("short",)),
        *long_probes,
        Probe(
            "greedy",
            f"{NEW_TOKENS} greedy tokens after each of {len(prompts)} prompts, step by step",
            Manner.STEPS,
            tuple(name for name, _ in prompts),
            None if prompts else f"no prompt fits into the model's {room} positions",
        ),
        Probe(
            "padding",
            f"a batch of {len(rows[0].ids)} and {len(rows[1].ids)} tokens, padded on the left",
            Manner.PADDED_BATCH,
            tuple(row.name for row in rows),
        ),
        Probe("causality", "the last token changed", Manner.CHANGED_LAST_TOKEN, ("short",)),
    )
    return Plan((short, *([long] if long else []), *rows), prompts, probes)


def _whole(name: str, ids: tuple[int, ...]) -> Sequence:
    return Sequence(name, ids, len(ids), len(ids))


def _long(facts: Facts, source: Source, room: int) -> tuple[Sequence | None, tuple[Probe, Probe]]:
    """The long sequence and its two probes: in one pass, and decoded; across the window if there is one."""
    windows = [window for window in facts.windows if window < room]
    window = windows[-1] if windows else None
    if window is None:
        name, length = "long", min(LONG, room)
        prefill = min(16, length // 2)
        stop, across = min(length, prefill + 24), ""
    else:
        name, length = "window", min(window + max(3 * window // 8, 24), room)
        prefill = max(window - 8, window // 2, 1)
        stop, across = min(length, window + 24), f" across the window of {window}"
    obstacle = _too_large(length, facts.vocab)
    probes = (
        Probe(name, f"{length} tokens in one pass{across}", Manner.ONE_PASS, (name,), obstacle),
        Probe(
            "decode",
            f"{stop - prefill} steps after {prefill} tokens{across}",
            Manner.STEPS,
            (name,),
            obstacle,
        ),
    )
    return None if obstacle else Sequence(name, source.running(length), prefill, stop), probes


def _rows(ids: tuple[int, ...], source: Source) -> tuple[Sequence, Sequence]:
    """Two rows of different length; beyond the window too where that is cheap."""
    whole = ids if len(ids) <= 64 else ids[:24]
    length = max(1, len(whole) * 2 // 3)
    part = (whole[0], *source.running(length, skip=len(whole))[1:])
    return (
        Sequence("row-whole", whole, max(1, len(whole) - 4), len(whole)),
        Sequence("row-padded", part, max(1, length - 4), length),
    )


def _too_large(length: int, vocab: int) -> str | None:
    size = length * vocab * 4
    if size <= LOGITS_LIMIT:
        return None
    return f"the logits of {length:,} tokens are {size / (1 << 30):.1f} GiB; at most 2 GiB are held at a time"
