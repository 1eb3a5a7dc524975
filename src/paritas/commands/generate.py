"""``paritas generate``: a package answers."""

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.markup import escape

from paritas.commands.options import Draft, Json, PackagePath, Quiet, Runtime, need_runtime
from paritas.console import Screen
from paritas.outcome import command
from paritas.usage import utf8


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
    draft: Annotated[
        Draft,
        typer.Option(
            "--draft",
            help="Who guesses ahead. auto: the package's own drafter, else lookup, which takes what followed the same "
            "words before; none: a token a call. The text is the same.",
        ),
    ] = Draft.AUTO,
    runtime: Annotated[Runtime, typer.Option("--runtime", help="auto: ORT GenAI if it is installed.")] = Runtime.AUTO,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Let a package answer; it stops where the model stops."""
    with command(quiet, as_json) as screen:
        need_runtime([runtime])
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
            draft=draft.value,
        )
        text = _told(generation, screen)
        statistics = generation.statistics
        if not screen.quiet:
            screen.err.print(
                f"[dim]{statistics.prompt_tokens} + {statistics.new_tokens} tokens, "
                f"stopped by {statistics.stop_reason}, {statistics.tokens_per_second:.1f} tokens/s, "
                f"{escape(generation.runtime)}{_guesses(statistics)}[/]"
            )
        screen.result(
            {
                "text": text,
                "tokens": generation.tokens,
                "runtime": generation.runtime,
                **vars(statistics),
            }
        )


def _guesses(statistics: Any) -> str:
    if not statistics.drafted:
        return ""
    return f", {statistics.accepted} of {statistics.drafted} guesses right in {statistics.calls} calls"


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
