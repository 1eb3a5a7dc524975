"""``paritas diagnose``: why a package diverges, proven, and repaired on request."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from paritas.commands.options import Adapter, Against, Cache, Force, Json, PackagePath, Quiet, show_diagnosis
from paritas.console import Screen
from paritas.errors import Exit
from paritas.outcome import command
from paritas.progress import Progress


def diagnose(
    package: PackagePath,
    against: Against,
    adapter: Adapter = None,
    repair: Annotated[
        Path | None, typer.Option("--repair", metavar="OUT", help="Write the repaired package, once it is proven.")
    ] = None,
    repro: Annotated[
        Path | None,
        typer.Option("--repro", metavar="FOLDER", help="Write a small reproducer that runs with onnxruntime alone."),
    ] = None,
    with_: Annotated[
        str | None,
        typer.Option(
            "--with",
            "-w",
            metavar="COMMAND",
            help="The exporter, with {model} and {package} in its words: bisects by depth.",
        ),
    ] = None,
    cache: Cache = True,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find out why a package diverges, and prove it.

    Where, which cause, proven both ways by one change; with --repair also the repaired package.
    """
    with command(quiet, as_json) as screen:
        from paritas.checkpoint.opening import with_adapter
        from paritas.diagnose.makers import maker
        from paritas.diagnose.run import diagnose as run_diagnose
        from paritas.diagnose.shrink.exporter import exporter
        from paritas.diagnose.truncation import by_truncation
        from paritas.package.staging import check_output
        from paritas.runtime.package import open_package

        opened = open_package(package)  # what is wrong with it is told before a checkpoint is looked for
        if repair is not None:
            check_output(repair, force=force)
        if repro is not None:
            check_output(repro, force=force)
        named = None if with_ is None else exporter(with_)
        with screen.progress() as progress:
            found = run_diagnose(package, with_adapter(against, adapter), progress, cache=cache)
            asked = named or (None if found.diagnosis.is_proved else maker(opened))
            if asked is not None:
                found = by_truncation(found, asked, progress)
            show_diagnosis(screen, found.diagnosis)
            if repro is not None:
                _reproduced(screen, found, repro)
            repaired = None if repair is None else _repaired(screen, found, repair, force, progress)
        screen.result(found.diagnosis.summary() | ({} if repaired is None else {"repair": repaired}))
        raise typer.Exit(Exit.DIVERGES if found.diagnosis.diverges and repaired is None else Exit.PROVEN)


def _repaired(screen: Screen, found: Any, out: Path, force: bool, progress: Progress) -> dict[str, Any]:
    from paritas.diagnose.repair import write
    from paritas.errors import ParitasError

    if found.edit is None:
        diverges = found.diagnosis.diverges
        raise ParitasError(
            "nothing-to-repair",
            "no cause was found that a change of the package removes" if diverges else "the package is proven",
            place=str(found.case.package.folder),
            hint="The diagnosis names the smallest region that fails." if diverges else "Use it as it is.",
        )
    done = write(found.case, found.edit, out, force=force, progress=progress)
    screen.say(f"\n[bold]{escape(str(done.out))}[/]: {done.evidence.verdict}, {done.evidence.worst_floors:,.1f} floors")
    for line in done.lines:
        screen.say(f"  {escape(line)}")
    return {
        "out": str(done.out),
        "verdict": done.evidence.verdict,
        "worst_floors": done.evidence.worst_floors,
        "changes": list(done.lines),
    }


def _reproduced(screen: Screen, found: Any, out: Path) -> None:
    from paritas.diagnose.reproducer import SCRIPT, write_reproducer

    region = write_reproducer(found.scene, found.diagnosis, out)
    screen.say(f"\n[bold]{escape(str(out))}[/]: {escape(region.region)} alone; python {escape(str(out / SCRIPT))}")
