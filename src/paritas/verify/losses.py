"""The precision section of a verification on a terminal: what was compared with what, and what rounding costs."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from paritas.verify.evidence import PrecisionRecord
from paritas.verify.verdict import Verdict


def render(precision: PrecisionRecord) -> Iterator[RenderableType]:
    """Nothing for a package that stores and computes in fp32."""
    if precision.verdict is None:
        return
    formats = ", ".join(f"{count} in {name}" for name, count in precision.formats.items())
    arithmetic = ", ".join(precision.arithmetic) or "fp32"
    yield Text.assemble(("precision: ", "bold"), f"{formats}; arithmetic as shipped: {arithmetic}")
    yield Text.assemble(("compared with: ", "bold"), precision.compared)
    if precision.verdict is not Verdict.PROVEN:
        yield Text.assemble(("stored weights: ", "bold"), (f"{precision.verdict}: {precision.reason}", "red"))
    if precision.quality:
        yield _table(precision)


def _table(precision: PrecisionRecord) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("what it costs, no gate", no_wrap=True)
    for name in ("difference", "mean KL", "p99 KL", "same best", "flips", "perplexity"):
        table.add_column(name, justify="right", no_wrap=True)
    for part in precision.quality:
        table.add_row(
            _WORDS.get(part.part, part.part),
            f"{part.difference:.1e}",
            f"{part.kl:.1e} ± {part.kl_error:.0e}",
            f"{part.kl_p99:.1e}",
            f"{100 * part.top1:.1f} %",
            f"{part.flips} of {part.positions}",
            f"x {part.perplexity:.4f}",
        )
    return table


_WORDS = {
    "graph": "graph",
    "weights": "rounding of weights",
    "activations": "rounding of activations",
    "package": "altogether, as shipped",
}
