"""``paritas export``: a checkpoint becomes a package, proven before it gets its name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from paritas import usage
from paritas.commands.options import (
    Cache,
    Force,
    Json,
    Junit,
    Model,
    Power,
    Quiet,
    check_junit,
    installed,
    show_diagnosis,
    show_evidence,
    write_junit,
)
from paritas.console import Screen
from paritas.errors import ParitasError
from paritas.outcome import command
from paritas.progress import Progress
from paritas.usage import choose, one_output, utf8


def export(
    model: Model,
    out: Annotated[Path | None, typer.Argument(metavar="OUT", help="The package's folder.")] = None,
    out_option: Annotated[
        Path | None,
        typer.Option("--out", "--output", "-o", metavar="OUT", help="The package's folder, as an option."),
    ] = None,
    target: Annotated[
        str,
        typer.Option("--target", "-t", help="ort: ONNX Runtime's fused operators. onnx: standard operators only."),
    ] = "ort",
    dtype: Annotated[str, typer.Option("--dtype", "--precision", "-p", help="fp32.")] = "fp32",
    provider: Annotated[str, typer.Option("--ep", "-e", help="Execution provider: cpu.")] = "cpu",
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Take the text half of a multimodal checkpoint.")
    ] = False,
    context: Annotated[
        int | None, typer.Option("--context", min=1, help="Positions to cover [default: the checkpoint's].")
    ] = None,
    verify_: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Prove the package before it gets its name.")
    ] = True,
    allow_unproven: Annotated[
        bool, typer.Option("--allow-unproven", help="Keep a package that is not proven, marked as such.")
    ] = False,
    tokenizer: Annotated[bool, typer.Option("--tokenizer/--no-tokenizer", help="Carry the tokenizer over.")] = True,
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="PATTERN", help="Tensors without effect; repeatable, recorded."),
    ] = None,
    ignore_key: Annotated[
        list[str] | None,
        typer.Option("--ignore-key", metavar="KEY", help="Configuration keys without effect; repeatable, recorded."),
    ] = None,
    cache: Cache = True,
    power: Power = True,
    junit: Junit = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Export a checkpoint as an ONNX package, and prove it."""
    from paritas.export import export as run_export
    from paritas.plan import Options
    from paritas.targets import TARGETS

    with command(quiet, as_json) as screen:
        choose("dtype", dtype, usage.DTYPES, usage.LATER_DTYPES)
        choose("ep", provider, usage.PROVIDERS, usage.LATER_PROVIDERS)
        chosen = TARGETS[choose("target", target, usage.TARGETS)]
        folder = one_output(out, out_option)
        for path in (model, folder):
            utf8(str(path))
        if junit is not None:
            check_junit(junit, verify_)
        evidence: list[Any] = []
        diagnoses: list[Any] = []
        with screen.progress() as progress:
            how = dict[str, Any](progress=progress, cache=cache)
            prove = _prover(model, folder.name, evidence, diagnoses, power=power, **how) if verify_ else None
            exported = run_export(
                model,
                folder,
                chosen,
                Options(text_only, context, tokenizer, drop or (), ignore_key or (), force, allow_unproven),
                prove=prove,
                progress=progress,
            )
        write_junit(evidence, junit)
        show_evidence(screen, evidence)
        for diagnosis in diagnoses:
            show_diagnosis(screen, diagnosis)
        _show_export(screen, exported, evidence, diagnoses)
        if evidence:
            raise typer.Exit(evidence[0].exit_code)


def _prover(
    model: str,
    name: str,
    evidence: list[Any],
    diagnoses: list[Any],
    *,
    progress: Progress,
    cache: bool,
    power: bool,
) -> Callable[[Path], str]:
    if not (installed("torch") and installed("transformers")):
        raise ParitasError(
            "verify-needs-torch",
            "an export is proven against transformers, which is not installed with torch",
            hint="Install the extra 'verify': pip install torch transformers. Without a proof: --no-verify",
        )

    def prove(folder: Path) -> str:
        from paritas.checkpoint.opening import locate
        from paritas.diagnose.run import diagnose
        from paritas.report import gather, write
        from paritas.verify.run import verify as run_verify
        from paritas.verify.verdict import Verdict

        checkpoint = locate(model)
        evidence.append(run_verify(folder, checkpoint, progress=progress, cache=cache, power=power))
        record = evidence[0].write(folder)
        write.write_page(gather.of_export(evidence[0], name, checkpoint), record.with_name(write.PAGE))
        if evidence[0].verdict in (Verdict.DIVERGES, Verdict.UNEXPLAINED):
            found = diagnose(folder, checkpoint, progress, cache=cache).diagnosis
            diagnoses.append(replace(found, package=name))  # it has another name as long as it is not proven
        return str(evidence[0].verdict.value)

    return prove


def _show_export(screen: Screen, exported: Any, evidence: list[Any], diagnoses: list[Any]) -> None:
    size = f"{exported.bytes / 2**20:,.0f} MiB, {exported.parameters:,} parameters, {exported.seconds:.1f} s"
    if exported.lost_defaults:
        screen.say(
            f"[yellow]note[/]: genai_config.json has no place for {', '.join(exported.lost_defaults)} of "
            "generation_config.json"
        )
    if exported.kept:
        mark = "" if exported.verdict == "proven" else f" [yellow]({exported.verdict})[/]"
        screen.say(f"[bold]{escape(str(exported.out))}[/]{mark}: {size}")
    else:
        screen.err.print(
            f"[red]nothing written[/]: the verdict is {exported.verdict}. "
            "--allow-unproven keeps such a package, marked."
        )
    screen.result(
        {
            "out": str(exported.out) if exported.kept else None,
            "verdict": exported.verdict,
            "seconds": round(exported.seconds, 2),
            "bytes": exported.bytes,
            "parameters": exported.parameters,
            "lost_defaults": exported.lost_defaults,
            **({"verification": evidence[0].summary()} if evidence else {}),
            **({"diagnosis": diagnoses[0].summary()} if diagnoses else {}),
        }
    )
