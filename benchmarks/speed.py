"""How fast packages of one checkpoint run: ours and the builder's, at defaults and at equal settings, pair by pair.

    python benchmarks/speed.py MODEL [--what int4 | fp32] [--cycles 3] [--builder PYTHON] [--clock wall | cpu] [--keep]

Packages are made first (without verification: make test-real and benchmarks/precisions.py judge them), then measured by
`paritas bench`: a fresh process each, in alternation, the first one twice. The builder's logits are pruned to the last
row in its equal settings, as ours are. For fp32 also the share of the memory's bandwidth that a decoding step uses,
read in pages of 2 MiB. Under five minutes on two quiet cores.
"""

import argparse
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import results
from rich.console import Console

from paritas.bench import entrant, report
from paritas.bench.run import Result, bench
from paritas.bench.task import Task
from paritas.errors import Unsupported
from paritas.export import export
from paritas.layout import Layout
from paritas.plan import Options
from paritas.quant.recipe import recipe
from paritas.targets import TARGETS
from paritas.targets.sliding import SlidingCache

ROOT = Path(__file__).resolve().parent.parent
BUILDER = ROOT / ".peers" / "environments" / "builder" / "bin" / "python"
FLAT = ROOT / "benchmarks" / "flat_builder.py"
EQUAL = ("prune_lm_head=true", "shared_embeddings=true")
BYTES = 1 << 30  # read to know the bandwidth


def ours(model: str, out: Path, dtype: str, layout: str = "fast", quant: str | None = None) -> Path:
    """A package of ours that gives logits of the last position, its caches kept to their windows, as the builder's."""
    options = Options(recipe=recipe(dtype, quant), layout=Layout(layout), last_logits=True, context=4096)
    windowed = replace(options, sliding_cache=SlidingCache.WINDOWED)
    try:
        export(model, out, TARGETS["ort"], windowed)
    except Unsupported as refused:  # a model without a window
        if refused.code != "sliding-cache-unsupported":
            raise
        export(model, out, TARGETS["ort"], options)
    return out


def theirs(model: str, out: Path, dtype: str, python: Path, *options: str) -> Path:
    """A package of the builder's."""
    words = ["-i", model, "-o", str(out), "-p", dtype, "-e", "cpu", "-c", str(out / "cache")]
    words += ["--extra_options", *options] if options else []
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([str(python), str(FLAT), *words], check=True, capture_output=True, env=offline)
    return out


def packages(model: str, what: str, python: Path, folder: Path) -> dict[str, Path]:
    """What is measured, by name; the first is what the others are held against."""
    if what == "fp32":
        made = {
            "ours": ours(model, folder / "ours", "fp32"),
            "ours, load": ours(model, folder / "load", "fp32", "load"),
        }
        return made | {"builder, equal": theirs(model, folder / "equal", "fp32", python, *EQUAL)}
    return {
        "builder, default": theirs(model, folder / "default", "int4", python),
        "builder, equal": theirs(model, folder / "equal", "int4", python, *EQUAL),
        "ours, equal": ours(model, folder / "ours", "int4", quant="block=32,symmetric=yes,accuracy=4"),
        "ours, block 128": ours(model, folder / "128", "int4", quant="block=128,symmetric=yes,accuracy=4"),
    }


def bandwidth(threads: int) -> float:
    """Bytes a second that so many threads read together, from pages of 2 MiB where the system has them."""
    memory = mmap.mmap(-1, BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    numbers = np.frombuffer(memory, np.float32)
    numbers[:] = 1
    parts = np.array_split(numbers, threads)
    taken = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(lambda part: float(np.dot(part, part)), parts))
            taken.append(time.perf_counter() - start)
    return BYTES / min(taken)


def main() -> None:
    """Make, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--what", choices=("int4", "fp32"), default="int4")
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--builder", type=Path, default=BUILDER, help="the Python that it is installed in")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--busy", action="store_true", help="measure wall times although other programs run")
    results.option(parser)
    given = parser.parse_args()
    if not given.builder.is_file():
        sys.exit(f"there is no builder at {given.builder}: make peers builds one, or say where: --builder PYTHON")
    threads = 1 if given.clock == "cpu" else psutil.cpu_count(logical=False) or 1
    console = Console(width=160, highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        made = packages(given.model, given.what, given.builder, Path(folder))
        entrants = [entrant.package(name, path) for name, path in made.items()]
        task = Task(threads=threads, clock=given.clock)
        result = bench(entrants, task, given.cycles, busy_ok=given.busy)
    model = Path(given.model).name
    with results.kept(given.keep, model, given.what):
        console.print(f"{model}, {given.what}")
        console.print(report.table(result))
        for line in report.legend(result):
            console.print(line, soft_wrap=True)
        if given.what == "fp32":
            console.print(share(result, bandwidth(threads)))


def share(result: Result, reads: float) -> str:
    """Of the bandwidth, by decoding steps after 128 tokens: every weight is read once a step."""
    told = []
    for name, figures in zip(result.names, result.figures, strict=False):
        used = statistics.median(each["disk"] / each["decode@128"] for each in figures)
        told.append(f"{name} {used / reads:.0%}")
    return f"share of {reads / 1e9:.1f} GB/s that decoding uses: {', '.join(told)}"


if __name__ == "__main__":
    main()
