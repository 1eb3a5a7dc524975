"""The errors that a person can cause: a stable code, the fact, the place, and the next step."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    PROVEN = 0
    DIVERGES = 1  # diverges or unexplained
    USAGE = 2  # wrong usage, unreadable input
    NOT_TESTED = 3  # invalid comparison, or nothing was tested
    INTERRUPTED = 130


class ParitasError(Exception):
    """Something that a person can put right.

    Args:
        code: stable, kebab-case, never reused for something else (``shard-truncated``).
        fact: what is wrong, with the numbers.
        place: the file, key or tensor where it is wrong; empty if the fact says it.
        hint: the next step.
    """

    exit_code: Exit = Exit.USAGE

    def __init__(self, code: str, fact: str, *, place: str = "", hint: str = "") -> None:
        super().__init__(f"{code}: {fact}" + (f" [{place}]" if place else ""))
        self.code = code
        self.fact = fact
        self.place = place
        self.hint = hint


class Unsupported(ParitasError):  # noqa: N818 - it reads as what it says: "raise Unsupported(...)"
    """Something right that this version, target or runtime cannot express. It is refused, never approximated."""


class Invalid(ParitasError):  # noqa: N818
    """A comparison that would prove nothing: the package cannot be run, or not beside this checkpoint."""

    exit_code = Exit.NOT_TESTED
