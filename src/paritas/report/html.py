"""The report as one page: no file beside it, no network, nothing in it runs but its own script."""

import base64
import hashlib
import importlib.resources
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from paritas.report import diagnosing, strips
from paritas.report.model import Fault, ProbeRow, Prompt, Report, ReportedFinding
from paritas.report.triage import floors
from paritas.verify.report import places
from paritas.verify.verdict import DIVERGES_FLOORS, PROVEN_FLOORS

_LONGEST = 2000  # characters of a text that somebody else may have written
_RUNTIMES = {"onnxruntime": "ONNX Runtime", "onnxruntime-genai": "ORT GenAI"}


def to_html(report: Report) -> str:
    """The whole page."""
    script, style = _file("page.js"), _file("page.css")
    return (
        _templates()
        .get_template("page.html")
        .render(
            report=report,
            script=Markup(script),  # ours, as the hash in the policy says
            style=Markup(style),
            policy=f"default-src 'none'; script-src 'sha256-{_digest(script)}'; style-src 'unsafe-inline'; "
            "img-src data:; base-uri 'none'; form-action 'none'",
            gates=(f"{PROVEN_FLOORS:g}", f"{DIVERGES_FLOORS:g}"),
            levels=strips.LEVELS,
        )
    )


def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("paritas.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters.update(_FILTERS)  # pyright: ignore[reportUnknownMemberType]
    return environment


def _file(name: str) -> str:
    return importlib.resources.files("paritas.report").joinpath("templates", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _shown(value: Any) -> Any:
    """A package's words: nothing that steers the page's text, and not without end. Escaping comes after this."""
    return _plain(value) if type(value) is str else value


def _plain(text: str) -> str:
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _token(text: str) -> str:
    """The text of a token, with what cannot be seen made visible."""
    return text.replace(" ", "\N{OPEN BOX}").replace("\n", "\N{RETURN SYMBOL}").replace("\t", "\N{RIGHTWARDS ARROW}")


def _small(value: float | None) -> str:
    """Two digits, more or less; ``1.2e-05`` as ``1.2e-5``."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    if 0.1 <= value < 1000:
        return f"{value:.2f}" if value < 1 else f"{value:.1f}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} B"


def _thousands(number: int) -> str:
    return f"{number:,}"


def _runtime(name: str) -> str:
    return _RUNTIMES.get(name, name)


def _by_probe(rows: Sequence[ProbeRow]) -> list[tuple[str, list[ProbeRow]]]:
    """The runtimes of a probe side by side, in the order in which the probes were asked."""
    return [(probe, [row for row in rows if row.id == probe]) for probe in dict.fromkeys(row.id for row in rows)]


def _grouped(findings: Sequence[ReportedFinding]) -> list[list[ReportedFinding]]:
    """Findings of one code with one remedy together, in their order."""
    groups: dict[tuple[str, str, str, str], list[ReportedFinding]] = {}
    for finding in findings:
        groups.setdefault((finding.source, finding.severity, finding.code, finding.remedy), []).append(finding)
    return list(groups.values())


def _merged(signatures: Mapping[str, str]) -> list[tuple[str, str]]:
    """What is said of several runtimes once."""
    texts = dict.fromkeys(signatures.values())
    return [(", ".join(_runtime(r) for r, said in signatures.items() if said == text), text) for text in texts]


def _where(finding: ReportedFinding) -> str:
    return places(finding.where) if finding.source == "verify" else finding.where


def _scale(rows: Sequence[ProbeRow]) -> dict[str, Any]:
    """The worst floors of every probe on one logarithmic axis, in percent of its length."""
    found = [row for row in rows if row.worst_floors is not None]
    logs = [math.log10(row.worst_floors) for row in found if row.worst_floors and math.isfinite(row.worst_floors)]
    low, high = -2.0, max(2.0, math.ceil(max(logs, default=0.0)) + 0.5)

    def at(value: float) -> float:
        log = math.log10(value) if value > 0 else low
        return round(100 * (min(max(log, low), high) - low) / (high - low), 2)

    decades = range(int(low), int(high) + 1)
    return {
        "dots": [(row, at(row.worst_floors)) for row in found if row.worst_floors is not None],
        "gates": [at(PROVEN_FLOORS), at(DIVERGES_FLOORS)],
        "ticks": [(at(10.0**power), f"{10.0**power:g}" if abs(power) < 3 else f"1e{power}") for power in decades],
    }


@dataclass(frozen=True)
class _Tally:
    """How many tokens of a prompt every runtime has, and how many some runtime has not."""

    identical: int
    near: int
    different: int

    def __str__(self) -> str:
        total = self.identical + self.near + self.different
        near = f"{self.near} near tie{'s' if self.near > 1 else ''}" if self.near else ""
        different = f"{self.different} different" if self.different else ""
        others = [each for each in (near, different) if each]
        if not total:
            return "not asked"
        return ", ".join([f"{self.identical} of {total} identical", *others]) if others else f"all {total} identical"


def _tally(prompt: Prompt) -> _Tally:
    states = [{choice.state for choice in token.choices} for token in prompt.tokens if token.choices]
    different = sum("different" in each for each in states)
    near = sum("near tie" in each for each in states if "different" not in each)
    return _Tally(len(states) - near - different, near, different)


def _probe_names(faults: Sequence[Fault]) -> list[str]:
    return list(dict.fromkeys(probe for fault in faults for probe in fault.floors))


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "floors": floors,
    "small": _small,
    "bytes": _bytes,
    "token": _token,
    "runtime": _runtime,
    "by_probe": _by_probe,
    "grouped": _grouped,
    "scale": _scale,
    "merged": _merged,
    "where": _where,
    "tally": _tally,
    "probe_names": _probe_names,
    "chart": diagnosing.chart,
    "paths": strips.paths,
    "numbers": strips.numbers,
    "ticks": strips.ticks,
    "thousands": _thousands,
}
