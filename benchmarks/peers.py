"""What Paritas says of other exporters' packages, beside what is known of them; and whether that is right.

    python benchmarks/peers.py [FOLDER] [--only NAME ...] [--audit] [--diagnose]    # default: .peers, of `make peers`

A package is verified and audited (with --audit: audited alone, which takes seconds); with --diagnose its causes are
found if it diverges. NAME is an exporter or EXPORTER/CASE. What is known stands in tests/peers.py and
tests/test_peers_audit.py; packages of less than fp32 have no line there and are shown without being counted.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from paritas.audit.run import audit
from paritas.checkpoint import open_checkpoint
from paritas.diagnose.run import diagnose
from paritas.errors import Invalid, ParitasError
from paritas.runtime.package import Package, open_package
from paritas.verify import run
from paritas.verify.evidence import Evidence
from paritas.verify.rounded import truths_for
from paritas.verify.truth import Truths, find_truths
from paritas.verify.verdict import Verdict

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import peers  # noqa: E402 - what is known lies beside the tests that hold it
from test_peers_audit import CAUSES  # noqa: E402

UNCOUNTED = "not counted"


def main() -> None:
    """A few lines a package, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / ".peers")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--audit", action="store_true", help="nothing but the audit")
    parser.add_argument("--diagnose", action="store_true", help="also the causes of what diverges")
    given = parser.parse_args()
    counts: dict[str, Counter[str]] = {"verify": Counter(), "audit": Counter(), "diagnose": Counter()}
    for folder in sorted((given.folder / "packages").glob("*/*/"), key=lambda path: (path.name, path.parent.name)):
        names = {folder.parent.name, f"{folder.parent.name}/{folder.name}"}
        if folder.suffix == ".part" or (given.only and not names & set(given.only)):
            continue
        print(f"{folder.parent.name}/{folder.name}", flush=True)
        for tool, outcome, words in said(folder, given.folder / "checkpoints" / folder.name, given):
            counts[tool][outcome] += 1
            print(f"    {tool:9s} {outcome:16s} {words}", flush=True)
    for tool, outcomes in counts.items():
        if outcomes:
            print(f"{tool}: " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))


def said(folder: Path, checkpoint: Path, given: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """What each tool says of a package: its name, what that is worth, and its words."""
    exporter, case = folder.parent.name, folder.name
    counted = exporter in peers.WRONG
    fault = peers.WRONG.get(exporter, {}).get(case)
    if not given.audit:
        evidence = run.judge(*_with_truths(open_package(folder), checkpoint))
        yield "verify", _verified(evidence, fault) if counted else UNCOUNTED, _words(evidence)
        if given.diagnose and evidence.verdict is Verdict.DIVERGES:
            yield "diagnose", *_diagnosed(folder, checkpoint)
    codes = _codes(folder, checkpoint)
    worth = _audited(set(codes), set(CAUSES.get(exporter, {}).get(case, ())), fault is not None)
    yield "audit", worth if counted else UNCOUNTED, ", ".join(codes) or "no error"


def _verified(evidence: Evidence, fault: str | None) -> str:
    if fault is None:
        return "right" if evidence.verdict is Verdict.PROVEN else "false alarm"
    if evidence.verdict is Verdict.PROVEN:
        return "miss"
    return "right" if fault in _words(evidence) else "other signature"


def _words(evidence: Evidence) -> str:
    floors = "" if evidence.worst_floors is None else f", {evidence.worst_floors:,.1f} floors"
    refusals = "; ".join(finding.message for finding in evidence.findings if finding.severity == "error")
    return f"{evidence.verdict}{floors}  {evidence.signatures.get('onnxruntime') or refusals}"


def _audited(codes: set[str], causes: set[str], wrong: bool) -> str:
    if not wrong:
        return "false alarm" if codes else "right"
    if not codes:
        return "miss"
    return "right" if codes == causes else "other cause"


def _diagnosed(folder: Path, checkpoint: Path) -> tuple[str, str]:
    try:
        diagnosis = diagnose(folder, checkpoint).diagnosis
    except Invalid as error:
        return "cannot run", error.code
    causes = ", ".join(f"{cause.suspect.code} ({cause.suspect.where})" for cause in diagnosis.causes)
    return "proved" if diagnosis.is_proved else "not proved", causes or f"smallest region: {diagnosis.smallest}"


def _codes(folder: Path, checkpoint: Path) -> list[str]:
    try:
        findings = audit(folder, checkpoint).findings
    except ParitasError as error:
        return [error.code]
    return sorted({each.code for each in findings if each.severity == "error"})


def _with_truths(package: Package, checkpoint: Path) -> tuple[Package, Truths]:
    """A package and what it is held against: its own weights, where those are of less than fp32."""
    if package.folder.parent.name in peers.WRONG:
        return package, truths(checkpoint)
    return package, truths_for(package, open_checkpoint(checkpoint), lambda *_: None, cache=False, power=False)


@cache
def truths(checkpoint: Path) -> Truths:
    """The reference, once for all packages of a checkpoint."""
    return find_truths(open_checkpoint(checkpoint), power=False)


if __name__ == "__main__":
    main()
