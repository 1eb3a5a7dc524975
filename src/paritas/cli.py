"""The `paritas` command: its commands, and how the process meets the shell."""

import io
import signal
import sys
from typing import Annotated

import typer

import paritas
from paritas import usage
from paritas.commands.audit import audit
from paritas.commands.bench import bench
from paritas.commands.demo import demo
from paritas.commands.diagnose import diagnose
from paritas.commands.export import export
from paritas.commands.families import families
from paritas.commands.generate import generate
from paritas.commands.inspect import inspect
from paritas.commands.lint import lint
from paritas.commands.shrink import shrink
from paritas.commands.tap import tap
from paritas.commands.verify import verify
from paritas.errors import Exit
from paritas.late import import_late

app = typer.Typer(
    cls=usage.Commands,
    help="Model exports that are right, and proven right.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for each in (export, verify, audit, lint, diagnose, tap, shrink, generate, bench, inspect, families, demo):
    app.command()(each)


@app.callback(invoke_without_command=True)
def _version(  # pyright: ignore[reportUnusedFunction]
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        typer.echo(f"paritas {paritas.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(Exit.USAGE)


def main() -> None:
    """The `paritas` command."""
    import_late()
    for name in ("SIGTERM", "SIGHUP"):  # as Ctrl-C: what is half done is removed on the way out
        if (number := getattr(signal, name, None)) and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):  # a narrow encoding must not end a command
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
