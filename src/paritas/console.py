"""What a person sees: progress on stderr, results on stdout, errors on one screen."""

import json
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from paritas.errors import ParitasError
from paritas.progress import Progress, silent

_LIMIT = 1000  # characters of a message
_EXACT = 1e15  # floats below are exact as integers
_BYTES = 1 << 20  # totals above a mebibyte are bytes; counts of steps never get there


class _Amount(ProgressColumn):
    """Bytes as bytes, steps as steps."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = DownloadColumn(binary_units=True)
        self._steps = MofNCompleteColumn()

    def render(self, task: Task) -> Text:
        """The amount that is done, and of how much."""
        return (self._bytes if (task.total or 0) > _BYTES else self._steps).render(task)


class _Stdout(Console):
    """A pipe that closes is told to the command, not ended on the spot."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Screen:
    """Where a command's words go.

    Args:
        quiet: nothing but errors and the result itself.
        as_json: one JSON object on stdout and nothing else there.
    """

    def __init__(self, *, quiet: bool = False, as_json: bool = False) -> None:
        self.quiet = quiet
        self.as_json = as_json
        self.out = _Stdout(highlight=False)
        self.err = Console(stderr=True, highlight=False)

    def say(self, text: Any) -> None:
        """Something for people."""
        if not (self.quiet or self.as_json):
            self.out.print(text, soft_wrap=isinstance(text, str))  # a terminal wraps by itself; a file has no width

    def table(self, title: str, table: Table, *, gap: bool = False) -> None:
        """A table under its title, which is never broken: it may be a path."""
        self.say(("\n" if gap else "") + f"[italic]{_plain(title)}[/]")
        self.say(table)

    def result(self, values: Mapping[str, Any]) -> None:
        """Something for programs."""
        if self.as_json:
            sys.stdout.write(json.dumps(values, default=str) + "\n")  # ASCII: no terminal and no pipe can spoil it

    def error(self, error: ParitasError) -> None:
        """The code, the fact, the place, the next step."""
        self.result({"error": {"code": error.code, "message": error.fact, "where": error.place, "hint": error.hint}})
        self.err.print(f"[bold red]error[/]: [bold]{error.code}[/]")
        self._indented("", _plain(error.fact))
        if error.place:
            self.err.print(f"  [dim]where[/]  {_plain(error.place)}", soft_wrap=True)  # in one piece, to be copied
        if error.hint:
            self._indented("[dim]next[/]   ", _plain(error.hint))

    def _indented(self, label: str, text: str) -> None:
        """A paragraph that stays to the right of its label; in a file or a pipe, a line that is not broken."""
        if not self.err.is_terminal:
            self.err.print(f"  {label}{text}", soft_wrap=True)
            return
        grid = Table.grid(padding=(0, 0, 0, 0))
        grid.add_row(f"  {label}", text)
        self.err.print(grid)

    def _stages(self) -> Progress:
        """A line for each kind of work when it begins: what a log has room for."""
        begun: set[str] = set()

        def tell(description: str, done: int, total: int) -> None:
            if description not in begun:
                begun.add(description)
                self.err.print(description, soft_wrap=True)

        return tell

    @contextmanager
    def progress(self) -> Generator[Progress]:
        """Bars on stderr while work goes on."""
        if self.quiet or self.as_json:
            yield silent
            return
        if not self.err.is_terminal:
            yield self._stages()
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            _Amount(),
            TimeElapsedColumn(),
        )
        tasks: dict[str, TaskID] = {}
        with Bars(*columns, console=self.err, transient=True) as bars:

            def tell(description: str, done: int, total: int) -> None:
                if description not in tasks:
                    tasks[description] = bars.add_task(description, total=total)
                bars.update(tasks[description], completed=done, total=total)

            yield tell


def rows(table: list[dict[str, Any]]) -> Table:
    """A table of equal dictionaries; empty cells for None and False."""
    view = Table(box=None, header_style="bold", pad_edge=False)
    for column, value in (table[0] if table else {}).items():
        view.add_column(column.replace("_", " "), justify="right" if isinstance(value, int | float) else "left")
    for row in table:
        view.add_row(*(_cell(value) for value in row.values()))
    return view


def facts(values: Mapping[str, Any]) -> Table:
    """Names and values, a line each; numbers alone are aligned."""
    counts = all(isinstance(value, int) for value in values.values())
    view = Table(box=None, show_header=False, pad_edge=False)
    view.add_column(style="dim")
    view.add_column(overflow="fold", justify="right" if counts else "left")
    for name, value in values.items():
        view.add_row(_plain(name), _cell(value) or "none")
    return view


def _plain(text: str) -> str:
    """Words that somebody else may have written: no markup, nothing that steers the terminal, and not without end."""
    text = text if len(text) <= _LIMIT else f"{text[:_LIMIT]} ..."
    return escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


def _cell(value: Any) -> str:
    match value:
        case None | False:
            return ""
        case True:
            return "yes"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if value.is_integer() and abs(value) < _EXACT else f"{value:g}"
        case list():
            return ", ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return _plain(str(value))
