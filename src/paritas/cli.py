"""The commands. They parse, call and print; there is no logic here."""

import importlib.util
import io
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

import paritas
from paritas import usage
from paritas.console import Screen, facts, rows
from paritas.errors import Exit, ParitasError
from paritas.outcome import command
from paritas.progress import Progress
from paritas.usage import choose, one_output, utf8

app = typer.Typer(
    cls=usage.Commands,
    help="Model exports that are right, and proven right.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A checkpoint folder, a .gguf file, or a Hub id.")]
PackagePath = Annotated[Path, typer.Argument(metavar="PACKAGE", help="A package's folder, or an .onnx file.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but errors and the result.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, and nothing else there.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace an existing package, once the new one is whole.")]
Against = Annotated[
    str,
    typer.Option("--against", "-a", metavar="MODEL", help="The checkpoint that the package was made from."),
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


class Runtime(StrEnum):
    """Which runtime answers."""

    AUTO = "auto"
    GENAI = "genai"
    ONNXRUNTIME = "onnxruntime"


_DEMO = Path("out/smollm2-135m-instruct")


@app.command()
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
            _check_junit(junit, verify_)
        evidence: list[Any] = []
        with screen.progress() as progress:
            exported = run_export(
                model,
                folder,
                chosen,
                Options(text_only, context, tokenizer, drop or (), ignore_key or (), force, allow_unproven),
                prove=_prover(model, evidence, progress, cache=cache, power=power) if verify_ else None,
                progress=progress,
            )
        _write_junit(evidence, junit)
        _show_evidence(screen, evidence)
        _show_export(screen, exported, evidence)
        if evidence:
            raise typer.Exit(evidence[0].exit_code)


@app.command()
def verify(
    package: PackagePath,
    against: Against,
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
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Hold a package against transformers, logit by logit."""
    with command(quiet, as_json) as screen:
        from paritas.checkpoint.opening import locate
        from paritas.package.staging import check_writable
        from paritas.verify.evidence import FILE
        from paritas.verify.replay import read_record, replay
        from paritas.verify.run import RUNTIMES
        from paritas.verify.run import verify as run_verify

        _need_runtime(runtime or ())
        if out is not None:
            check_writable(out / FILE)
        if junit is not None:
            _check_junit(junit)
        names = {Runtime.GENAI: "onnxruntime-genai", Runtime.ONNXRUNTIME: "onnxruntime"}
        runtimes = [names[r] for r in dict.fromkeys(runtime or ()) if r in names]
        earlier, replayed = None if record is None else read_record(record), None
        with screen.progress() as progress:
            checkpoint, how = locate(against), dict[str, Any](progress=progress, cache=cache, power=power)
            if earlier is not None:
                replayed = replay(earlier, package, checkpoint, runtimes, **how)
            evidence = (
                replayed.evidence if replayed else run_verify(package, checkpoint, runtimes=runtimes or RUNTIMES, **how)
            )
        if out is not None:
            evidence.write(out)
        _write_junit([evidence], junit)
        _show_evidence(screen, [evidence])
        if replayed is not None:
            screen.table("replay, in floors", rows([row.model_dump(mode="json") for row in replayed.rows]), gap=True)
        screen.result((replayed or evidence).summary())
        raise typer.Exit(evidence.exit_code)


@app.command()
def audit(package: PackagePath, against: Against, quiet: Quiet = False, as_json: Json = False) -> None:
    """Read a package's files against a checkpoint, in seconds.

    Weights, RoPE, attributes, configuration and tokenizer; nothing is run.
    """
    with command(quiet, as_json) as screen:
        from paritas.audit.report import render
        from paritas.audit.run import audit as run_audit

        with screen.progress() as progress:
            found = run_audit(package, utf8(against), progress)
        screen.say(render(found))
        screen.result(found.summary())
        raise typer.Exit(found.exit_code)


@app.command()
def generate(
    package: PackagePath,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to say; - reads it from stdin.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it stands, without the chat template.")
    ] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", "-n", min=1, help="Where the text is cut: 256, or the context's end."),
    ] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="The best token each time, whatever the package asks for.")
    ] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of sampling.")] = None,
    runtime: Annotated[Runtime, typer.Option("--runtime", help="auto: ORT GenAI if it is installed.")] = Runtime.AUTO,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Let a package answer; it stops where the model stops."""
    with command(quiet, as_json) as screen:
        _need_runtime([runtime])
        from paritas.runtime.generate import generate as run_generate
        from paritas.runtime.package import open_package
        from paritas.runtime.sampling import Greedy

        generation = run_generate(
            open_package(package),
            utf8(sys.stdin.buffer.read().decode(errors="surrogateescape") if prompt == "-" else prompt),
            max_new_tokens=max_new_tokens,
            chat=not raw,
            sampling=Greedy() if greedy else None,
            runtime=runtime.value,
            seed=seed,
        )
        text = _told(generation, screen)
        statistics = generation.statistics
        if not screen.quiet:
            screen.err.print(
                f"[dim]{statistics.prompt_tokens} + {statistics.new_tokens} tokens, "
                f"stopped by {statistics.stop_reason}, {statistics.tokens_per_second:.1f} tokens/s, "
                f"{escape(generation.runtime)}[/]"
            )
        screen.result(
            {
                "text": text,
                "tokens": generation.tokens,
                "runtime": generation.runtime,
                **vars(statistics),
            }
        )


@app.command()
def inspect(
    path: Annotated[
        str,
        typer.Argument(metavar="MODEL|PACKAGE", help="A checkpoint (folder, .gguf, Hub id) or a package."),
    ],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show what a checkpoint computes, or a package takes."""
    with command(quiet, as_json) as screen:
        from paritas.describe import cache_table, describe_checkpoint, describe_package, is_package, layer_table

        if is_package(Path(path)):
            from paritas.runtime.package import open_package

            described = describe_package(open_package(path))
            tables = {"caches": cache_table(described["caches"])}
        else:
            from paritas.checkpoint import open_checkpoint

            described = describe_checkpoint(open_checkpoint(path))
            tables = {"layers": layer_table(described["layers"])}
        told = {key: each for key, each in described.items() if key not in tables and not isinstance(each, dict)}
        screen.table(str(path), facts({key.replace("_", " "): each for key, each in told.items()}))
        for title, table in tables.items():
            screen.table(title, rows(table), gap=True)
        for key, title in (("files", "files, bytes"), ("operators", "operators")):
            if key in described:
                screen.table(title, facts(described[key]), gap=True)
        screen.result(described)


@app.command()
def demo(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where the package goes.")] = _DEMO,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Export a real small model, prove it, let it speak."""
    with command(quiet, False) as screen:
        from paritas.demo import QUESTION, demo_checkpoint

        checkpoint = demo_checkpoint()
    here = Path.cwd()
    shown = checkpoint.relative_to(here) if checkpoint.is_relative_to(here) else checkpoint
    screen.say(f"[bold]{escape(shlex.join(['paritas', 'export', str(shown), str(out)]))}[/]")
    try:
        export(str(checkpoint), out, force=force or out == _DEMO, quiet=quiet)
    except typer.Exit as done:
        if done.exit_code:
            raise
    screen.say(f"\n[bold]{escape(shlex.join(['paritas', 'generate', str(out), QUESTION, '--greedy']))}[/]")
    generate(out, QUESTION, greedy=True, quiet=quiet)


@app.callback(invoke_without_command=True)
def _version(  # pyright: ignore[reportUnusedFunction]
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        typer.echo(f"paritas {paritas.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(Exit.USAGE)


def main() -> None:
    """The `paritas` command."""
    for name in ("SIGTERM", "SIGHUP"):  # as Ctrl-C: what is half done is removed on the way out
        if (number := getattr(signal, name, None)) and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):  # a narrow encoding must not end a command
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # a finder may refuse by raising
        return False


def _need_runtime(asked: Sequence[Runtime]) -> None:
    if Runtime.GENAI in asked and not _installed("onnxruntime_genai"):
        raise ParitasError(
            "genai-missing",
            "onnxruntime-genai is not installed",
            hint="Install the extra 'genai' of Paritas: pip install onnxruntime-genai",
        )


def _prover(model: str, evidence: list[Any], progress: Progress, *, cache: bool, power: bool) -> Callable[[Path], str]:
    if not (_installed("torch") and _installed("transformers")):
        raise ParitasError(
            "verify-needs-torch",
            "an export is proven against transformers, which is not installed with torch",
            hint="Install the extra 'verify': pip install torch transformers. Without a proof: --no-verify",
        )

    def prove(folder: Path) -> str:
        from paritas.checkpoint.opening import locate
        from paritas.verify.run import verify as run_verify

        evidence.append(run_verify(folder, locate(model), progress=progress, cache=cache, power=power))
        evidence[0].write(folder)
        return str(evidence[0].verdict.value)

    return prove


def _check_junit(file: Path, verified: bool = True) -> None:
    from paritas.package.staging import check_file

    if not verified:
        raise ParitasError(
            "junit-without-verify",
            "--junit writes what a verification found, and --no-verify leaves it out",
            hint="Leave one of them out.",
        )
    check_file(file)


def _write_junit(evidence: list[Any], file: Path | None) -> None:
    if evidence and file is not None:
        from paritas.verify import junit

        junit.write(evidence[0], file)


def _told(generation: Iterable[str], screen: Screen) -> str:
    """The whole text; piece by piece on stdout meanwhile, with an end of line however it ends."""
    text = ""
    try:
        for piece in generation:
            text += piece
            if not screen.as_json:
                sys.stdout.write(piece)
                sys.stdout.flush()
    finally:
        if text and not screen.as_json:
            sys.stdout.write("\n")
            sys.stdout.flush()
    return text


def _show_evidence(screen: Screen, evidence: list[Any]) -> None:
    if evidence and not (screen.quiet or screen.as_json):
        from paritas.verify.report import render

        screen.say(render(evidence[0]))


def _show_export(screen: Screen, exported: Any, evidence: list[Any]) -> None:
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
        }
    )
