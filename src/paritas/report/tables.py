"""The evidence and the audit as tables: probes, tokens, weights, power, environment."""

from collections.abc import Iterator
from typing import Literal

from paritas.audit.run import Audit
from paritas.report.model import (
    Census,
    Choice,
    Fault,
    Initializer,
    Power,
    Precision,
    ProbeRow,
    Probes,
    Prompt,
    Surroundings,
    Token,
    Tokens,
    Weights,
)
from paritas.report.words import Words
from paritas.verify.evidence import Evidence, ProbeRecord, SequenceRecord
from paritas.verify.verdict import PROVEN_FLOORS

_UNKNOWN = "not from the checkpoint"


def probes(evidence: Evidence) -> Probes:
    """A row for each probe and runtime."""
    fields = set(ProbeRow.model_fields)
    return Probes(rows=tuple(ProbeRow(**record.model_dump(include=fields)) for record in evidence.probes))


def tokens(evidence: Evidence, words: Words) -> Tokens:
    """Every greedy token of the reference, and what each runtime would have chosen."""
    return Tokens(prompts=tuple(_prompt(s, evidence, words) for s in evidence.sequences if s.greedy))


def _prompt(sequence: SequenceRecord, evidence: Evidence, words: Words) -> Prompt:
    start = sequence.prompt - 1
    choices: list[list[Choice]] = [[] for _ in sequence.greedy]
    for record in evidence.probes:
        for index, choice in enumerate(_choices(record, sequence, words)):
            choices[index].append(choice)
    gaps = _gaps(evidence, sequence)
    return Prompt(
        sequence=sequence.name,
        text=words(sequence.ids[: sequence.prompt]),
        tokens=tuple(
            Token(
                position=start + index,
                id=token,
                text=words([token]),
                gap=gap,
                floor=sequence.floors[start + index],
                choices=tuple(chosen),
            )
            for index, (token, gap, chosen) in enumerate(zip(sequence.greedy, gaps, choices, strict=False))
        ),
    )


def _gaps(evidence: Evidence, sequence: SequenceRecord) -> tuple[float, ...]:
    """The reference's own, which every runtime's record repeats; empty if none could be asked."""
    found = (each.gaps for record in evidence.probes for each in record.choices if each.sequence == sequence.name)
    return next(found, ())


def _choices(record: ProbeRecord, sequence: SequenceRecord, words: Words) -> Iterator[Choice]:
    differences = next((each.differences for each in record.differences if each.sequence == sequence.name), ())
    for chosen in record.choices:
        if chosen.sequence != sequence.name:
            continue
        for index, (token, wanted) in enumerate(zip(chosen.tokens, sequence.greedy, strict=True)):
            difference = differences[sequence.prompt - 1 + index]
            state: Literal["identical", "near tie", "different"] = "different"
            if index in chosen.near_ties:
                state = "near tie"
            elif token == wanted and difference != float("inf"):
                state = "identical"
            yield Choice(runtime=record.runtime, id=token, text=words([token]), difference=difference, state=state)


def weights(audit: Audit) -> Weights:
    """The census of transforms, and where every initializer comes from."""
    found = tuple(
        Initializer(
            name=each.name,
            dtype=each.dtype,
            shape=each.shape,
            bytes=each.bytes,
            tensors=each.tensors,
            transforms=each.transforms or (_UNKNOWN,),
        )
        for each in audit.identity.initializers
    )
    sizes = {word: sum(each.bytes for each in found if word in each.transforms) for word in audit.identity.census}
    census = tuple(
        Census(transform=word, initializers=count, bytes=sizes[word]) for word, count in audit.identity.census.items()
    )
    return Weights(census=census, unused=audit.identity.unused, initializers=found, seconds=audit.seconds)


def precision(evidence: Evidence) -> Precision | None:
    """What the record says of precision; None if all is fp32."""
    record = evidence.precision
    if record is None or not (record.arithmetic or record.matrices or record.quality or {*record.formats} - {"fp32"}):
        return None
    return Precision(record=record)


def power(evidence: Evidence) -> Power:
    """The faults that were put into the reference, the faintest first."""
    floors: dict[str, dict[str, float]] = {}
    for record in evidence.power:
        floors.setdefault(record.fault, {})[record.probe] = record.floors
    measured = {record.id for record in evidence.probes if record.worst_floors is not None}
    faults = (
        Fault(
            fault=fault,
            floors=by_probe,
            most=max(by_probe.values()),
            seen=any(by_probe[probe] > PROVEN_FLOORS for probe in by_probe.keys() & measured),
        )
        for fault, by_probe in floors.items()
    )
    return Power(faults=tuple(sorted(faults, key=lambda fault: fault.most)), blind=evidence.blind)


def surroundings(evidence: Evidence) -> Surroundings:
    """What a verification ran on."""
    return Surroundings(
        environment=evidence.environment,
        settings=evidence.settings,
        checkpoint=evidence.checkpoint,
        package=evidence.package,
    )
