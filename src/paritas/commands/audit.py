"""``paritas audit``: a package's files against a checkpoint; nothing runs."""

import typer

from paritas.commands.options import Against, Json, PackagePath, Quiet, Report, check_report
from paritas.outcome import command
from paritas.usage import utf8


def audit(
    package: PackagePath, against: Against, report: Report = None, quiet: Quiet = False, as_json: Json = False
) -> None:
    """Read a package's files against a checkpoint, in seconds.

    Weights, RoPE, attributes, configuration and tokenizer; nothing is run.
    """
    with command(quiet, as_json) as screen:
        from paritas.audit.report import render
        from paritas.audit.run import audit as run_audit

        check_report(report)
        with screen.progress() as progress:
            found = run_audit(package, utf8(against), progress)
        if report is not None:
            from paritas.report import gather, write

            write.write(gather.of_audit(found), report)
        screen.say(render(found))
        screen.result(found.summary())
        raise typer.Exit(found.exit_code)
