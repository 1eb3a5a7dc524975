"""Which probes a model gets: every length at which it changes is crossed, as far as that can be afforded."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paritas.verify.probes import Manner, Probe, Sequence, chunks
from paritas.verify.prompts import PROMPTS
from paritas.verify.reference import Facts
from paritas.verify.text import Source

SHORT, LONG, LONGEST, NEW_TOKENS = 12, 160, 512, 20
LOGITS_LIMIT = 2 << 30
"""Bytes that the logits of one sequence may take, so that a small machine can hold them."""

CHEAP_LOGITS, CHEAP_WORK, CHEAP_POSITIONS = 1 << 28, 7 * 10**10, 4096
"""What a sequence may cost whose length is ours to choose: bytes of logits; tokens times parameters (a few seconds of a
pass on two cores); tokens, since eager attention takes their square."""

_LONE = "there is room for one token alone"

ACROSS = 8
"""Tokens before a boundary from which decoding starts."""


@dataclass(frozen=True)
class Plan:
    """A run's sequences and probes; ``prompts`` become sequences once the reference has answered."""

    sequences: tuple[Sequence, ...]
    prompts: tuple[tuple[str, tuple[int, ...]], ...]
    probes: tuple[Probe, ...]


@dataclass(frozen=True)
class _Asked:
    """Sequences and the probes that put them."""

    sequences: tuple[Sequence, ...]
    probes: tuple[Probe, ...]


def make_plan(facts: Facts, source: Source) -> Plan:
    """The probes for a model that is as ``facts`` says, with ids of ``source``."""
    room = facts.positions or (1 << 30)
    short = _whole("short", source.running(min(SHORT, room)))
    one_pass = Probe("short", f"{len(short.ids)} tokens in one pass", Manner.ONE_PASS, ("short",))
    long = _long(facts, source, room)
    base = long.sequences[0] if long.sequences else short
    prompts = _prompts(source, room)
    parts = (
        _Asked((short,), (one_pass,)),
        long,
        *(_switch(number, facts, source, room) for number in range(len(facts.switches))),
        _end(facts, source, len(base.ids)),
        _Asked((), (_chunked(base), _greedy(prompts, room))),
        _rows(base.ids[: min(facts.switches, default=None)], source),
        _Asked((), (_causality(short), _cache(short))),
    )
    return Plan(
        tuple(sequence for part in parts for sequence in part.sequences),
        prompts,
        tuple(probe for part in parts for probe in part.probes),
    )


def with_recorded(plan: Plan, recorded: Mapping[str, Sequence], switches: tuple[int, ...]) -> Plan:
    """The plan with the tokens of an earlier run, those that were chosen after its prompts included."""
    asked = [replace(recorded.get(each.name, each), stepwise=each.stepwise) for each in plan.sequences]
    chosen = [recorded[name] for name, _ in plan.prompts if name in recorded]
    asked += [replace(each, stepwise=crosses(switches, each.prompt, len(each.ids))) for each in chosen]
    return replace(
        plan, sequences=tuple(asked), prompts=tuple(each for each in plan.prompts if each[0] not in recorded)
    )


def crosses(switches: tuple[int, ...], start: int, stop: int) -> bool:
    """Whether decoding from ``start`` to ``stop`` tokens passes a length at which RoPE changes, or begins beyond one.

    Beyond it, dynamic scaling changes with every token.
    """
    return start < stop and any(switch < stop for switch in switches)


def _whole(name: str, ids: tuple[int, ...]) -> Sequence:
    return Sequence(name, ids, len(ids), len(ids))


