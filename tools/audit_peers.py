"""Print what `paritas audit` says of every package that `make peers` has built, beside what is known of it.

    python tools/audit_peers.py [FOLDER]        # default: .peers

A line a package: exporter, checkpoint, whether it is known to be wrong (tests/peers.py), the codes of all errors, and
whether that is right. Packages of less than fp32 are not judged there, and are listed without it. Ends with counts.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Audit everything."""
    sys.path.insert(0, str(ROOT / "tests"))
    import peers
    from paritas.audit.run import audit
    from test_peers_audit import CAUSES

    parser = argparse.ArgumentParser(description="Audit the packages that other exporters made.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / ".peers", help="what make_peers.py has made")
    folder = parser.parse_args().folder
    counts = Counter[str]()
    for package in sorted(path for path in (folder / "packages").glob("*/*/") if path.suffix != ".part"):
        exporter, case = package.parent.name, package.name
        found = audit(package, folder / "checkpoints" / case)
        codes = {each.code for each in found.findings if each.severity == "error"}
        known = "not judged"
        if exporter in peers.WRONG:
            known = "wrong" if case in peers.WRONG[exporter] else "right"
        outcome = judged(known, codes, CAUSES.get(exporter, {}).get(case, set()))
        counts[outcome] += 1
        print(f"{exporter:16s} {case:21s} {known:11s} {outcome:12s} {', '.join(sorted(codes))}", flush=True)
    print("; ".join(f"{count} {word}" for word, count in counts.most_common()))


def judged(known: str, codes: set[str], causes: set[str]) -> str:
    """What the audit's errors are worth, where it is known what is wrong."""
    if known == "not judged":
        return "-"
    if known == "right":
        return "false alarm" if codes else "right"
    if not codes:
        return "missed"
    return "cause named" if codes == causes else "other cause"


if __name__ == "__main__":
    main()
