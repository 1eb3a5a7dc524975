"""Words of a command line that several commands take, and what is looked at before they begin."""

import importlib.util
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from paritas.console import Screen
from paritas.errors import ParitasError

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A checkpoint folder, a .gguf file, or a Hub id.")]
PackagePath = Annotated[Path, typer.Argument(metavar="PACKAGE", help="A package's folder, or an .onnx file.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but errors and the result.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, and nothing else there.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace an existing package, once the new one is whole.")]
Against = Annotated[
    str,
    typer.Option("--against", "-a", metavar="MODEL", help="The checkpoint that the package was made from."),
]
Adapter = Annotated[
    Path | None,
    typer.Option("--adapter", metavar="DIR", help="A PEFT adapter (LoRA), merged into the checkpoint in fp32."),
]
Cache = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Keep what transformers answered, and take it from there.")
]
Power = Annotated[
    bool, typer.Option("--power/--no-power", help="Measure which faults the verification would have shown.")
]
Junit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Also write the verdicts as JUnit XML, for CI.")
]
Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FOLDER", help="Also write report.html and report.json into this folder."),
]


class Draft(StrEnum):
    """Who guesses ahead of a package."""

    AUTO = "auto"
    ASSISTANT = "assistant"
    LOOKUP = "lookup"
    NONE = "none"


class Runtime(StrEnum):
    """Which runtime answers."""

    AUTO = "auto"
    GENAI = "genai"
    ONNXRUNTIME = "onnxruntime"


def installed(module: str) -> bool:
    """Whether a module could be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # a finder may refuse by raising
        return False


def need_runtime(asked: Sequence[Runtime]) -> None:
    """Refuse a runtime that is asked for by name and is not installed.

    Raises:
        ParitasError: ``genai-missing``.
    """
    if Runtime.GENAI in asked and not installed("onnxruntime_genai"):
        raise ParitasError(
            "genai-missing",
            "onnxruntime-genai is not installed",
            hint="Install the extra 'genai' of Paritas: pip install onnxruntime-genai",
        )


def check_report(folder: Path | None) -> None:
    """Refuse a folder of a report that cannot be written, before the work.

    Raises:
        ParitasError: ``output-unwritable``.
    """
    if folder is not None:
        from paritas.package.staging import check_writable
        from paritas.report.write import PAGE

        check_writable(folder / PAGE)


def check_junit(file: Path, verified: bool = True) -> None:
    """Refuse a file for JUnit that cannot be written, or that nothing would be written to.

    Raises:
        ParitasError: ``junit-without-verify``, ``output-unwritable``.
    """
    from paritas.package.staging import check_file

    if not verified:
        raise ParitasError(
            "junit-without-verify",
            "--junit writes what a verification found, and --no-verify leaves it out",
            hint="Leave one of them out.",
        )
    check_file(file)


def write_junit(evidence: list[Any], file: Path | None) -> None:
    """What a verification found, as JUnit XML, if that is asked for."""
    if evidence and file is not None:
        from paritas.verify import junit

        junit.write(evidence[0], file)


def show_evidence(screen: Screen, evidence: list[Any]) -> None:
    """A person sees the table; whoever asked for silence or JSON does not."""
    if evidence and not (screen.quiet or screen.as_json):
        from paritas.verify.report import render

        screen.say(render(evidence[0]))


def show_diagnosis(screen: Screen, diagnosis: Any) -> None:
    """A person sees the causes and the ladder; whoever asked for silence or JSON does not."""
    if not (screen.quiet or screen.as_json):
        from paritas.diagnose.report import render

        screen.say(render(diagnosis))
