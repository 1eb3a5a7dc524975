"""The corpus of wrong and right packages: how many a verification sees, and how far a diagnosis explains them.

    python benchmarks/corpus.py [--only WORDS ...] [--blind] [--jobs 2] [--controls | --mutants] [--json OUT]
                               [--markdown docs/reference/corpus.md]

One line for each mutant while it runs, then the table: of each topic how many were detected, localised, named, proved
and repaired, the blind set beside all; every miss with its reason; and false alarms on packages that are right.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: tiny models gain nothing from a second thread
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from mutants import MUTANTS, RIGHT, Control, Mutant
from mutants.alarms import of_control
from mutants.scoring import STEPS, Score, of_mutant
from mutants.table import page, report

COMMAND = "python benchmarks/corpus.py --jobs 2 --markdown docs/reference/corpus.md"


def main() -> None:
    """All of it; ends with 1 if a mutant is not detected or a right package raises an alarm."""
    arguments = parsed()
    chosen = list(choose(arguments))
    folder = Path(tempfile.mkdtemp(prefix="corpus-"))
    root = arguments.root or folder
    os.environ["PARITAS_CACHE"] = str(root / "cache")
    scores: list[Score] = []
    for score in run(chosen, folder, root, arguments.jobs):
        scores.append(score)
        if arguments.json:  # after each: a run that is stopped leaves what it has
            arguments.json.write_text(json.dumps([asdict(each) for each in scores], indent=1))
    mutants, controls = [s for s in scores if s.topic], [s for s in scores if not s.topic]
    print(report(mutants, controls))
    if arguments.markdown:
        arguments.markdown.write_text(page(mutants, controls, COMMAND), encoding="utf-8")
    sys.exit(int(any(s.detected for s in controls) or not all(s.detected for s in mutants)))


def parsed() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="words of names")
    parser.add_argument("--blind", action="store_true", help="the blind set alone")
    parser.add_argument("--mutants", action="store_true", help="no controls")
    parser.add_argument("--controls", action="store_true", help="no mutants")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--root", type=Path, help="where checkpoints and the reference's answers are kept")
    parser.add_argument("--json", type=Path, help="a file for the scores")
    parser.add_argument("--markdown", type=Path, help="a page for the table, the misses and the false alarms")
    return parser.parse_args()


def choose(arguments: argparse.Namespace) -> Iterable[Mutant | Control]:
    """What is asked for, by checkpoint: the reference answers once for all of one."""
    mutants = [] if arguments.controls else [m for m in MUTANTS.values() if m.blind or not arguments.blind]
    controls = [] if arguments.mutants or arguments.blind else list(RIGHT.values())
    every = sorted([*mutants, *controls], key=lambda one: one.checkpoint)
    return [one for one in every if not arguments.only or any(words in one.name for words in arguments.only)]


def run(chosen: Sequence[Mutant | Control], folder: Path, root: Path, jobs: int) -> Iterable[Score]:
    """Every score as it comes; a process takes all that has one checkpoint."""
    (root / "checkpoints").mkdir(parents=True, exist_ok=True)
    by_checkpoint: dict[str, list[str]] = {}
    for one in chosen:
        by_checkpoint.setdefault(one.checkpoint, []).append(one.name)
    longest_first = sorted(by_checkpoint.values(), key=len, reverse=True)
    done = 0
    with ProcessPoolExecutor(jobs) as pool:
        for names in as_completed([pool.submit(several, names, folder, root) for names in longest_first]):
            for score in names.result():
                done += 1
                print(f"{done:>4}/{len(chosen)}  {line(score)}", file=sys.stderr, flush=True)
                yield score


def several(names: Sequence[str], folder: Path, root: Path) -> list[Score]:
    """In a process of its own."""
    return [score_of(name, folder, root) for name in names]


def score_of(name: str, folder: Path, root: Path) -> Score:
    """Of a mutant or a control, by its name."""
    out = Path(tempfile.mkdtemp(dir=folder)) / "package"
    if name in MUTANTS:
        return of_mutant(MUTANTS[name], out, root)
    return of_control(RIGHT[name], out, root)


def line(score: Score) -> str:
    """One line: what was reached, what was named, how long it took."""
    marks = "".join(step[0].upper() if getattr(score, step) else "." for step in STEPS)
    return f"{marks}  {score.name}  [{', '.join(score.codes)}] {score.reason}  {sum(score.seconds.values()):.1f} s"


if __name__ == "__main__":
    main()
