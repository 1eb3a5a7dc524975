"""The evidence as strips of log10(difference / floor) over positions, grouped by what was asked."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from paritas.report.model import Heatmap, Mark, Panel, Row
from paritas.verify.evidence import Evidence, Lengths, ProbeRecord, SequenceRecord
from paritas.verify.verdict import PROVEN_FLOORS

CELLS = 720
"""Of a strip at most; beyond, a cell is the worst of several positions."""

_STEPWISE = frozenset({"decode", "greedy", "padding", "end", "switch-decode"})
_CACHE = "cache"
_HIDDEN = "hidden"
_HALF = re.compile(r"layer (\d+) (\w+)")


def heatmap(evidence: Evidence) -> Heatmap:
    """Panels of strips; probes that were put to the same sequences share one."""
    sequences = {sequence.name: sequence for sequence in evidence.sequences}
    groups: dict[tuple[str, ...], list[ProbeRecord]] = {}
    for record in evidence.probes:
        if record.differences:
            groups.setdefault(tuple(dict.fromkeys(each.sequence for each in record.differences)), []).append(record)
    panels = [_panel(names, records, sequences, evidence.lengths) for names, records in groups.items()]
    return Heatmap(panels=tuple(panel for panel in panels if panel.rows))


def _panel(
    names: Sequence[str],
    records: Sequence[ProbeRecord],
    sequences: Mapping[str, SequenceRecord],
    lengths: Lengths | None,
) -> Panel:
    if records[0].id == _CACHE:
        return _caches(records)
    if records[0].id == _HIDDEN:
        return _hidden(records)
    length = max(len(sequences[name].ids) for name in names)
    cell = math.ceil(length / CELLS)
    rows = [row for record in records for row in _rows(record, sequences, cell)]
    labels = list(dict.fromkeys(row.label for row in rows))
    rows.sort(key=lambda row: labels.index(row.label))  # the runtimes of one question side by side
    return Panel(
        title=f"{names[0]}, {length:,} tokens" if len(names) == 1 else f"{names[0]} to {names[-1]}",
        axis="position",
        length=length,
        cell=cell,
        marks=tuple(_marks(lengths, length)),
        rows=tuple(rows),
    )


def _rows(record: ProbeRecord, sequences: Mapping[str, SequenceRecord], cell: int) -> Iterator[Row]:
    """A strip for each sequence of a probe; where one was put several times (causality), the worst of them."""
    together: dict[str, list[list[float]]] = {}
    for found in record.differences:
        ratios = _ratios(found.differences, sequences[found.sequence].floors)
        together.setdefault(found.sequence, []).append(ratios)
    for name, each in together.items():
        ratios = [max(at) for at in zip_longest(*each, fillvalue=0.0)]
        prefill = sequences[name].prefill
        stepwise = record.id in _STEPWISE and prefill < len(ratios)
        yield _strip(record, _label(record.id, name, len(together)), ratios, cell, prefill if stepwise else None)


def _label(probe: str, sequence: str, sequences: int) -> str:
    if sequences == 1:
        return probe
    return sequence if sequence.startswith(probe) else f"{probe}, {sequence}"


def _caches(records: Sequence[ProbeRecord]) -> Panel:
    """Keys and values over layers: a cell is the worst token of a layer."""
    rows: list[Row] = []
    for record in records:
        halves: dict[str, list[float]] = {}
        for found in record.differences:
            if (named := _HALF.fullmatch(found.sequence)) and found.floors:
                halves.setdefault(named[2], []).append(max(_ratios(found.differences, found.floors)))
        rows += [_strip(record, half, ratios, 1) for half, ratios in halves.items()]
    layers = max((len(row.log10) for row in rows), default=0)
    title = f"keys and values, {layers:,} layers"
    return Panel(title=title, axis="layer", length=layers, cell=1, marks=(), rows=tuple(rows))


def _hidden(records: Sequence[ProbeRecord]) -> Panel:
    """Hidden states over positions, a strip a layer, each by floors of its own."""
    found = [(record, each) for record in records for each in record.differences if each.floors]
    length = max((len(each.differences) for _, each in found), default=0)
    cell = max(1, math.ceil(length / CELLS))
    rows = [_strip(record, each.sequence, _ratios(each.differences, each.floors), cell) for record, each in found]
    title = f"hidden states, {length:,} tokens"
    return Panel(title=title, axis="position", length=length, cell=cell, marks=(), rows=tuple(rows))


def _strip(record: ProbeRecord, label: str, ratios: Sequence[float], cell: int, steps_from: int | None = None) -> Row:
    cells = [max(ratios[start : start + cell]) for start in range(0, len(ratios), cell)]
    worst = max(ratios)
    return Row(
        probe=record.id,
        runtime=record.runtime,
        label=label,
        log10=tuple(math.log10(each) if each > 0 else None for each in cells),
        steps_from=steps_from,
        worst=worst,
        worst_at=ratios.index(worst),
        first_bad=next((index for index, ratio in enumerate(ratios) if ratio > PROVEN_FLOORS), None),
    )


def _ratios(differences: Iterable[float], floors: Iterable[float]) -> list[float]:
    return [difference / floor for difference, floor in zip(differences, floors)]  # noqa: B905 - a row may end early


def _marks(lengths: Lengths | None, length: int) -> Iterator[Mark]:
    if lengths is None:
        return
    for window in lengths.windows:
        if window < length:
            yield Mark(position=window, text=f"window of {window:,}")
    for switch in lengths.switches:
        if switch < length:
            yield Mark(position=switch, text=f"RoPE changes after {switch:,}")
