"""A native runtime's failure, told in one line."""

from pathlib import Path

from paritas.errors import Invalid

HEAD, TAIL = 150, 250  # what was tried stands first, the reason last; between them, C++ signatures


def condensed(error: BaseException) -> str:
    """The message of ``error`` on one line, of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} ... {text[-TAIL:]}"


def refusal(runtime: str, doing: str, error: BaseException, place: Path) -> Invalid:
    """``runtime-failed``: the runtime would not do that."""
    return Invalid(
        "runtime-failed",
        f"{runtime} could not {doing}: {condensed(error)}",
        place=str(place),
        hint="If the package is right, a newer runtime may run it; `paritas inspect` shows what it asks for.",
    )
