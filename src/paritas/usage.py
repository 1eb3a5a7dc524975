"""What the words of a command line mean; what is wrong with them is an error like every other one."""

import difflib
import math
import os
import re
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from typer.core import TyperGroup

from paritas.console import Screen
from paritas.errors import Exit, ParitasError
from paritas.outcome import PIPE_CLOSED

if TYPE_CHECKING:
    from paritas.measuring.choose import Budget

_DTYPES = {
    "fp32": ("f32", "float32", "float"),
    "fp16": ("f16", "float16", "half"),
    "bf16": ("bfloat16", "brain"),
    "int8": ("i8", "q8", "8bit", "8-bit"),
    "int4": ("i4", "q4", "4bit", "4-bit"),
}
DTYPES = {word: dtype for dtype, others in _DTYPES.items() for word in (dtype, *others)}
LAYOUTS = {"fast": "fast", "load": "load", "link": "link"}
LOGITS = {"all": "all", "last": "last"}
SLIDING_CACHES = {"full": "full", "windowed": "windowed"}
TARGETS = {"ort": "ort", "onnxruntime": "ort", "genai": "ort", "onnx": "onnx"}
PROVIDERS = {"cpu": "cpu", "cuda": "cuda", "webgpu": "webgpu", "dml": "dml", "directml": "dml"}
METADATA = {"default": "default", "onnx-genai": "default", "canonical-v1": "canonical-v1", "none": "none"}
# A comma or a _ stands between groups of three digits alone: 1,5GB would be read as 15 GB.
_BYTES = re.compile(r"((?:[0-9]+|[0-9]{1,3}(?:[,_][0-9]{3})+)(?:\.[0-9]+)?) *([kmg]?)i?b?")
_NOT_ONE_OF = re.compile(r"'([^']*)' is not one of (.+)")
# Options of other exporters -> what to type here.
_ELSEWHERE: dict[str, str] = dict.fromkeys(
    ("-m", "--model", "-i", "--input"), "MODEL is the first word: paritas export MODEL OUT"
)


class Commands(TyperGroup):
    """Wrong usage is an error like every other one: a code, the fact and the next step, also as JSON."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run a command, and leave with its exit code."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(words, *rest, **{**extra, "standalone_mode": False})
        except Exception as error:
            if (told := getattr(error, "format_message", None)) is None:
                raise
            Screen(as_json="--json" in words).error(_wrong_usage(error, told()))
            code = Exit.USAGE
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # whoever read us has gone; what is left in the buffer has nowhere to go
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = PIPE_CLOSED
        sys.exit(code or 0)


def _wrong_usage(error: Exception, message: str) -> ParitasError:
    context = getattr(error, "ctx", None)
    command = f"paritas {context.info_name}" if context and context.parent else "paritas"
    option = str(getattr(error, "option_name", ""))
    close = _closest(message)
    hint = f"Did you mean {close}?" if close else _ELSEWHERE.get(option, f"{command} --help")
    return ParitasError("usage-wrong", message.replace("Value error, ", ""), hint=hint)


def _closest(message: str) -> str:
    """Of the words that click's message offers instead of a wrong one; empty if none is close or none is offered."""
    found = _NOT_ONE_OF.search(message)
    close = difflib.get_close_matches(found[1], re.findall(r"'([^']+)'", found[2]), n=1) if found else []
    return close[0] if close else ""


def choose(option: str, word: str, known: dict[str, str]) -> str:
    """The value that ``word`` spells.

    Raises:
        ParitasError: ``option-unknown``, with the closest word.
    """
    if (plain := word.lower()) in known:
        return known[plain]
    close = difflib.get_close_matches(plain, known, n=1)
    raise ParitasError(
        "option-unknown",
        f"--{option} knows no {word!r}; it is one of {', '.join(dict.fromkeys(known.values()))}",
        hint=f"Did you mean {close[0]}?" if close else "",
    )


def budget(kl: float | None, size: str | None) -> "Budget | None":
    """What ``--kl-budget`` and ``--size-budget`` ask for; None if neither is given.

    Raises:
        ParitasError: ``budget-wrong``.
    """
    from paritas.measuring.choose import Budget

    if kl is not None and size is not None:
        raise _budget_wrong("--kl-budget and --size-budget are both given, and one decides")
    if kl is not None:
        if not 0 < kl < math.inf:  # NaN neither
            raise _budget_wrong(f"--kl-budget {kl:g} is no mean KL divergence: a number of nats above 0")
        return Budget(kl=kl)
    if size is None:
        return None
    if (found := _bytes(size)) < 1:
        raise _budget_wrong(f"--size-budget {size} is no number of bytes above 0")
    return Budget(bytes=found)


def _bytes(size: str) -> int:
    """``90MB``, ``1.5 GiB``, ``90,000,000``; 0 for what is none of them."""
    found = _BYTES.fullmatch(size.strip().lower())
    if found is None:
        return 0
    unit = 1024 if "i" in size.lower() else 1000
    number = Decimal(found[1].replace(",", "").replace("_", ""))
    return int(number * unit ** " kmg".index(found[2] or " "))


def _budget_wrong(fact: str) -> ParitasError:
    return ParitasError("budget-wrong", fact, hint="--kl-budget 0.02, or --size-budget 90MB")


def one_output(argument: Path | None, option: Path | None) -> Path:
    """The output, given as an argument or as an option.

    Raises:
        ParitasError: ``output-unclear``.
    """
    if (argument is None) == (option is None):
        raise ParitasError(
            "output-unclear",
            "the output is given twice" if argument else "no output is given",
            hint="paritas export MODEL OUT",
        )
    out = cast(Path, argument or option)
    out = out.expanduser() if out.parts[:1] == ("~",) else out
    return out if out.name and ".." not in out.parts else out.resolve()


def utf8(word: str) -> str:
    """``word`` itself.

    Raises:
        ParitasError: ``text-not-utf8``.
    """
    if not word.isascii() and any("\ud800" <= character <= "\udfff" for character in word):
        raise ParitasError(
            "text-not-utf8",
            f"{word[:80]!r} is not text in UTF-8",
            hint="Rename the file, or convert the text to UTF-8.",
        )
    return word
