"""``paritas shrink``: a failing checkpoint becomes the smallest random model that fails for the same cause."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from paritas.commands.options import Json, Model, Quiet
from paritas.console import Screen
from paritas.outcome import command


def shrink(
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder for the small model and the issue's text.")],
    with_: Annotated[
        str,
        typer.Option("--with", "-w", metavar="COMMAND", help="The exporter, with {model} and {package} in its words."),
    ],
    cause: Annotated[
        list[str] | None,
        typer.Option("--cause", metavar="CODE", help="A cause that has to stay; repeatable [default: all there are]."),
    ] = None,
    exporter: Annotated[
        str | None, typer.Option("--exporter", metavar="NAME", help="What the issue calls the exporter.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="How many models may be tried.")] = 40,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0, help="Try no further model after that time.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find the smallest random model that shows a fault.

    An exporter gets it wrong for the same cause; a reproducer and a text for an issue come with it.
    """
    with command(quiet, as_json) as screen:
        from paritas.diagnose.shrink import exporter as exporters
        from paritas.diagnose.shrink.run import shrink as run_shrink
        from paritas.diagnose.shrink.search import Budget

        command_line = exporters.exporter(with_)
        with screen.progress() as progress:
            shrunk = run_shrink(
                model, out, command_line, cause or (), Budget(steps, seconds), exporter, _telling(screen), progress
            )
        floors = f"{shrunk.diagnosis.worst_floors:,.0f} floors"
        screen.say(f"\n[bold]{escape(str(out))}[/]: {escape(', '.join(shrunk.causes))}, {floors}; see ISSUE.md")
        if shrunk.exhausted:
            screen.say("[yellow]note[/]: the budget ended the search; --steps and --seconds allow more")
        screen.result(shrunk.summary())


def _telling(screen: Screen) -> Callable[[Any, str | None], None]:
    """A line for each model that was tried."""
    from paritas.diagnose.shrink.issue import words

    def tell(sizes: Any, why_not: str | None) -> None:
        mark = "[green]shows it[/]" if why_not is None else f"[dim]no: {escape(why_not)}[/]"
        screen.say(f"{escape(words(sizes))}: {mark}")

    return tell
