"""Published configurations as random models of their real widths, exported and proven: floors, verdict, seconds.

    python benchmarks/real_shapes.py [NAME ...] [--target ort onnx] [--memory GIB] [--minutes M]
        [--json FILE] [--markdown FILE] [--folder tests/configs]

How a model is made to fit into ``--memory`` is told in reductions.py. Every number of each weight is random. Each model
is a process of its own, and its peak of memory is the process's. The cheapest come first. With ``--json`` every row is
kept as soon as it is there, and a row that the file has is not asked again unless more fits now; ``--markdown`` writes
the page of all rows, those that did not run with the reason. Exits with 1 if a row of this run is not proven.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
import depth_table
from depth_table import NOT_RUN, Row
from reductions import Values, fitting, made, parameters, text_config

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Question:
    """A configuration that can be asked, as the row it will fill."""

    row: Row
    values: Values


def question(folder: Path, memory: float) -> Question:
    """What of a configuration fits into ``memory`` bytes; a row that is not run, and why, if nothing does."""
    published = text_config(folder)
    family, depth, vocabulary = (published[key] for key in ("model_type", "num_hidden_layers", "vocab_size"))
    row = Row(folder.name, family, "", depth, vocabulary)
    try:
        way = fitting(published, memory)
    except MemoryError as error:
        return Question(replace(row, verdict=f"{NOT_RUN}: {error}"), {})
    config = made(way.values)
    size = {"layers": config.num_hidden_layers, "tokens": config.vocab_size, "parameters": parameters(config)}
    return Question(replace(row, widths=way.widths, **size), way.values)


def write(config: Any, folder: Path) -> None:
    """A checkpoint in bf16, written by transformers, every parameter random."""
    import torch
    from transformers import AutoModelForCausalLM

    sys.path.insert(0, str(ROOT / "tests"))
    import tiny

    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tiny.randomize(model)
    model.save_pretrained(folder)


def prove(folder: Path, targets: list[str], memory: float) -> None:
    """One model on each target; a row as a line of JSON for each."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    asked = question(folder, memory)
    with tempfile.TemporaryDirectory(prefix="real-shapes-") as scratch:
        os.environ["PARITAS_CACHE"] = f"{scratch}/cache"  # the reference is asked once for all targets
        checkpoint = Path(scratch) / folder.name
        write(made(asked.values), checkpoint)
        for target in targets:
            print(json.dumps(asdict(_proven(checkpoint, replace(asked.row, target=target)))), flush=True)


def _proven(checkpoint: Path, row: Row) -> Row:
    """The row, filled by an export and its proof."""
    import resource

    from paritas.errors import ParitasError
    from paritas.export import export
    from paritas.plan import Options
    from paritas.targets import TARGETS
    from paritas.verify.run import verify

    started, found = time.perf_counter(), list[Any]()

    def judge(package: Path) -> str:
        found.append(verify(package, checkpoint, runtimes=("onnxruntime",), power=False))
        return str(found[0].verdict.value)

    try:
        options = Options(tokenizer=False, allow_unproven=True, force=True)
        verdict = export(checkpoint, checkpoint.parent / "out", TARGETS[row.target], options, judge).verdict
    except ParitasError as error:
        verdict = f"{error.code}: {error.fact}"
    told = _told(found[0]) if found else {}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return replace(row, verdict=str(verdict), seconds=time.perf_counter() - started, peak=peak, **told)


def _told(evidence: Any) -> dict[str, Any]:
    tested = [probe for probe in evidence.probes if probe.worst_floors is not None]
    worst = max(tested, key=lambda probe: probe.worst_floors, default=None)
    longest = max((len(sequence.ids) for sequence in evidence.sequences), default=0)
    return {"floors": evidence.worst_floors, "probe": None if worst is None else worst.id, "longest": longest}


def main() -> int:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="folders of configurations; all if none is named")
    parser.add_argument("--folder", type=Path, default=ROOT / "tests" / "configs")
    parser.add_argument("--target", nargs="+", default=["ort", "onnx"])
    parser.add_argument("--memory", type=float, default=5.0, help="GiB of one process")
    parser.add_argument("--minutes", type=float, default=60.0, help="of one process")
    parser.add_argument("--json", type=Path, help="where rows are kept")
    parser.add_argument("--markdown", type=Path, help="the page of all rows that are kept")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        prove(given.folder / given.names[0], given.target, given.memory * 2**30)
        return 0
    everything = sorted(path.parent.name for path in given.folder.glob("*/config.json"))
    rows = depth_table.load(given.json)
    questions = [question(given.folder / name, given.memory * 2**30).row for name in given.names or everything]
    for asked in questions:  # a run that is stopped says what it did not reach
        for target in given.target:
            rows = depth_table.joined(rows, _unasked(asked, target, rows))
    print(*depth_table.header(), sep="\n", flush=True)
    missed = False
    for asked in sorted(questions, key=lambda row: row.parameters):
        for row in _answers(asked, rows, given):
            print(depth_table.line(row), flush=True)
            missed |= row.verdict != "proven"
            rows = depth_table.joined(rows, row)
            depth_table.save(given.json, rows)
            _write_page(given.markdown, rows)
    _write_page(given.markdown, rows)
    return int(missed)


def _write_page(file: Path | None, rows: list[Row]) -> None:
    if file is not None:
        file.write_text(depth_table.page(rows), encoding="utf-8")


def _unasked(asked: Row, target: str, rows: list[Row]) -> Row:
    """The row of what nothing is known of yet; the one that there is, if there is one."""
    there = next((row for row in rows if (row.model, row.target) == (asked.model, target)), None)
    return there or replace(asked, target=target, verdict=f"{NOT_RUN}: not reached yet")


def _answers(asked: Row, rows: list[Row], given: argparse.Namespace) -> Iterator[Row]:
    """The rows of one model on the targets that are still to be asked."""
    wanted = [replace(asked, target=target) for target in given.target]
    open_ = [row for row in wanted if not any(old.answers(row) for old in rows)]
    if not asked.layers:
        yield from open_
    elif open_:
        yield from _apart(open_, given)


def _apart(wanted: list[Row], given: argparse.Namespace) -> Iterator[Row]:
    """The same of a process of its own."""
    words = [sys.executable, __file__, "--one", wanted[0].model, "--folder", str(given.folder)]
    words += ["--memory", str(given.memory), "--target", *(row.target for row in wanted)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60 * given.minutes)
        printed, reason = done.stdout, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except subprocess.TimeoutExpired as late:
        printed = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        reason = f"more than {given.minutes:g} minutes"
    found = [Row(**json.loads(line)) for line in printed.splitlines() if line.startswith("{")]
    yield from found
    answered = {row.target for row in found}
    yield from (replace(row, verdict=f"{NOT_RUN}: {reason}") for row in wanted if row.target not in answered)


if __name__ == "__main__":
    sys.exit(main())
