"""The evidence on one screen of a terminal: the verdict first, then a row for each probe and runtime."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paritas.verify import losses
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
    precision = () if evidence.precision is None else losses.render(evidence.precision)
    return Group(_headline(evidence), _table(evidence), *precision, *_notes(evidence))


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
    line.append("\nlogits alone: what its files say of eos, tokenizer and template is for `paritas audit`", style="dim")
    return line


def _table(evidence: Evidence) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    for name in ("probe", "runtime", "verdict"):
        table.add_column(name, no_wrap=True)
    for name in ("floors", "difference", "floor", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("worst at", no_wrap=True)
    for record in evidence.probes:
        if record.verdict is not Verdict.NOT_TESTED:  # its reason is told below
            table.add_row(*_row(record))
    return table


def _row(record: ProbeRecord) -> Iterator[RenderableType]:
    yield record.id
    yield _runtime(record.runtime)
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


def _runtime(name: str) -> str:
    return "ort" if name == "onnxruntime" else name.removeprefix("onnxruntime-")


def _tokens(record: ProbeRecord) -> str:
    """``98/100``, and how many of the rest are near ties."""
    tokens = record.tokens
    if tokens is None:
        return ""
    text = f"{tokens.identical}/{tokens.identical + tokens.near_ties + tokens.different}"
    return text + (f" +{tokens.near_ties} near ties" if tokens.near_ties else "")


def _notes(evidence: Evidence) -> Iterator[Text]:
    for text in dict.fromkeys(evidence.signatures.values()):
        runtimes = ", ".join(_runtime(name) for name, said in evidence.signatures.items() if said == text)
        yield Text.assemble((f"{runtimes}: ", "bold"), text)
    for finding in evidence.findings:
        yield _finding(finding)
    for label, text in _power(evidence):
        yield Text.assemble((f"{label}: ", "dim"), (text, "dim"))
    if evidence.blind:
        yield Text.assemble(("not looked at: ", "dim"), ("; ".join(evidence.blind), "dim"))
    for variant, reason in evidence.settings.refused.items():
        yield Text.assemble(("floor without ", "dim"), (f"{variant}: {reason}", "dim"))


def _power(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """The faults that the best probe would hardly have shown, and those that none would have."""
    most: dict[str, float] = {}
    for record in evidence.power:
        most[record.fault] = max(record.floors, most.get(record.fault, 0.0))
    faintest = sorted(most.items(), key=lambda fault: fault[1])
    shown = [f"{fault} ({_floors(floors)} floors)" for fault, floors in faintest if floors > PROVEN_FLOORS]
    passed = [f"{fault} ({_floors(floors)} floors)" for fault, floors in faintest if floors <= PROVEN_FLOORS]
    if shown:
        more = f", and {len(shown) - 3} more" if len(shown) > 3 else ""
        yield "would have shown, the faintest first", ", ".join(shown[:3]) + more
    if passed:
        yield "would not have shown", ", ".join(passed)


def _finding(finding: Finding) -> Text:
    style = {"error": "red", "warning": "yellow", "note": "dim"}[finding.severity]
    head = "not tested" if finding.code == "probe-not-tested" else finding.code
    return Text.assemble((head, style), f" {places(finding.where)}: {finding.message}")


def places(where: str) -> str:
    """Probes and runtimes in few words.

    ``short, r; long, r; short, s`` -> ``short, long (r); short (s)``, and the same probes in two runtimes once."""
    probes: dict[str, list[str]] = {}
    for place in where.split("; "):
        probe, _, runtime = place.partition(", ")
        probes.setdefault(runtime, []).append(probe)
    runtimes: dict[str, list[str]] = {}
    for runtime, asked in probes.items():
        runtimes.setdefault(", ".join(asked), []).append(_runtime(runtime))
    return "; ".join(f"{asked} ({', '.join(names)})" if any(names) else asked for asked, names in runtimes.items())


def _floors(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"
