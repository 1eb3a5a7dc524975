"""The evidence on one screen of a terminal: the verdict first, then a row for each probe and runtime."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paritas.verify.evidence import Evidence, Finding, ProbeRecord
from paritas.verify.verdict import DIVERGES_FLOORS, PROVEN_FLOORS, Verdict

_COLOURS = {
    Verdict.PROVEN: "bold green",
    Verdict.UNEXPLAINED: "bold yellow",
    Verdict.DIVERGES: "bold red",
    Verdict.INVALID: "bold red",
    Verdict.NOT_TESTED: "dim",
}


def render(evidence: Evidence) -> RenderableType:
    """What to print with a rich console."""
    return Group(_headline(evidence), _table(evidence), *_notes(evidence))


def _headline(evidence: Evidence) -> Text:
    line = Text(evidence.verdict.value, style=_COLOURS[evidence.verdict])
    if evidence.worst_floors is not None:
        line.append(f"  worst difference {_floors(evidence.worst_floors)} floors", style="default")
        line.append(
            f" (up to {PROVEN_FLOORS:g} is the reference's own rounding, beyond {DIVERGES_FLOORS:g} a fault)",
            style="dim",
        )
    line.append(f"\nagainst {evidence.checkpoint.name} ({evidence.checkpoint.reference}, ", style="default")
    line.append(
        f"transformers {evidence.environment.transformers}, fp32, eager); {evidence.settings.ids}",
        style="default",
    )
    return line


def _table(evidence: Evidence) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    for name in ("probe", "runtime", "verdict"):
        table.add_column(name, no_wrap=True)
    for name in ("floors", "difference", "floor", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("worst at", no_wrap=True)
    for record in evidence.probes:
        table.add_row(*_row(record))
    return table


def _row(record: ProbeRecord) -> Iterator[RenderableType]:
    yield record.id
    yield record.runtime.removeprefix("onnxruntime-") if record.runtime != "onnxruntime" else "ort"
    yield Text(record.verdict.value, style=_COLOURS[record.verdict])
    if record.worst_floors is None or record.difference is None or record.floor is None:
        yield from ("", "", "", "", "")
        return
    yield _floors(record.worst_floors)
    yield f"{record.difference:.1e}"
    yield f"{record.floor:.1e}"
    yield _tokens(record)
    where = record.where
    yield "" if where is None else f"{where.sequence}[{where.position}]"


def _tokens(record: ProbeRecord) -> str:
    """``98/100``, and how many of the rest are near ties."""
    tokens = record.tokens
    if tokens is None:
        return ""
    text = f"{tokens.identical}/{tokens.identical + tokens.near_ties + tokens.different}"
    return text + (f" +{tokens.near_ties} near ties" if tokens.near_ties else "")


def _notes(evidence: Evidence) -> Iterator[Text]:
    for runtime, text in evidence.signatures.items():
        yield Text.assemble((f"{runtime}: ", "bold"), text)
    for finding in evidence.findings:
        yield _finding(finding)
    for variant, reason in evidence.settings.refused.items():
        yield Text.assemble(("floor without ", "dim"), (f"{variant}: {reason}", "dim"))


def _finding(finding: Finding) -> Text:
    style = {"error": "red", "warning": "yellow", "note": "dim"}[finding.severity]
    head = "not tested" if finding.code == "probe-not-tested" else finding.code
    return Text.assemble((head, style), f" {_places(finding.where)}: {finding.message}")


def _places(where: str) -> str:
    """``short, r; long, r`` -> ``r: short, long`` as far as one runtime is meant."""
    pairs = [place.split(", ", 1) for place in where.split("; ")]
    runtimes = {runtime for _, runtime in pairs}
    if len(pairs) == 1 or len(runtimes) > 1:
        return where
    return f"{runtimes.pop()} ({', '.join(probe for probe, _ in pairs)})"


def _floors(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"
