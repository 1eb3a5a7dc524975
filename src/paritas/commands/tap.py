"""``paritas tap``: values inside of a package."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from paritas.commands.options import Json, PackagePath, Quiet
from paritas.errors import ParitasError
from paritas.outcome import command
from paritas.usage import utf8


def tap(
    package: PackagePath,
    at: Annotated[
        list[str], typer.Option("--at", metavar="VALUE", help="A value of the graph; * and ? stand for any letters.")
    ],
    ids: Annotated[
        str | None, typer.Option("--ids", metavar="N,N,...", help="The tokens to run it on, separated by commas.")
    ] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Or a text, without the chat template.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Also write the arrays, as .npz.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Read values inside of a package on one prompt.

    What it computes is not changed by that, and it is checked that it is not.
    """
    with command(quiet, as_json) as screen:
        from paritas.diagnose.tapping import tap_command

        report = tap_command(package, at, _ids(ids), None if prompt is None else utf8(prompt), out)
        screen.say(f"[bold]{escape(str(report.package))}[/], {len(report.ids)} tokens")
        for each in report.values:
            numbers = " ".join(f"{number:.4g}" for number in each.first)
            screen.say(f"[bold]{escape(each.name)}[/] [dim]{escape(each.operator)}[/] {each.dtype} {list(each.shape)}")
            screen.say(
                f"  from {each.minimum:.4g} to {each.maximum:.4g}, mean {each.mean:.4g}, norm {each.norm:.4g}"
                + (f", [red]{each.bad} not finite[/]" if each.bad else "")
                + f"; [dim]{numbers} ...[/]"
            )
        if not report.undisturbed:
            screen.say("[yellow]note[/]: with these taps the logits are not bit for bit those without them")
        screen.result(report.summary())


def _ids(words: str | None) -> list[int] | None:
    try:
        return None if words is None else [int(word) for word in words.replace(",", " ").split()]
    except ValueError:
        raise ParitasError(
            "tap-token-unknown", f"--ids {words!r} are no token ids", hint="Whole numbers, separated by commas."
        ) from None
