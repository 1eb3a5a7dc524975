"""What each precision costs in accuracy: packages of one checkpoint, each verified against its own weights.

    python benchmarks/precisions.py MODEL [--context 1024] [--only "int4 method=search"] [--weights]

A row a package: its verdict (against transformers with the package's own weights, in fp32 arithmetic) and what its
user loses: mean Kullback-Leibler divergence of its next-token distributions from those of the checkpoint, the best
token's agreement, flips that are no near ties, the ratio of perplexities. The reference answers once for all rows.

With --weights nothing is verified: the package of fp32 is asked the bundled text and two questions in ONNX Runtime,
with each recipe's dequantised weights in place of its own, which takes seconds a row.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paritas.checkpoint import open_checkpoint
from paritas.export import export
from paritas.measuring.matrices import Measured
from paritas.measuring.whole import written
from paritas.plan import Options, prepare
from paritas.quant.recipe import recipe
from paritas.targets import TARGETS
from paritas.verify.run import verify
from paritas.weights import Blocks

ROWS = (
    "int4 method=rtn,symmetric=yes",
    "int4 method=search,symmetric=yes",
    "int4 method=rtn,symmetric=no",
    "int4 method=search,symmetric=no",
    "int8",
    "int4 method=search,symmetric=no,keep8=lm_head",
    "int4 method=search,symmetric=no,block=128",
)
HEADER = "| recipe | verdict | MiB | export s | mean KL | p99 KL | top-1 | flips | of | perplexity |"


def main() -> None:
    """Export and verify, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--only", action="append", help="a row by its words; repeatable, also one that is not listed")
    parser.add_argument("--text-only", action="store_true")
    parser.add_argument("--weights", action="store_true", help="no verification: what the rounding of weights does")
    given = parser.parse_args()
    if given.weights:
        weights(given.model, given.only or ROWS, Options(given.text_only, given.context))
        return
    print(f"{HEADER}\n|{'---|' * (HEADER.count('|') - 1)}", flush=True)
    for row in given.only or ROWS:
        with tempfile.TemporaryDirectory() as folder:
            print(line(row, given.model, Path(folder) / "package", Options(given.text_only, given.context)), flush=True)


def weights(model: str, rows: Sequence[str], options: Options) -> None:
    """Size, seconds of quantising, mean KL of each recipe."""
    checkpoint = open_checkpoint(model)
    plan = prepare(checkpoint, TARGETS["ort"], options)
    with tempfile.TemporaryDirectory() as folder, written(plan, Path(folder)) as home:
        measured = Measured(home, plan, plan.graph.matrices)
        print(f"{measured.positions} positions, fp32 {plan.bytes / 2**20:.0f} MiB")
        print("| recipe | MiB | mean KL of weights |\n|---|---|---|", flush=True)
        for row in rows:
            dtype, _, quant = row.partition(" ")
            own = prepare(checkpoint, TARGETS["ort"], replace(options, recipe=recipe(dtype, quant or None)))
            chosen = {name: each.storage for name, each in own.graph.matrices.items()}
            kl = measured.kl({name: how for name, how in chosen.items() if isinstance(how, Blocks)})
            print(f"| `{row}` | {own.bytes / 2**20:.0f} | {kl:.4f} |", flush=True)


def line(row: str, model: str, out: Path, options: Options) -> str:
    """The table's row of a recipe: ``dtype`` or ``dtype quant``."""
    dtype, _, quant = row.partition(" ")
    stored = recipe(dtype, quant or None)
    started = time.perf_counter()
    done = export(model, out, TARGETS["ort"], Options(options.text_only, options.context, recipe=stored))
    seconds = time.perf_counter() - started
    evidence = verify(out, Path(model), runtimes=("onnxruntime",), power=False)
    shutil.rmtree(out)
    quality = {part.part: part for part in evidence.precision.quality} if evidence.precision else {}
    verdict = f"{evidence.verdict.value} ({evidence.worst_floors:.1f})" if evidence.worst_floors else evidence.verdict
    start = f"| `{row}` | {verdict} | {done.bytes / 2**20:.0f} | {seconds:.1f} |"
    if (own := quality.get("package")) is None:
        return f"{start} | | | | | |"
    kl = f"{own.kl:.4f} ± {own.kl_error:.4f} | {own.kl_p99:.3f}"
    return f"{start} {kl} | {own.top1:.1%} | {own.flips} | {own.positions} | {own.perplexity:.3f} |"


if __name__ == "__main__":
    main()
