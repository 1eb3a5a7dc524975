"""``paritas bench``: how fast packages are, beside each other and beside their peers."""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.markup import escape

from paritas.commands.options import Json, Quiet, Runtime, need_runtime
from paritas.console import Screen
from paritas.outcome import command
from paritas.usage import choose, utf8

_PEERS = {"builder": "builder", "mobius": "mobius", "transformers": "transformers", "llama.cpp": "llama.cpp"}
_CLOCKS = {"wall": "wall", "cpu": "cpu"}


def bench(
    packages: Annotated[
        list[Path],
        typer.Argument(metavar="PACKAGE...", help="Packages; the first is what the others are held against."),
    ],
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            "-a",
            metavar="PEER",
            help="builder, mobius, transformers or llama.cpp; builder=PYTHON says where it is installed. Repeatable.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="MODEL", help="The checkpoint that peers are given.")
    ] = None,
    decode: Annotated[
        list[int] | None, typer.Option("--decode", min=1, help="Tokens before the steps: 128 and 1024. Repeatable.")
    ] = None,
    prefill: Annotated[
        list[int] | None, typer.Option("--prefill", min=1, help="Tokens of a prompt: 512. Repeatable.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps that are timed.")] = 24,
    cycles: Annotated[int, typer.Option("--cycles", min=2, help="Processes for each package.")] = 4,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Within an operator: all cores.")] = None,
    clock: Annotated[str, typer.Option("--clock", help="wall; cpu: the process's own time, one thread.")] = "wall",
    runtime: Annotated[
        Runtime, typer.Option("--runtime", help="onnxruntime, or genai for all packages.")
    ] = Runtime.ONNXRUNTIME,
    busy: Annotated[bool, typer.Option("--busy", help="Measure although other programs are running.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure how fast packages are, beside each other."""
    with command(quiet, as_json) as screen:
        need_runtime([runtime])
        from paritas.bench.run import as_json as values
        from paritas.bench.run import bench as run_bench
        from paritas.bench.task import Task

        timed: Any = choose("clock", clock, _CLOCKS)
        for path in packages:
            utf8(str(path))
        task = Task(
            tuple(decode or Task.decode),
            tuple(prefill or Task.prefill),
            steps,
            threads=threads or (1 if timed == "cpu" else psutil.cpu_count(logical=False) or 1),
            clock=timed,
            runtime="genai" if runtime is Runtime.GENAI else "onnxruntime",
        )
        with tempfile.TemporaryDirectory() as folder:
            entrants = _entrants(packages, against or (), model, Path(folder))
            with screen.progress() as progress:
                result = run_bench(entrants, task, cycles, busy_ok=busy, progress=progress)
        _show(screen, result)
        screen.result(values(result))


def _entrants(packages: list[Path], against: Any, model: str | None, folder: Path) -> list[Any]:
    from paritas.bench import entrant, peers
    from paritas.runtime.package import open_package

    for word in against:
        choose("against", word.partition("=")[0], _PEERS)
    opened = [open_package(path) for path in packages]
    found = [entrant.package(str(path), path.absolute()) for path in packages]
    for word in against:
        found += peers.entrants(word, model, opened[0], folder)
    return found


def _show(screen: Screen, result: Any) -> None:
    if screen.quiet or screen.as_json:
        return
    from paritas.bench import report

    screen.say(report.table(result))
    for line in report.legend(result):
        screen.say(escape(line))
    screen.say(
        "A/B: the cost of A by that of B, pair by pair; above 1, B costs less; = is within A/A, A against itself"
    )