def _prompts(source: Source, room: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    named = ((f"greedy-{number}", source.prompt(text)) for number, text in enumerate(PROMPTS, start=1))
    return tuple((name, ids) for name, ids in named if len(ids) + NEW_TOKENS <= room)


def _long(facts: Facts, source: Source, room: int) -> _Asked:
    """The long sequence and its two probes: in one pass, and decoded; across the window if there is one."""
    windows = [window for window in facts.windows if window < room]
    if not windows:
        length = min(_affordable(facts), room)
        prefill = max(1, min(16, length // 2))
        name, steps, across = "long", 24, ""
    else:
        window = windows[-1]
        length = min(window + max(3 * window // 8, 24), room)
        prefill = max(window - ACROSS, window // 2, 1)
        name, steps, across = "window", window + 24 - prefill, f" across the window of {window}"
    if within := [switch for switch in facts.switches if prefill <= switch < length]:
        length = min(within)  # one pass and decoding are two computations beyond it: `switch` asks
    stop = min(length, prefill + steps)
    obstacle = _too_large(length, facts.vocab)
    end = ", to the last position" if length == room else ""
    probes = (
        Probe(name, f"{length} tokens in one pass{across}{end}", Manner.ONE_PASS, (name,), obstacle),
        Probe(
            "decode",
            f"{stop - prefill} steps after {prefill} tokens{across}",
            Manner.STEPS,
            (name,),
            obstacle if stop > prefill else _LONE,
        ),
    )
    return _Asked(() if obstacle else (Sequence(name, source.running(length), prefill, stop),), probes)


def _affordable(facts: Facts) -> int:
    """Tokens of the long sequence of a model without a window."""
    affordable = min(LONGEST, CHEAP_WORK // max(facts.parameters, 1), CHEAP_LOGITS // (4 * facts.vocab))
    return max(LONG, affordable)


def _switch(number: int, facts: Facts, source: Source, room: int) -> _Asked:
    """Across one of the lengths at which RoPE changes: in one pass, and decoded as transformers decodes there."""
    switch, mark = facts.switches[number], f"-{number + 1}" if number else ""
    one_pass, decode = f"switch{mark}", f"switch-decode{mark}"
    length, start = min(switch + 24, room), max(switch - ACROSS, 1)
    stop = min(switch + ACROSS, room)
    obstacle = _too_large(length, facts.vocab)
    if room <= switch:
        obstacle = f"RoPE changes beyond {switch:,} tokens, and there are {room:,} positions"
    across = f" across {switch:,}, beyond which RoPE changes"
    probes = (
        Probe(one_pass, f"{length} tokens in one pass{across}", Manner.ONE_PASS, (one_pass,), obstacle),
        Probe(decode, f"steps after {start} tokens{across}", Manner.STEPS, (decode,), obstacle),
    )
    if obstacle:
        return _Asked((), probes)
    ids = source.running(length)
    decoded = Sequence(decode, ids[:stop], start, stop, stepwise=True)
    return _Asked((_whole(one_pass, ids), decoded), probes)


def _end(facts: Facts, source: Source, reached: int) -> _Asked:
    """The model's last positions, unless the long sequence has reached them."""
    room = facts.positions
    if room is not None and reached >= room:
        return _Asked((), ())
    obstacle = _end_obstacle(facts, reached)
    start = 0 if room is None else room - ACROSS
    boundary = f"{ACROSS} steps after {start:,} tokens, to the last position" if room else "the last positions"
    probe = Probe("end", boundary, Manner.STEPS, ("end",), obstacle)
    if obstacle or room is None:
        return _Asked((), (probe,))
    sequence = Sequence("end", source.running(room), start, room, stepwise=crosses(facts.switches, start, room))
    return _Asked((sequence,), (probe,))


def _end_obstacle(facts: Facts, reached: int) -> str | None:
    room = facts.positions
    if room is None:
        return "the configuration names no last position"
    work, logits = room * facts.parameters, room * facts.vocab * 4
    if room <= CHEAP_POSITIONS and work <= CHEAP_WORK and logits <= CHEAP_LOGITS:
        return None
    return f"{room:,} positions are too many to run; nothing is known beyond position {reached - 1:,}"


def _chunked(base: Sequence) -> Probe:
    sizes = ", ".join(map(str, chunks(len(base.ids))))
    return Probe("chunks", f"prefill in parts of {sizes} tokens", Manner.CHUNKS, (base.name,))


def _greedy(prompts: tuple[tuple[str, tuple[int, ...]], ...], room: int) -> Probe:
    return Probe(
        "greedy",
        f"{NEW_TOKENS} greedy tokens after each of {len(prompts)} prompts, step by step",
        Manner.STEPS,
        tuple(name for name, _ in prompts),
        None if prompts else f"no prompt fits into the model's {room} positions",
    )


def _rows(ids: tuple[int, ...], source: Source) -> _Asked:
    """Two rows of different length; beyond the window too where that is cheap."""
    whole = ids if len(ids) <= 64 else ids[:24]
    length = max(1, len(whole) * 2 // 3)
    part = (whole[0], *source.running(length, skip=len(whole))[1:])
    rows = (
        Sequence("row-whole", whole, max(1, len(whole) - 4), len(whole)),
        Sequence("row-padded", part, max(1, length - 4), length),
    )
    names, batch = tuple(row.name for row in rows), f"a batch of {len(whole)} and {len(part)} tokens"
    left = Probe("padding", f"{batch}, padded on the left, decoded", Manner.PADDED_LEFT, names)
    return _Asked(
        rows,
        (left, replace(left, id="padding-right", boundary=f"{batch}, padded on the right", manner=Manner.PADDED_RIGHT)),
    )


def _causality(short: Sequence) -> Probe:
    obstacle = None if len(short.ids) > 1 else _LONE
    return Probe("causality", "a later token changed", Manner.CHANGED_TOKENS, ("short",), obstacle)


def _cache(short: Sequence) -> Probe:
    return Probe("cache", f"keys and values after {len(short.ids)} tokens, layer by layer", Manner.CACHE, ("short",))


def _too_large(length: int, vocab: int) -> str | None:
    size = length * vocab * 4
    if size <= LOGITS_LIMIT:
        return None
    return f"the logits of {length:,} tokens are {size / (1 << 30):.1f} GiB; at most 2 GiB are held at a time"
