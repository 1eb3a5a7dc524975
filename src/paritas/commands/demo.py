"""``paritas demo``: export a real small model, prove it, let it speak."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from paritas.commands.export import export
from paritas.commands.generate import generate
from paritas.commands.options import Force, Quiet
from paritas.outcome import command

_DEMO = Path("out/smollm2-135m-instruct")


def demo(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where the package goes.")] = _DEMO,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Export a real small model, prove it, let it speak."""
    with command(quiet, False) as screen:
        from paritas.demo import QUESTION, demo_checkpoint

        checkpoint = demo_checkpoint()
    here = Path.cwd()
    shown = checkpoint.relative_to(here) if checkpoint.is_relative_to(here) else checkpoint
    screen.say(f"[bold]{escape(shlex.join(['paritas', 'export', str(shown), str(out)]))}[/]")
    try:
        export(str(checkpoint), out, force=force or out == _DEMO, quiet=quiet)
    except typer.Exit as done:
        if done.exit_code:
            raise
    screen.say(f"\n[bold]{escape(shlex.join(['paritas', 'generate', str(out), QUESTION, '--greedy']))}[/]")
    generate(out, QUESTION, greedy=True, quiet=quiet)
