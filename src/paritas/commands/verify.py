"""``paritas verify``: anybody's package against transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paritas.commands.options import (
    Adapter,
    Against,
    Cache,
    Json,
    Junit,
    PackagePath,
    Power,
    Quiet,
    Report,
    Runtime,
    check_junit,
    check_report,
    need_runtime,
    show_diagnosis,
    show_evidence,
    write_junit,
)
from paritas.console import rows
from paritas.outcome import command
from paritas.progress import Progress

if TYPE_CHECKING:
    from paritas.checkpoint import Checkpoint


def verify(
    package: PackagePath,
    against: Against,
    adapter: Adapter = None,
    runtime: Annotated[
        list[Runtime] | None, typer.Option("--runtime", help="Only this runtime; repeatable [default: both].")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Also write evidence/ into this folder."),
    ] = None,
    cache: Cache = True,
    power: Power = True,
    record: Annotated[
        Path | None,
        typer.Option("--replay", metavar="EVIDENCE", help="Ask what an earlier evidence.json says, and compare."),
    ] = None,
    junit: Junit = None,
    report: Report = None,
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="If it diverges, find out why: as paritas diagnose.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Hold a package against transformers, logit by logit."""
    with command(quiet, as_json) as screen:
        from paritas.checkpoint.opening import with_adapter
        from paritas.runtime.package import open_package
        from paritas.verify.replay import read_record, replay
        from paritas.verify.run import RUNTIMES
        from paritas.verify.run import verify as run_verify

        _check(runtime or (), out, junit, report)
        names = {Runtime.GENAI: "onnxruntime-genai", Runtime.ONNXRUNTIME: "onnxruntime"}
        runtimes = [names[r] for r in dict.fromkeys(runtime or ()) if r in names]
        earlier, replayed = None if record is None else read_record(record), None
        open_package(package)  # what is wrong with it is told before a checkpoint is looked for, maybe on the Hub
        with screen.progress() as progress:
            checkpoint = with_adapter(against, adapter)
            how = dict[str, Any](progress=progress, cache=cache, power=power)
            if earlier is not None:
                replayed = replay(earlier, package, checkpoint, runtimes, **how)
            evidence = (
                replayed.evidence if replayed else run_verify(package, checkpoint, runtimes=runtimes or RUNTIMES, **how)
            )
            found = _diagnosis(evidence, package, checkpoint, progress, cache=cache) if diagnose else None
            _write(evidence, found, package, checkpoint, progress, out, report)
        write_junit([evidence], junit)
        show_evidence(screen, [evidence])
        summary = (replayed or evidence).summary()
        if found is not None:
            show_diagnosis(screen, found)
            summary["diagnosis"] = found.summary()
        if replayed is not None:
            screen.table("replay, in floors", rows([row.model_dump(mode="json") for row in replayed.rows]), gap=True)
        screen.result(summary)
        raise typer.Exit(evidence.exit_code)


def _check(runtime: Sequence[Runtime], out: Path | None, junit: Path | None, report: Path | None) -> None:
    """What cannot work is refused before the work."""
    from paritas.package.staging import check_writable
    from paritas.verify.evidence import FILE

    need_runtime(runtime)
    if out is not None:
        check_writable(out / FILE)
    if junit is not None:
        check_junit(junit)
    check_report(report)


def _diagnosis(
    evidence: Any, package: Path, checkpoint: "Path | Checkpoint", progress: Progress, *, cache: bool
) -> Any:
    """Why it diverges; None if it does not."""
    from paritas.diagnose.run import diagnose
    from paritas.verify.verdict import Verdict

    if evidence.verdict not in (Verdict.DIVERGES, Verdict.UNEXPLAINED):
        return None
    return diagnose(package, checkpoint, progress, cache=cache).diagnosis


def _write(
    evidence: Any,
    found: Any,
    package: Path,
    checkpoint: "Path | Checkpoint",
    progress: Progress,
    out: Path | None,
    report: Path | None,
) -> None:
    """The record and the report, where they are asked for."""
    if report is not None:
        from paritas.report import gather, write

        write.write(gather.with_audit(evidence, package, checkpoint, progress, found), report)
    if out is not None:
        from paritas.verify.levels import write_levels

        evidence.write(out)
        write_levels(evidence, out)
