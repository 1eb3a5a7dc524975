"""``paritas audit``: a package's files against a checkpoint; nothing runs."""

import typer

from paritas.commands.options import Adapter, Against, Json, PackagePath, Quiet, Report, check_report
from paritas.outcome import command
from paritas.usage import utf8


def audit(
    package: PackagePath,
    against: Against,
    adapter: Adapter = None,
    report: Report = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Read a package's files against a checkpoint, in seconds.

    Weights, RoPE, attributes, configuration and tokenizer; nothing is run.
    """
    with command(quiet, as_json) as screen:
        from paritas.audit.report import render
        from paritas.audit.run import audit as run_audit
        from paritas.checkpoint.opening import with_adapter

        check_report(report)
        with screen.progress() as progress:
            checkpoint = utf8(against) if adapter is None else with_adapter(utf8(against), adapter)
            found = run_audit(package, checkpoint, progress)
        if report is not None:
            from paritas.report import gather, write

            write.write(gather.of_audit(found), report)
        screen.say(render(found))
        screen.result(found.summary())
        raise typer.Exit(found.exit_code)
