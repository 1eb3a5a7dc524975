"""How a command ends: in one screen and with its exit code, whatever happens."""

import traceback
from collections.abc import Generator
from contextlib import contextmanager

import typer

from paritas.console import Screen
from paritas.errors import Exit, ParitasError

PIPE_CLOSED = 141  # what a shell reports of a program that a closed pipe has ended


@contextmanager
def command(quiet: bool, as_json: bool) -> Generator[Screen]:
    """Errors that a person can cause end a command in one screen and with its exit code; so does Ctrl-C."""
    screen = Screen(quiet=quiet, as_json=as_json)
    try:
        yield screen
    except BrokenPipeError:
        raise typer.Exit(PIPE_CLOSED) from None
    except (ParitasError, OSError, MemoryError, KeyboardInterrupt) as error:
        told = error if isinstance(error, ParitasError) else _told_by_system(error)
        screen.error(told)
        raise typer.Exit(told.exit_code) from None
    except typer.Exit:
        raise
    except Exception as error:
        traceback.print_exc()
        screen.error(_our_fault(error))
        raise typer.Exit(Exit.NOT_TESTED) from None


def _told_by_system(error: OSError | MemoryError | KeyboardInterrupt) -> ParitasError:
    match error:
        case OSError():
            place = str(error.filename or "")
            return ParitasError("system-refused", error.strerror or str(error), place=place, hint="Nothing was kept.")
        case MemoryError():
            return ParitasError("memory-short", "there is no memory left", hint="Close other programs.")
        case _:
            interrupted = ParitasError("interrupted", "stopped before the end", hint="Nothing half-written is left.")
            interrupted.exit_code = Exit.INTERRUPTED
            return interrupted


def _our_fault(error: Exception) -> ParitasError:
    return ParitasError(
        "internal-error",
        f"{type(error).__name__}: {error}",
        hint="This is a fault of Paritas. Please report it, with the lines above.",
    )
