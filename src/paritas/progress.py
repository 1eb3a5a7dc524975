"""How long work tells of itself, without printing."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


def silent(description: str, done: int, total: int) -> None:
    """Tell nobody."""
