"""``paritas lint``: a package's metadata against the standard and against its own graphs; nothing runs."""

import typer

from paritas.commands.options import Json, PackagePath, Quiet
from paritas.outcome import command


def lint(package: PackagePath, quiet: Quiet = False, as_json: Json = False) -> None:
    """Check a package's metadata against its graphs.

    Schema, cross references, real ports, and wrong documents that runtimes accept.
    """
    with command(quiet, as_json) as screen:
        from paritas.lint.report import render
        from paritas.lint.run import lint as run_lint

        found = run_lint(package)
        screen.say(render(found))
        screen.result(found.summary())
        raise typer.Exit(found.exit_code)
