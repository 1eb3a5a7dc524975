"""What a person sees of a diagnosis: the causes, the ladder of experiments, where it acts. One screen."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from paritas.audit.finding import layers
from paritas.diagnose.diagnosis import Cause, Diagnosis, Experiment, Proof, RegionError, Truncation, Whereabouts
from paritas.verify.verdict import PROVEN_FLOORS

_STEPS = 12  # rows of the ladder
_REGIONS = 8  # rows of regions


def render(diagnosis: Diagnosis) -> RenderableType:
    """The headline, the causes, the ladder, the regions that are wrong by themselves."""
    head = f"[bold]{escape(diagnosis.package)}[/] against {escape(diagnosis.checkpoint)}"
    parts: list[RenderableType] = [Text.from_markup(head), Text.from_markup(_headline(diagnosis))]
    if not diagnosis.diverges:
        return Group(*parts)
    for cause in diagnosis.causes:
        parts += _cause(cause)
    if steps(diagnosis):
        parts += [Text(), _ladder(diagnosis)]
    if diagnosis.where is not None:
        parts += [Text(), *_regions(diagnosis.where)]
    parts += [Text(line, style="dim") for line in _ends(diagnosis)]
    return Group(*parts)


def _headline(diagnosis: Diagnosis) -> str:
    worst = f"{diagnosis.worst_floors:,.1f} floors"
    if not diagnosis.diverges:
        return f"[bold green]nothing to diagnose[/]  worst difference {worst} (up to {PROVEN_FLOORS:g} is rounding)"
    if diagnosis.is_proved:
        count = len(diagnosis.causes)
        words = "cause, proved" if count == 1 else f"{count} causes, proved together"
        return f"[bold green]{words}[/]  worst difference {worst}: reproduced in the reference, repaired in the package"
    if diagnosis.causes:
        return f"[bold yellow]not proved[/]  worst difference {worst}; what comes nearest:"
    return f"[bold red]no cause found[/]  worst difference {worst}"


def _cause(cause: Cause) -> Iterator[RenderableType]:
    colour = "green" if cause.proof is Proof.PROVED else "yellow"
    suspect = cause.suspect
    yield Text.from_markup(
        f"[bold {colour}]{cause.proof}[/]: [bold]{escape(suspect.code)}[/] [dim]{escape(suspect.where)}[/]"
    )
    yield Text.from_markup(f"  {escape(suspect.message)}")
    more = " ".join(
        filter(None, (suspect.explanation, f"({', '.join(suspect.references)})" * bool(suspect.references)))
    )
    if more:
        yield Text.from_markup(f"  [dim]{escape(more)}[/]")


def _ladder(diagnosis: Diagnosis) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("experiment", overflow="fold")
    table.add_column("floors", justify="right")
    table.add_column("")
    table.add_row("the package as it is", f"{diagnosis.worst_floors:,.1f}", "")
    for step in steps(diagnosis):
        table.add_row(escape(step.words), f"{step.floors:,.1f}", f"[green]{step.mark}[/]")
    return table


@dataclass(frozen=True)
class Step:
    """A row of the ladder.

    Attributes:
        words: what was changed, beside the row before or the whole.
        floors: worst difference with it.
        mark: what that says; empty for most.
    """

    words: str
    floors: float
    mark: str


def steps(diagnosis: Diagnosis) -> tuple[Step, ...]:
    """The experiments on the whole model, and those on its first layers."""
    return (*ladder(diagnosis.experiments), *_depths(diagnosis.truncation))


def _depths(truncation: Truncation | None) -> Iterator[Step]:
    """The depths that were compared."""
    for each in truncation.tried if truncation else ():
        if each.floors is not None:
            words = "exported again, its first layer alone" if each.layers == 1 else f"... its first {each.layers}"
            mark = "the first depth that diverges" if truncation and each.layers == truncation.first else ""
            yield Step(words, each.floors, mark)


def truncated(truncation: Truncation) -> str:
    """What fewer layers say, in a sentence."""
    if truncation.refused:
        return f"not bisected with fewer layers: {truncation.refused}"
    refusals = "".join(f"; {each.layers}: {each.refused}" for each in truncation.tried if each.refused)
    depths = ", ".join(str(each.layers) for each in truncation.tried if each.floors is not None) or "none"
    if truncation.first is None:
        said = f"nothing that {truncation.exporter} makes of it diverges (layers compared: {depths})"
    else:
        begins = "the first layer" if truncation.first == 1 else f"{truncation.first} layers"
        said = f"{truncation.exporter} diverges from {begins} on (layers compared: {depths})"
    return said + refusals


def ladder(experiments: Sequence[Experiment]) -> tuple[Step, ...]:
    """The repairs that led on, the best of each number, and the proof: of the others there may be hundreds."""
    tried = [each for each in experiments if each.side == "package" and not _leaves_out(each)]
    best: dict[int, Experiment] = {}
    for each in tried:
        if each.after < best.get(len(each.codes), each).after or len(each.codes) not in best:
            best[len(each.codes)] = each
    steps: list[Step] = []
    before: tuple[str, ...] = ()
    for each in best.values():
        new = [code for code in each.codes if code not in before] or list(each.codes)
        words = ("repaired: " if not before else "+ ") + " + ".join(new)
        steps.append(Step(words, each.after, "reaches the floor" if each.after <= PROVEN_FLOORS else ""))
        before = each.codes
        if each.after <= PROVEN_FLOORS:
            break
    return (*steps[-_STEPS:], *(_proof(each) for each in experiments if each not in tried))


def _leaves_out(experiment: Experiment) -> bool:
    return experiment.change.startswith("all but")


def _proof(experiment: Experiment) -> Step:
    if experiment.side == "reference":
        words = "all of it put into the reference" if len(experiment.codes) > 1 else "put into the reference"
        return Step(words, experiment.after, "gives the package's logits" * (experiment.after <= PROVEN_FLOORS))
    return Step(f"repaired: {experiment.change}", experiment.after, "is missed" * (experiment.after > PROVEN_FLOORS))


def _regions(where: Whereabouts) -> Iterator[RenderableType]:
    sources = together(where.sources)
    if not sources:
        yield Text(f"no region is wrong by itself on {where.tokens} tokens", style="dim")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("wrong by itself", overflow="fold")
    table.add_column("operator", overflow="fold")
    table.add_column("local", justify="right")
    table.add_column("rounding", justify="right")
    for name, alike in list(sources.items())[:_REGIONS]:
        worst = max(alike, key=lambda region: (region.local or 0) / region.unit)
        table.add_row(escape(name), escape(worst.operator), f"{worst.local or 0:.0e}", f"{worst.unit:.0e}")
    yield table
    if len(sources) > _REGIONS:
        yield Text(f"and {len(sources) - _REGIONS} more, of {len(where.regions)} regions", style="dim")


def together(regions: Iterable[RegionError]) -> dict[str, list[RegionError]]:
    """Regions of several layers that are alike, under one name: ``input_layernorm, layers 0-3``."""
    alike: dict[tuple[str, str], list[RegionError]] = defaultdict(list)
    for region in regions:
        word = region.region if region.layer is None else region.region.partition(f".{region.layer}.")[2]
        alike[word or region.region, region.phase].append(region)
    return {_name(word, phase, found): found for (word, phase), found in alike.items()}


def _name(word: str, phase: str, found: list[RegionError]) -> str:
    numbers = [region.layer for region in found if region.layer is not None]
    parts = (word, layers(numbers) if numbers else "", "decode" if phase == "decode" else "")
    return ", ".join(filter(None, parts))


def _ends(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.where is not None:
        yield from diagnosis.where.fused[:2]
        if diagnosis.where.missing:
            yield f"not in the graph: {', '.join(diagnosis.where.missing[:4])}"
    if diagnosis.truncation is not None:
        yield truncated(diagnosis.truncation)
    for setting in diagnosis.runtime:
        yield f"the difference vanishes with another setting of the runtime: {setting}"
    if not diagnosis.is_proved and diagnosis.smallest:
        yield f"the smallest region that fails: {diagnosis.smallest}"
    spent = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in diagnosis.seconds.items())
    yield f"measured on {'; '.join(diagnosis.witnesses)}; {spent}"
