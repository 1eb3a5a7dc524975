"""What an export costs: seconds, memory, what was imported for it; beside a copy of its data, and beside the builder.

    python benchmarks/export_cost.py MODEL [MODEL ...] [--only WAY ...] [--cycles 3] [--builder PYTHON] [--keep]

Without verification. Every export is a process of its own, the command as a person gives it; the ways are cycled, each
second cycle backwards. Seconds are the whole process's, the interpreter's start included, on the clock and of all its
threads; memory is the most that it had. Ratios are taken cycle by cycle, and their median is shown. Under five minutes
for one model with all ways on two quiet cores.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import results

ROOT = Path(__file__).resolve().parent.parent
BUILDER = ROOT / ".peers" / "environments" / "builder" / "bin" / "python"
FLAT = ROOT / "benchmarks" / "flat_builder.py"
PROGRAM = """
import atexit, json, sys
from paritas.cli import main
from paritas.peak import peak_memory
atexit.register(lambda: print(json.dumps({"peak": peak_memory(), "imported": [
    name for name in ("torch", "transformers", "sympy.core") if name in sys.modules]})))
main()
"""
OURS = {
    "fp32": ["--dtype", "fp32"],
    "fp32 link": ["--link"],
    "int4": ["--dtype", "int4"],
    "int4 rtn": ["--dtype", "int4", "--quant", "method=rtn"],
}
THEIRS = {"builder fp32": "fp32", "builder int4": "int4"}
COPY = "cp of the fp32 data"
Run = dict[str, Any]
"""What one process cost."""


def run(words: list[str]) -> Run:
    """One process: its seconds, its peak memory, and what it says itself."""
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    start = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=offline) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words[:3])} ... ended with {process.returncode}")
    told = Run()
    for line in said.splitlines():
        told |= json.loads(line) if line.startswith(b"{") else {}
    processor = usage.ru_utime + usage.ru_stime
    return {"wall": time.perf_counter() - start, "processor": processor, "peak": usage.ru_maxrss << 10, **told}


def ways(model: str, only: list[str], builder: Path, folder: Path) -> dict[str, Callable[[], Run]]:
    """What is measured, by name. A copy needs the data that the first export wrote."""

    def ours(how: list[str]) -> Run:
        out = folder / "package"
        shutil.rmtree(out, ignore_errors=True)
        told = run([sys.executable, "-c", PROGRAM, "export", model, str(out), "--no-verify", "--json", *how])
        if how == OURS["fp32"]:
            (out / "model.onnx.data").replace(folder / "data")
        return told

    def theirs(dtype: str) -> Run:
        out = folder / "theirs"
        shutil.rmtree(out, ignore_errors=True)
        words = ["-i", model, "-o", str(out), "-p", dtype, "-e", "cpu", "-c", str(folder / "cache")]
        return run([str(builder), str(FLAT), *words])

    def copy() -> Run:
        (folder / "copy").unlink(missing_ok=True)
        return run(["cp", str(folder / "data"), str(folder / "copy")])

    every: dict[str, Callable[[], Run]] = {name: partial(ours, how) for name, how in OURS.items()}
    every[COPY] = copy
    if builder.is_file():
        every |= {name: partial(theirs, dtype) for name, dtype in THEIRS.items()}
    return {name: way for name, way in every.items() if not only or name in only or name in ("fp32", COPY)}


def main() -> None:
    """Measure and print one row a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--only", nargs="+", default=[], metavar="WAY")
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--builder", type=Path, default=BUILDER, help="the Python that it is installed in")
    results.option(parser)
    given = parser.parse_args()
    with results.kept(given.keep):
        for model in given.models:
            measure(model, given)


def measure(model: str, given: argparse.Namespace) -> None:
    """Cycle through the ways of one model, and print its rows."""
    with tempfile.TemporaryDirectory(dir=Path(model).absolute().parent) as folder:  # links need the same disk
        measured = ways(model, given.only, given.builder, Path(folder))
        if not given.builder.is_file():
            print(f"without the builder: there is no {given.builder} (make peers builds it)")
        runs: dict[str, list[Run]] = {name: [] for name in measured}
        for cycle in range(given.cycles):
            first, *rest = measured
            for name in [first, *(rest[::-1] if cycle % 2 else rest)]:
                runs[name].append(measured[name]())
    show(Path(model).name, runs)


def show(model: str, runs: dict[str, list[Run]]) -> None:
    """Medians, and ratios to the copy and to the builder's export of the same precision."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(f"{model}: {len(runs['fp32'])} cycles, load average {load:.2f}")
    for name, each in runs.items():
        line = f"  {name:20s} {median(each, 'wall'):6.2f} s, {median(each, 'processor'):6.2f} of processors  "
        line += f"{median(each, 'peak') / 2**20:6,.0f} MiB at most"
        if "memory" in each[0]:
            taken, forecast = median(each, "memory") / 2**20, median(each, "memory_forecast") / 2**20
            line += (
                f", {taken:,.0f} beside the program (forecast: {forecast:,.0f}), {median(each, 'seconds'):.2f} s of it"
            )
            line += " exporting" + "".join(f", imported {what}" for what in each[0]["imported"])
        for peer in (COPY, f"builder {name.split()[0]}"):
            if name in OURS and peer in runs:
                line += f"; {ratio(each, runs[peer], 'wall'):.2f} of {peer}'s time"
                if peer != COPY:
                    line += f" and {ratio(each, runs[peer], 'peak'):.2f} of its memory"
        print(line)


def median(runs: list[Run], key: str) -> float:
    """Over the cycles."""
    return statistics.median(run[key] for run in runs)


def ratio(runs: list[Run], others: list[Run], key: str) -> float:
    """The median of the ratios, cycle by cycle."""
    return statistics.median(one[key] / other[key] for one, other in zip(runs, others, strict=True))


if __name__ == "__main__":
    main()
