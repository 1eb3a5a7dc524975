"""A diagnosis as a section, and its chart of local beside accumulated error over the depth of the model."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paritas.diagnose.diagnosis import Diagnosis
from paritas.diagnose.report import steps, truncated
from paritas.report import model

_SHOWN = 3  # operators that are spoken of
HEIGHT = 100.0
"""Of the chart; its width is one a region."""


def section(diagnosis: Diagnosis) -> model.Diagnosis:
    """What a diagnosis says."""
    where = diagnosis.where
    return model.Diagnosis(
        headline=_headline(diagnosis),
        causes=tuple(
            model.ProvedCause(
                code=cause.suspect.code,
                where=cause.suspect.where,
                message=cause.suspect.message,
                explanation=cause.suspect.explanation,
                references=cause.suspect.references,
                proof=cause.proof,
            )
            for cause in diagnosis.causes
        ),
        ladder=tuple(
            model.LadderStep(words=step.words, floors=step.floors, mark=step.mark) for step in steps(diagnosis)
        ),
        tokens=where.tokens if where else 0,
        regions=tuple(
            model.Region(
                region=each.region,
                layer=each.layer,
                phase=each.phase,
                operator=each.operator,
                local=each.local,
                accumulated=each.accumulated,
                unit=each.unit,
                source=each.is_source,
            )
            for each in (where.regions if where else ())
        ),
        remarks=tuple(_remarks(diagnosis)),
    )


def _headline(diagnosis: Diagnosis) -> str:
    if not diagnosis.diverges:
        return "Nothing diverges."
    if diagnosis.is_proved:
        causes = "One cause" if len(diagnosis.causes) == 1 else f"{len(diagnosis.causes)} causes together"
        return f"{causes}, proved: put into the reference it gives the package's logits; taken out, the reference's."
    return "No cause is proved." if not diagnosis.causes else "Not proved; what comes nearest:"


def _remarks(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.where is not None:
        yield from diagnosis.where.fused[:_SHOWN]
        if len(diagnosis.where.fused) > _SHOWN:
            yield f"and {len(diagnosis.where.fused) - _SHOWN} more operators like these"
        if diagnosis.where.missing:
            yield f"not in the graph: {', '.join(diagnosis.where.missing)}"
    if diagnosis.truncation is not None:
        yield truncated(diagnosis.truncation)
    for setting in diagnosis.runtime:
        yield f"the difference vanishes with another setting of the runtime: {setting}"
    if not diagnosis.is_proved and diagnosis.smallest:
        yield f"the smallest region that fails: {diagnosis.smallest}"


@dataclass(frozen=True)
class Chart:
    """A chart in units of one region across, and of :data:`HEIGHT` from the largest error down to the smallest.

    Attributes:
        width: regions.
        accumulated, local: points of a line, for SVG.
        sources: x and y of the regions that are wrong by themselves, and their names.
        layers: x at which a layer begins, and its number.
        ticks: y, and the power of ten there.
    """

    width: int
    accumulated: str
    local: str
    sources: tuple[tuple[float, float, str], ...]
    layers: tuple[tuple[int, int], ...]
    ticks: tuple[tuple[float, str], ...]


def chart(regions: Sequence[model.Region]) -> Chart:
    """Local beside accumulated error of the prefill, in the order of the computation."""
    shown = [each for each in regions if each.phase == "prefill"]
    errors = [value for each in shown for value in (each.local, each.accumulated) if value and math.isfinite(value)]
    high = math.ceil(math.log10(max(errors, default=1.0)))
    low = min(high - 1, max(-9, math.floor(math.log10(min(errors, default=1e-9)))))

    def y(value: float | None) -> float:
        log = math.log10(value) if value and value > 0 else low
        return round(HEIGHT * (high - min(max(log, low), high)) / (high - low), 2)

    def line(values: Sequence[float | None]) -> str:
        return " ".join(f"{x + 0.5},{y(value)}" for x, value in enumerate(values) if value is not None)

    starts = [
        x for x, each in enumerate(shown) if each.layer is not None and (x == 0 or shown[x - 1].layer != each.layer)
    ]
    return Chart(
        width=max(1, len(shown)),
        accumulated=line([each.accumulated for each in shown]),
        local=line([each.local for each in shown]),
        sources=tuple((x + 0.5, y(each.local), each.region) for x, each in enumerate(shown) if each.source),
        layers=tuple((x, layer) for x in starts if (layer := shown[x].layer) is not None),
        ticks=tuple((y(10.0**power), f"1e{power}") for power in range(low, high + 1, max(1, (high - low) // 4))),
    )
