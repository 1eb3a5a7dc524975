"""What a person sees of the linter: what was read, errors first, a line that sums up."""

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from paritas.audit.report import counted, lines
from paritas.lint.run import Lint


def render(found: Lint) -> RenderableType:
    """The file and its dialect, then the findings, then how many there are."""
    words = "no metadata" if found.file is None else f"{found.file}, {found.dialect or 'not readable'}"
    version = f", schema {found.version}" if found.version else ""
    parts: list[RenderableType] = [Text.from_markup(f"[bold]{escape(str(found.package))}[/] {escape(words + version)}")]
    if found.reader is not None:
        answer = "takes it" if found.reader.refusal is None else "refuses it"
        parts.append(Text.from_markup(f"  [dim]onnx-genai {escape(found.reader.version)}[/]  {answer}"))
    for finding in found.findings:
        parts += lines(finding)
    parts.append(counted(found.findings, found.exit_code))
    return Group(*parts)
