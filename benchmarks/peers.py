"""What Paritas says of other exporters' packages: verdict, signature, the audit's codes; and whether that is right.

    python benchmarks/peers.py [FOLDER] [--only EXPORTER/CASE ...]     # default: .peers, as `make peers` builds it

What is known of every package stands in tests/peers.py. Packages of less than fp32 have no line there and are shown
without being counted.
"""

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paritas.audit.run import audit
from paritas.checkpoint import open_checkpoint
from paritas.errors import ParitasError
from paritas.runtime.package import open_package
from paritas.verify import run
from paritas.verify.truth import Truths, find_truths
from paritas.verify.verdict import Verdict

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import peers  # noqa: E402 - what is known lies beside the tests that hold it

RIGHT, WRONG, FALSE_ALARM, MISS, UNCOUNTED = "right", "wrong signature", "false alarm", "miss", "-"


@dataclass(frozen=True)
class Line:
    """One package."""

    package: str
    verdict: str
    floors: float | None
    signature: str
    codes: str
    judged: str


def main() -> None:
    """A line a package, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / ".peers")
    parser.add_argument("--only", nargs="+", metavar="EXPORTER/CASE", default=[])
    given = parser.parse_args()
    lines: list[Line] = []
    for folder in sorted((given.folder / "packages").glob("*/*/"), key=lambda path: (path.name, path.parent.name)):
        name = f"{folder.parent.name}/{folder.name}"
        if folder.suffix == ".part" or (given.only and not {name, folder.parent.name} & set(given.only)):
            continue
        line = judged(folder, given.folder / "checkpoints" / folder.name)
        floors = "" if line.floors is None else f"{line.floors:,.1f}"
        print(f"{line.package:36s} {line.verdict:12s} {floors:>12s}  {line.judged:15s} {line.signature}", flush=True)
        print(f"{'':36s} audit: {line.codes or 'no error'}", flush=True)
        lines.append(line)
    print("\nverify: " + ", ".join(f"{count} {what}" for what, count in Counter(each.judged for each in lines).items()))
    silent = [each.package for each in lines if each.verdict == Verdict.DIVERGES and not each.codes]
    loud = [each.package for each in lines if each.verdict == Verdict.PROVEN and each.codes]
    print(f"audit: errors on {len(loud)} proven packages {loud or ''}")
    print(f"audit: no error on {len(silent)} packages that diverge {silent or ''}")


def judged(folder: Path, checkpoint: Path) -> Line:
    """Verify and audit one package."""
    exporter, case = folder.parent.name, folder.name
    evidence = run.judge(open_package(folder), truths(checkpoint))
    refusals = "; ".join(finding.message for finding in evidence.findings if finding.severity == "error")
    signature = evidence.signatures.get("onnxruntime") or refusals
    codes = _codes(folder, checkpoint)
    known = _known(exporter, case, evidence.verdict, signature)
    return Line(f"{exporter}/{case}", evidence.verdict, evidence.worst_floors, signature, codes, known)


def _known(exporter: str, case: str, verdict: Verdict, signature: str) -> str:
    """Whether the verdict is the one that the package deserves."""
    if exporter not in peers.WRONG:
        return UNCOUNTED
    fault = peers.WRONG[exporter].get(case)
    if fault is None:
        return RIGHT if verdict is Verdict.PROVEN else FALSE_ALARM
    if verdict is Verdict.PROVEN:
        return MISS
    return RIGHT if fault in signature else WRONG


def _codes(folder: Path, checkpoint: Path) -> str:
    try:
        findings = audit(folder, checkpoint).findings
    except ParitasError as error:
        return f"({error.code})"
    return ", ".join(dict.fromkeys(each.code for each in findings if each.severity == "error"))


@cache
def truths(checkpoint: Path) -> Truths:
    """The reference, once for all packages of a checkpoint."""
    return find_truths(open_checkpoint(checkpoint))


if __name__ == "__main__":
    main()
