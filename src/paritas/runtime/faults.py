"""A native runtime's failure, told in one line."""

from pathlib import Path

from paritas.errors import Invalid

LIMIT = 400  # a native message can carry a whole stack of C++ templates


def condensed(error: BaseException) -> str:
    """The message of ``error`` on one line, of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LIMIT else text[: LIMIT - 3] + "..."


def refusal(runtime: str, doing: str, error: BaseException, place: Path) -> Invalid:
    """``runtime-failed``: the runtime would not do that."""
    return Invalid(
        "runtime-failed",
        f"{runtime} could not {doing}: {condensed(error)}",
        place=str(place),
        hint="If the package is right, a newer runtime may run it; `paritas inspect` shows what it asks for.",
    )
