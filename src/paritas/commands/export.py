"""``paritas export``: a checkpoint becomes a package, proven before it gets its name."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from paritas import usage
from paritas.commands.options import (
    Adapter,
    Cache,
    Force,
    Json,
    Junit,
    Model,
    Power,
    Quiet,
    check_junit,
    show_diagnosis,
    show_evidence,
    write_junit,
)
from paritas.console import Screen
from paritas.outcome import command
from paritas.usage import budget, choose, one_output, utf8

if TYPE_CHECKING:
    from paritas.proving import Prover


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
    dtype: Annotated[
        str, typer.Option("--dtype", "--precision", "-p", help="fp32, fp16, bf16, int8 or int4.")
    ] = "fp32",
    quant: Annotated[
        str | None,
        typer.Option("--quant", metavar="RECIPE", help="Of int8 and int4: block=32,method=search,keep8=lm_head, ..."),
    ] = None,
    kl_budget: Annotated[
        float | None,
        typer.Option("--kl-budget", metavar="NATS", help="Bits for each matrix: the smallest package of this mean KL."),
    ] = None,
    size_budget: Annotated[
        str | None,
        typer.Option("--size-budget", metavar="BYTES", help="Bits for each matrix: the best package of this size."),
    ] = None,
    provider: Annotated[str, typer.Option("--ep", "-e", help="Execution provider: cpu, cuda, webgpu or dml.")] = "cpu",
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Take the text half of a multimodal checkpoint.")
    ] = False,
    adapter: Adapter = None,
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
    metadata: Annotated[
        str, typer.Option("--metadata", help="inference_metadata.yaml for onnx-genai: default, canonical-v1 or none.")
    ] = "default",
    hidden_states: Annotated[
        list[str] | None,
        typer.Option("--hidden-states", metavar="N|last", help="Also give the stream behind layer N; repeatable."),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", metavar="CHECKPOINT", help="What guesses ahead of this model: gemma4_assistant."),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="PATTERN", help="Tensors without effect; repeatable, recorded."),
    ] = None,
    ignore_key: Annotated[
        list[str] | None,
        typer.Option("--ignore-key", metavar="KEY", help="Configuration keys without effect; repeatable, recorded."),
    ] = None,
    logits: Annotated[
        str | None,
        typer.Option("--logits", help="last: of one, unless a call asks for more. all: of every position."),
    ] = None,
    layout: Annotated[
        str, typer.Option("--layout", help="Of fp32 matrices. fast: to run. load: to load at once. link: as --link.")
    ] = "fast",
    sliding_cache: Annotated[
        str, typer.Option("--sliding-cache", help="Of layers with a window. full: all tokens. windowed: their window.")
    ] = "full",
    link: Annotated[bool, typer.Option("--link", help="Take the bytes from the checkpoint's own files.")] = False,
    cache: Cache = True,
    power: Power = True,
    junit: Junit = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Export a checkpoint as an ONNX package, and prove it."""
    from paritas.checkpoint.opening import with_adapter
    from paritas.export import export as run_export
    from paritas.layout import Layout
    from paritas.metadata.dialect import Dialect
    from paritas.plan import Options
    from paritas.proving import Prover
    from paritas.quant.recipe import recipe
    from paritas.targets import TARGETS
    from paritas.targets.sliding import SlidingCache

    with command(quiet, as_json) as screen:
        more: dict[str, Any] = {
            "recipe": recipe(choose("dtype", dtype, usage.DTYPES), quant),
            "provider": choose("ep", provider, usage.PROVIDERS),
            "budget": budget(kl_budget, size_budget),
            "last_logits": None if logits is None else choose("logits", logits, usage.LOGITS) == "last",
            "sliding_cache": SlidingCache(choose("sliding-cache", sliding_cache, usage.SLIDING_CACHES)),
            "layout": Layout("link" if link else choose("layout", layout, usage.LAYOUTS)),
        }
        chosen = TARGETS[choose("target", target, usage.TARGETS)]
        dialect = Dialect(choose("metadata", metadata, usage.METADATA))
        folder = one_output(out, out_option)
        for path in (model, folder):
            utf8(str(path))
        if junit is not None:
            check_junit(junit, verify_)
        with screen.progress() as progress:
            source = model if adapter is None else with_adapter(model, adapter)
            prover = Prover(source, folder.name, drafter, progress, cache, power) if verify_ else None
            more |= {"metadata": dialect, "hidden_states": hidden_states or (), "drafter": drafter}
            options = Options(
                text_only, context, tokenizer, drop or (), ignore_key or (), force, allow_unproven, **more
            )
            exported = run_export(source, folder, chosen, options, prove=prover, progress=progress)
        _show_proof(screen, prover, junit)
        _show_export(screen, exported, prover)
        if prover is not None and prover.evidence:
            raise typer.Exit(prover.exit_code)


def _show_proof(screen: Screen, prover: "Prover | None", junit: Path | None) -> None:
    evidence = [] if prover is None else prover.evidence
    write_junit(evidence, junit)
    show_evidence(screen, evidence)
    if prover is None:
        return
    for diagnosis in prover.diagnoses:
        show_diagnosis(screen, diagnosis)
    for drafter in prover.drafting:
        screen.say(
            f"drafter: {drafter.verdict.value}, worst difference {drafter.worst_floors:.1f} floors, "
            f"{drafter.same_tokens} of {len(drafter.lengths) * drafter.guesses} guesses are transformers' own"
        )


def _show_export(screen: Screen, exported: Any, prover: "Prover | None") -> None:
    size = f"{exported.bytes / 2**20:,.0f} MiB, {exported.parameters:,} parameters, {exported.seconds:.1f} s"
    size += f", {_mebibytes(exported.memory)} of memory (forecast: {_mebibytes(exported.memory_forecast)})"
    if exported.lost_defaults:
        screen.say(
            f"[yellow]note[/]: genai_config.json has no place for {', '.join(exported.lost_defaults)} of "
            "generation_config.json"
        )
    if exported.budget is not None:
        screen.say(_of_budget(exported.budget))
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
            "memory": exported.memory,
            "memory_forecast": exported.memory_forecast,
            "lost_defaults": exported.lost_defaults,
            **({"budget": _without_matrices(exported.budget)} if exported.budget else {}),
            **({"verification": prover.evidence[0].summary()} if prover and prover.evidence else {}),
            **({"diagnosis": prover.diagnoses[0].summary()} if prover and prover.diagnoses else {}),
            **({"drafter": asdict(prover.drafting[0])} if prover and prover.drafting else {}),
        }
    )


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


def _of_budget(record: Mapping[str, Any]) -> str:
    """``budget: mean KL 0.031 measured (0.029 predicted); 180 matrices in int4, 31 in int8``."""
    counted = Counter(str(matrix["stored"]).split()[0] for matrix in record["matrices"].values())
    parts = ", ".join(f"{count} in {what}" for what, count in counted.most_common())
    found = f"mean KL {record['kl_measured']:.3g} measured, {record['kl_predicted']:.3g} predicted"
    return f"budget: {found}; matrices: {parts}"


def _without_matrices(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "matrices"}
