"""What became of published configurations at their real widths: rows in a JSON file, and the page made of them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HEAD = """# Depth check

Configurations of published models (`tests/configs`) as models of their real widths, every weight random and in bf16,
exported in fp32 and held against transformers in ONNX Runtime on the CPU, with the probes and the gate of every
export: worst difference in floors, up to 5 is `proven`. `tests/configs/PROVENANCE.md` says which configurations are
verbatim and which are put together from class defaults and published facts. A model has its full depth and vocabulary
where that fits into memory, else a vocabulary of 2,003 tokens, else also two layers of each kind, then one; then
fewer experts, then narrower MLPs. Every row says what was run. A configuration whose verdict is *not run* says why;
nothing is known of it here.

`python benchmarks/real_shapes.py --json FILE --markdown docs/reference/depth-check.md` writes this page, and goes on
where it was stopped. Seconds and peak memory are of one thread on a machine with other work: an order of magnitude.
"""
COLUMNS = ("config", "layers", "vocabulary", "widths", "target", "tokens", "verdict", "worst floors", "s", "peak GiB")
NOT_RUN = "not run"


@dataclass(frozen=True)
class Row:
    """One configuration on one target. ``run`` and ``of`` are what was run and what is published.

    Attributes:
        model: the configuration's folder.
        family: its model_type.
        target: where it was exported to.
        depth: layers published.
        vocabulary: tokens published.
        layers: layers run; 0 if nothing ran.
        tokens: of the vocabulary that was run.
        parameters: of the model that was run.
        widths: ``real``, or which is not.
        longest: tokens of the longest sequence asked.
        verdict: of every probe together; the error's code and fact if nothing was exported; or not run, and why.
        floors: the worst difference, and ``probe`` where.
        seconds: of the export and its proof.
        peak: bytes of the process.
    """

    model: str
    family: str
    target: str
    depth: int
    vocabulary: int
    layers: int = 0
    tokens: int = 0
    parameters: int = 0
    widths: str = ""
    longest: int = 0
    verdict: str = NOT_RUN
    floors: float | None = None
    probe: str | None = None
    seconds: float = 0.0
    peak: int = 0

    @property
    def ran(self) -> bool:
        """Whether there is anything to know of it."""
        return not self.verdict.startswith(NOT_RUN)

    def answers(self, asked: "Row") -> bool:
        """Whether nothing is left to ask: the same model ran on the same target, and was no smaller."""
        same = (self.model, self.target) == (asked.model, asked.target)
        return same and self.ran and self.parameters >= asked.parameters


def load(file: Path | None) -> list[Row]:
    """The rows that a file keeps; none if there is no file."""
    if file is None or not file.exists():
        return []
    return [Row(**each) for each in json.loads(file.read_text(encoding="utf-8"))]


def save(file: Path | None, rows: Iterable[Row]) -> None:
    """The rows, as one list; replaced as a whole, so that a run that is stopped leaves a file that can be read."""
    if file is None:
        return
    aside = file.with_suffix(".part")
    aside.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    aside.replace(file)


def joined(rows: Iterable[Row], new: Row) -> list[Row]:
    """The rows with a new one in the place of the same configuration's; what ran does not go for what did not."""
    kept = [row for row in rows if (row.model, row.target) != (new.model, new.target)]
    old = [row for row in rows if (row.model, row.target) == (new.model, new.target) and row.ran and not new.ran]
    return [*kept, *(old or [new])]


def page(rows: Sequence[Row]) -> str:
    """The page: counts, and a row a configuration and target."""
    ran = [row for row in rows if row.ran]
    proven = [row for row in ran if row.verdict == "proven"]
    whole = [row for row in proven if row.layers == row.depth]
    worst = max((row.floors for row in proven if row.floors is not None), default=0.0)
    counts = (
        f"{len({row.model for row in rows})} configurations of {len({row.family for row in rows})} model types. Of "
        f"{len(rows)} rows {len(ran)} ran and {len(proven)} are proven, {len(whole)} of them at full depth; the "
        f"worst of these is {worst:.2f} floors.\n"
    )
    table = [line(row) for row in sorted(rows, key=lambda row: (row.model.lower(), row.target))]
    return "\n".join([HEAD, counts, *header(), *table]) + "\n"


def header() -> list[str]:
    """The table's first two lines."""
    return [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]


def line(row: Row) -> str:
    """A row of the table."""
    if not row.ran:
        cells = [row.model, f"of {row.depth}", f"of {row.vocabulary:,}", "", row.target, "", row.verdict, "", "", ""]
        return f"| {' | '.join(cells)} |"
    tokens = "all" if row.tokens == row.vocabulary else f"{row.tokens:,} of {row.vocabulary:,}"
    layers = "all" if row.layers == row.depth else f"{row.layers} of {row.depth}"
    floors = "" if row.floors is None else f"{row.floors:.2f} ({row.probe})"
    cells = [row.model, layers, tokens, row.widths, row.target, str(row.longest), row.verdict, floors]
    return f"| {' | '.join([*cells, f'{row.seconds:.0f}', f'{row.peak / 2**30:.1f}'])} |"
