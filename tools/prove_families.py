"""Prove every family on its tiny checkpoints, on every target, and write what `paritas families` shows.

    python tools/prove_families.py [--only MODEL_TYPE ...] [--jobs 2]

Writes src/paritas/proven.json: for each model_type and target the worst difference of every probe, in floors,
over all of its checkpoints (tests/tiny*.py). Nothing is written if one is not proven. With --only, what is known of the
other families stays.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "src" / "paritas" / "proven.json"
PACKAGES = ("transformers", "torch", "onnxruntime")


@dataclass(frozen=True)
class Proof:
    """One checkpoint on one target."""

    model_type: str
    checkpoint: str
    target: str
    verdict: str
    probes: dict[str, float]


def main() -> None:
    """Prove, print a line each, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="MODEL_TYPE", help="prove these families alone")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(ROOT / "tests"))
    import tiny

    if unknown := [each for each in given.only or () if not tiny.of_family(each)]:
        raise SystemExit(f"no checkpoint in tests/tiny*.py begins with {', '.join(unknown)}")
    names = [name for each in given.only for name in tiny.of_family(each)] if given.only else list(tiny.every())
    others = known() if given.only else {}
    proofs: list[Proof] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for found in pool.map(prove, names):
            for proof in found:
                worst = max(proof.probes.values())
                print(f"{proof.checkpoint:28s} {proof.target:5s} {proof.verdict:12s} {worst:6.2f} floors", flush=True)
            proofs += found
    wrong = [f"{each.checkpoint} on {each.target}" for each in proofs if each.verdict != "proven"]
    if wrong:
        raise SystemExit(f"not proven: {', '.join(wrong)}")
    told = {"versions": versions(), "families": dict(sorted((others | record(proofs)).items()))}
    OUT.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Of what is measured with."""
    return {name: version(name).partition("+")[0] for name in PACKAGES}


def known() -> dict[str, Any]:
    """The record's families; it has to be of the versions that are here."""
    told = json.loads(OUT.read_text(encoding="utf-8"))
    if told["versions"] != versions():
        raise SystemExit(f"the record is of {told['versions']}, here is {versions()}: prove every family")
    return dict(told["families"])


def prove(name: str) -> list[Proof]:
    """A checkpoint on every target that it can be written for, in the raw session."""
    sys.path.insert(0, str(ROOT / "tests"))
    import tiny
    from paritas.checkpoint import open_checkpoint
    from paritas.targets import TARGETS
    from paritas.verify.truth import find_truths

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        tiny.every()[name](path)
        truths = find_truths(open_checkpoint(path), power=False)
        return [each for target in TARGETS for each in _on(target, name, path, truths)]


def _on(target: str, name: str, path: Path, truths: Any) -> Iterator[Proof]:
    from paritas.checkpoint import open_checkpoint
    from paritas.checkpoint.opening import text_only
    from paritas.export import export
    from paritas.plan import Options
    from paritas.runtime.package import open_package
    from paritas.targets import TARGETS
    from paritas.verify import run

    out = path.with_name(target)
    export(path, out, TARGETS[target], Options(text_only="multimodal" in name))
    evidence = run.judge(open_package(out), truths, ("onnxruntime",))
    worst: dict[str, float] = {}
    for probe in evidence.probes:
        if probe.worst_floors is not None:
            worst[probe.id] = max(worst.get(probe.id, 0.0), round(probe.worst_floors, 2))
    model_type = str(text_only(open_checkpoint(path)).config["model_type"])
    yield Proof(model_type, name, target, evidence.verdict.value, worst)


def record(proofs: list[Proof]) -> dict[str, Any]:
    """The worst of every probe of each family and target."""
    together: dict[str, dict[str, list[Proof]]] = defaultdict(lambda: defaultdict(list))
    for proof in proofs:
        together[proof.model_type][proof.target].append(proof)
    return {
        family: {
            target: {
                "checkpoints": [each.checkpoint for each in found],
                "probes": {
                    probe: max(each.probes.get(probe, 0.0) for each in found)
                    for probe in sorted({probe for each in found for probe in each.probes})
                },
            }
            for target, found in targets.items()
        }
        for family, targets in together.items()
    }


if __name__ == "__main__":
    main()
