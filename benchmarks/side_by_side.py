"""The same tiny checkpoints, exported by us and by other exporters: proven, silently wrong, or refused.

    python benchmarks/side_by_side.py [FOLDER] [--only CASE ...]    # default: .peers, of `make peers`

Everything is asked by one verification with one gate, in ONNX Runtime on the CPU. An exporter that ended without an
error and whose package diverges was silently wrong; what it says of a checkpoint that it does not export is not shown,
only that it refused.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from paritas.checkpoint import open_checkpoint
from paritas.errors import ParitasError
from paritas.export import export
from paritas.plan import Options
from paritas.runtime.package import open_package
from paritas.targets import TARGETS
from paritas.verify.run import judge
from paritas.verify.truth import Truths, find_truths
from paritas.verify.verdict import Verdict

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import zoo  # noqa: E402 - what the exporters were given

OURS = {f"ours, {target}": target for target in TARGETS}
THEIRS = {"builder 0.18.0": "builder", "mobius 0.1.0": "mobius", "mobius 0.1.0, cpu": "mobius-cpu"}
REFUSED, WRONG, BROKEN = "refused", "wrong", "does not run"


def main() -> None:
    """A row a checkpoint, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / ".peers")
    parser.add_argument("--only", nargs="+", metavar="CASE", default=[])
    given = parser.parse_args()
    columns = [*OURS, *THEIRS]
    counts: dict[str, Counter[str]] = {column: Counter() for column in columns}
    print(f"| checkpoint | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}", flush=True)
    for case in given.only or zoo.CHECKPOINTS:
        row = dict(zip(columns, outcomes(given.folder, case), strict=True))
        for column, said in row.items():
            counts[column][said.split(":")[0]] += 1
        print(f"| {case} | {' | '.join(row.values())} |", flush=True)
    for word in (Verdict.PROVEN, Verdict.UNEXPLAINED, WRONG, BROKEN, REFUSED):
        print(f"| **{word}** | {' | '.join(str(counts[column][word]) for column in columns)} |")


def outcomes(folder: Path, case: str) -> list[str]:
    """What each exporter makes of a checkpoint, in the order of the columns."""
    checkpoint = folder / "checkpoints" / case
    truths = find_truths(open_checkpoint(checkpoint), power=False)
    theirs = [folder / "packages" / exporter / case for exporter in THEIRS.values()]
    return [ours(checkpoint, target, truths) for target in OURS.values()] + [judged(each, truths) for each in theirs]


def ours(checkpoint: Path, target: str, truths: Truths) -> str:
    """Our own export, judged like the others'."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            export(checkpoint, Path(scratch) / "package", TARGETS[target], Options())
        except ParitasError:
            return REFUSED
        return judged(Path(scratch) / "package", truths)


def judged(package: Path, truths: Truths) -> str:
    """The verdict on a package; one that is not there was refused."""
    if not package.is_dir():
        return REFUSED
    try:
        evidence = judge(open_package(package), truths, ("onnxruntime",))
    except ParitasError as error:
        return f"{BROKEN}: {error.code}"
    if evidence.worst_floors is None:
        return f"{BROKEN}: {evidence.findings[0].code}"
    word = WRONG if evidence.verdict is Verdict.DIVERGES else str(evidence.verdict)
    return (
        f"{word}: {evidence.worst_floors:,.2f}" if word == Verdict.PROVEN else f"{word}: {evidence.worst_floors:,.0f}"
    )


if __name__ == "__main__":
    main()
