"""Every family in int4 and int8, on every target: proven against the weights that its packages store?

    python benchmarks/quantised_families.py [--only NAME ...] [--write]

A row a checkpoint of tests/tiny*.py (bf16, fully random), precision and target: the verdict of every probe together,
its worst difference in floors, and the mean Kullback-Leibler divergence, in nats, of the package as shipped from the
checkpoint: of random models it says that rounding happened and no more. --write puts the rows into
docs/reference/quantised-families.md; with --only, those of other checkpoints stay. Exits with 1 if one is not proven.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: tiny models gain nothing from a second thread
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import tiny
from paritas.checkpoint import open_checkpoint
from paritas.checkpoint.opening import text_only
from paritas.errors import Unsupported
from paritas.export import export
from paritas.plan import Options
from paritas.progress import silent
from paritas.quant.recipe import recipe
from paritas.runtime.package import open_package
from paritas.targets import TARGETS
from paritas.verify import run
from paritas.verify.rounded import truths_for

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "quantised-families.md"
DTYPES = ("int8", "int4")
SHARP = {"short", "decode", "greedy"}
HEAD = """# Quantised families

Every family's tiny checkpoints (`tests/tiny*.py`), exported in int8 and int4, and held against the dequantised weights
that the package stores, at the gate of an fp32 build: [precision](../explanation/precision.md) says how. The worst of
all probes is in floors, up to 5 is `proven`; KL is what rounding costs a random model, in nats. Target `onnx` has no
operators on integers and refuses both (`precision-unsupported`).
`python benchmarks/quantised_families.py --write` writes this page.
"""
TITLE = "| family | checkpoint | dtype | target | verdict | floors | KL |\n|---|---|---|---|---|---|---|\n"


@dataclass(frozen=True)
class Row:
    """One package; the numbers as they are shown."""

    family: str
    checkpoint: str
    dtype: str
    target: str
    verdict: str
    floors: str = ""
    kl: str = ""

    def __str__(self) -> str:
        return f"| {' | '.join(astuple(self))} |"

    @property
    def wrong(self) -> bool:
        """What a target refuses is no wrong package."""
        return self.verdict not in ("proven", "refused")


def rows(name: str, folder: Path) -> Iterator[Row]:
    """Of one checkpoint, which is made in ``folder``."""
    path = folder / "checkpoint"
    tiny.every()[name](path)
    family = str(text_only(open_checkpoint(path)).config["model_type"])
    for dtype in DTYPES:
        for target in TARGETS:
            out = folder / f"{dtype}-{target}"
            options = Options(text_only="multimodal" in name, recipe=recipe(dtype))
            try:
                export(path, out, TARGETS[target], options)
            except Unsupported as refusal:
                if refusal.code != "precision-unsupported":
                    raise
                yield Row(family, name, dtype, target, "refused")
            else:
                yield Row(family, name, dtype, target, *judged(out, path))


def judged(package: Path, checkpoint: Path) -> tuple[str, str, str]:
    """Verdict, worst floors, mean KL. It is no proof where a probe that sees most was not put."""
    opened = open_package(package)
    truths = truths_for(opened, open_checkpoint(checkpoint), silent, cache=True, power=False)
    evidence = run.judge(opened, truths, ("onnxruntime",))
    asked = {record.id for record in evidence.probes if record.worst_floors is not None}
    verdict = evidence.verdict.value if asked >= SHARP else f"{evidence.verdict.value}, without {SHARP - asked}"
    parts = {part.part: part.kl for part in evidence.precision.quality} if evidence.precision else {}
    kl = f"{parts['package']:.2g}" if "package" in parts else ""
    return verdict, f"{evidence.worst_floors:.2f}" if evidence.worst_floors is not None else "", kl


def written(found: Mapping[str, Sequence[Row]], *, keep: bool) -> None:
    """The page with these rows, in the order of the checkpoints."""
    shown = dict(_read()) if keep else {}
    shown |= {name: [str(row) for row in each] for name, each in found.items()}
    lines = [line for name in tiny.every() for line in shown.get(name, ())]
    PAGE.write_text(f"{HEAD}\n{TITLE}" + "\n".join(lines) + "\n", encoding="utf-8")


def _read() -> Mapping[str, list[str]]:
    """Checkpoint -> its rows on the page as it is."""
    kept: dict[str, list[str]] = {}
    lines = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []
    for line in lines:
        if line.startswith("| ") and (name := line.split(" | ")[1]) in tiny.every():
            kept.setdefault(name, []).append(line)
    return kept


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(tiny.every()), help="these checkpoints alone")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    found: dict[str, list[Row]] = {}
    print(TITLE, end="", flush=True)
    for name in given.only or tiny.every():
        with tempfile.TemporaryDirectory() as folder:
            os.environ["PARITAS_CACHE"] = folder  # what the reference says of the checkpoint is asked once for all rows
            found[name] = []
            for row in rows(name, Path(folder)):
                found[name].append(row)
                print(row, flush=True)
    if given.write:
        written(found, keep=bool(given.only))
    if wrong := [f"{row.checkpoint} in {row.dtype}" for each in found.values() for row in each if row.wrong]:
        raise SystemExit(f"not proven: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
