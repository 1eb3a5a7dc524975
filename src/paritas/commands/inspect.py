"""``paritas inspect``: what a checkpoint computes, or a package takes."""

from pathlib import Path
from typing import Annotated

import typer

from paritas.commands.options import Json, Quiet
from paritas.console import facts, rows
from paritas.outcome import command


def inspect(
    path: Annotated[
        str,
        typer.Argument(metavar="MODEL|PACKAGE", help="A checkpoint (folder, .gguf, Hub id) or a package."),
    ],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show what a checkpoint computes, or a package takes."""
    with command(quiet, as_json) as screen:
        from paritas.describe import cache_table, describe_checkpoint, describe_package, is_package, layer_table

        if is_package(Path(path)):
            from paritas.runtime.package import open_package

            described = describe_package(open_package(path))
            tables = {"caches": cache_table(described["caches"])}
        else:
            from paritas.checkpoint import open_checkpoint

            described = describe_checkpoint(open_checkpoint(path))
            tables = {"layers": layer_table(described["layers"])}
        told = {key: each for key, each in described.items() if key not in tables and not isinstance(each, dict)}
        screen.table(str(path), facts({key.replace("_", " "): each for key, each in told.items()}))
        for title, table in tables.items():
            screen.table(title, rows(table), gap=True)
        for key, title in (("stored", "stored as, bytes"), ("files", "files, bytes"), ("operators", "operators")):
            if isinstance(described.get(key), dict):
                screen.table(title, facts(described[key]), gap=True)
        screen.result(described)
