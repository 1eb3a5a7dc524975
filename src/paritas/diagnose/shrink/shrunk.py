"""What a search for a small model came to, in plain values."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritas.diagnose.diagnosis import Diagnosis, RegionError
from paritas.diagnose.shrink.search import Sizes, Tried

CHECKPOINT, PACKAGE, REPRO, ISSUE, SCRIPT = "checkpoint", "package", "repro", "ISSUE.md", "make_checkpoint.py"


@dataclass(frozen=True)
class Shrunk:
    """What came of it.

    Attributes:
        out: the folder.
        causes: codes that are shown still.
        sizes: of the small model.
        config: its config.json.
        diagnosis: of its package.
        region: the one that the reproducer holds; None if no region is wrong by itself.
        tried: every candidate.
        exhausted: whether the budget ended the search.
    """

    out: Path
    causes: tuple[str, ...]
    sizes: Sizes
    config: dict[str, Any]
    diagnosis: Diagnosis
    region: RegionError | None
    tried: tuple[Tried, ...]
    exhausted: bool

    def summary(self) -> dict[str, Any]:
        """What a command gives with ``--json``."""
        return {
            "out": str(self.out),
            "causes": list(self.causes),
            "sizes": dict(self.sizes),
            "config": self.config,
            "worst_floors": self.diagnosis.worst_floors,
            "region": None if self.region is None else self.region.region,
            "tried": [
                {"sizes": dict(each.sizes), "why_not": each.why_not, "seconds": round(each.seconds, 2)}
                for each in self.tried
            ],
            "exhausted": self.exhausted,
        }
