"""What judging a package costs: seconds and peak memory of audit, and of verify, the reference asked or remembered.

    python benchmarks/judging_cost.py CHECKPOINT PACKAGE [PACKAGE ...]

Each run is a process of its own. The first verification of all asks the reference; the later ones find its answers in
a cache that starts empty and is thrown away at the end.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import json, resource, sys, time
from pathlib import Path
command, package, checkpoint = sys.argv[1:]
start = time.perf_counter()
if command == "audit":
    from paritas.audit.run import audit
    done = audit(Path(package), checkpoint)
    errors = dict.fromkeys(f.code for f in done.findings if f.severity == "error")
    said = ", ".join(errors) or "no error"
else:
    from paritas.verify.run import verify
    done = verify(package, checkpoint)
    floors = "" if done.worst_floors is None else f", {done.worst_floors:,.1f} floors"
    said = f"{done.verdict}{floors}; " + "; ".join(f"{k}: {v}" for k, v in done.signatures.items())
print(json.dumps({"seconds": time.perf_counter() - start, "said": said,
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


def main() -> None:
    """Three lines a package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("packages", nargs="+", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        for package in given.packages:
            for command in ("audit", "verify", "verify again"):
                told = run(command.split()[0], package, given.checkpoint, cache)
                print(
                    f"{package.name:24s} {command:13s} {told['seconds']:7.1f} s, "
                    f"{told['peak'] / 2**20:6,.0f} MiB peak: {told['said']}",
                    flush=True,
                )


def run(command: str, package: Path, checkpoint: Path, cache: str) -> dict[str, float | str]:
    """What one process says of one package."""
    words = [sys.executable, "-c", PROGRAM, command, str(package), str(checkpoint)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | {"PARITAS_CACHE": cache})
    if done.returncode:
        raise SystemExit(f"{command} {package}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
