"""What a person sees of an audit: one screen, errors first."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from paritas.audit.finding import ORDER, Finding
from paritas.audit.run import Audit

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
_LONGEST = 400  # characters of a line that somebody else's names are in


def render(audit: Audit) -> RenderableType:
    """The census, then the findings, then a line that sums them up."""
    census = ", ".join(f"{count:,} {word}" for word, count in audit.identity.census.items())
    parts: list[RenderableType] = [
        Text.from_markup(f"[bold]{_plain(str(audit.package))}[/] against {_plain(audit.checkpoint)}"),
        Text.from_markup(f"  [dim]weights[/]  {_plain(census)}"),
    ]
    for finding in audit.findings:
        parts += lines(finding)
    parts.append(counted(audit.findings, audit.exit_code).append(f" in {audit.seconds:.1f} s", style="dim"))
    return Group(*parts)


def counted(findings: Sequence[Finding], exit_code: int) -> Text:
    """How many of each severity."""
    counts = ", ".join(f"{sum(f.severity == word for f in findings)} {word}s" for word in ORDER)
    return Text.assemble((counts, "red" if exit_code else "green"))


def lines(finding: Finding) -> list[RenderableType]:
    """A finding: what and where, the fact, the remedy."""
    colour = _COLOURS[finding.severity]
    return [
        Text.from_markup(
            f"[bold {colour}]{finding.severity}[/]: [bold]{finding.code}[/] [dim]{_plain(finding.where)}[/]"
        ),
        Padding(Text.from_markup(_plain(finding.message)), (0, 0, 0, 2)),
        Padding(Text.from_markup(f"[dim]{_plain(finding.remedy)}[/]"), (0, 0, 0, 2)),
    ]


def _plain(text: str) -> str:
    """Words of somebody else's files: no markup, nothing that steers the terminal, and not without end."""
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    return escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))
