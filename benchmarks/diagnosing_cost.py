"""What a diagnosis costs: seconds and peak memory of each of its stages.

    python benchmarks/diagnosing_cost.py CHECKPOINT PACKAGE [PACKAGE ...] [--verified]

Each package is diagnosed in a process of its own, whose reference is asked anew; with --verified it is verified first,
in another process, and the diagnosis finds the reference's answers remembered, as after `paritas verify`. The cache
starts empty and is thrown away. A stage is what the progress bar says; beside its seconds are those of the processor,
which other work on the machine does not lengthen; memory is the resident set, read 50 times a second.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

PAUSE = 0.02  # seconds between two looks at the memory
PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """A table a package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("packages", nargs="*", type=Path)
    parser.add_argument("--verified", action="store_true", help="verify each package first")
    parser.add_argument("--one", choices=("verify", "diagnose"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(work(given.one, given.packages[0], given.checkpoint)))
        return
    for package in given.packages:
        with tempfile.TemporaryDirectory() as cache:
            if given.verified:
                run("verify", package, given.checkpoint, cache)
            show(package, run("diagnose", package, given.checkpoint, cache))


def run(one: str, package: Path, checkpoint: Path, cache: str) -> dict[str, Any]:
    """What one process says."""
    words = [sys.executable, __file__, str(checkpoint), str(package), "--one", one]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | {"PARITAS_CACHE": cache})
    if done.returncode:
        raise SystemExit(f"{one} {package}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def show(package: Path, told: dict[str, Any]) -> None:
    """Stages, the sum, and what was found."""
    print(package)
    whole = ("all", *(sum(each[at] for each in told["stages"]) for at in (1, 2)), max(e[3] for e in told["stages"]))
    for stage, seconds, busy, peak in (*told["stages"], whole):
        print(f"    {stage:60s} {seconds:7.1f} s {busy:7.1f} s of processors {peak / 2**30:6.2f} GiB")
    print(f"    {told['said']}", flush=True)


def work(one: str, package: Path, checkpoint: Path) -> dict[str, Any]:
    """Verify or diagnose in this process, watched."""
    watch = Watch()
    if one == "verify":
        from paritas.verify.run import verify

        said = str(verify(package, checkpoint, progress=watch.tell, runtimes=("onnxruntime",)).verdict)
    else:
        from paritas.diagnose.run import diagnose

        found = diagnose(package, checkpoint, watch.tell).diagnosis
        said = "; ".join(f"{c.suspect.code} at {c.suspect.where}: {c.proof.value}" for c in found.causes) or "no cause"
        said = f"{found.worst_floors:,.1f} floors; {said}"
    return watch.done() | {"said": said}


class Watch:
    """Times the stages that a progress names, and reads the memory meanwhile."""

    def __init__(self) -> None:
        self._stage, self._since = "imports", (time.perf_counter(), time.process_time())
        self._seconds: dict[str, tuple[float, float]] = {}
        self._peaks: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def tell(self, stage: str, done: int, total: int) -> None:
        """As a progress is told: what comes now, or how far it is."""
        stage = stage.partition(": ")[0]
        if stage != self._stage:
            self._close()
            self._stage = stage

    def done(self) -> dict[str, Any]:
        """Stages with their seconds, those of the processor, and peaks."""
        self._close()
        self._over.set()
        self._thread.join()
        return {"stages": [(stage, *both, self._peaks.get(stage, 0)) for stage, both in self._seconds.items()]}

    def _close(self) -> None:
        now = time.perf_counter(), time.process_time()
        before = self._seconds.get(self._stage, (0.0, 0.0))
        self._seconds[self._stage] = (before[0] + now[0] - self._since[0], before[1] + now[1] - self._since[1])
        self._since = now

    def _look(self) -> None:
        while not self._over.wait(PAUSE):
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
            self._peaks[self._stage] = max(self._peaks.get(self._stage, 0), resident)


if __name__ == "__main__":
    main()
