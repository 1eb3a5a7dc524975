"""What each family's support rests on: the record that tools/prove_families.py writes of the tests' checkpoints."""

import importlib.resources
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Proven:
    """A family on one target.

    Attributes:
        checkpoints: names of the tiny checkpoints.
        probes: probe -> worst difference over all of them, in floors.
    """

    checkpoints: tuple[str, ...]
    probes: Mapping[str, float]

    @property
    def worst(self) -> float:
        """Over every probe."""
        return max(self.probes.values())


@dataclass(frozen=True)
class Record:
    """All families.

    Attributes:
        versions: of what it was measured with.
        families: model_type -> target -> what was found.
    """

    versions: Mapping[str, str]
    families: Mapping[str, Mapping[str, Proven]]

    def summary(self) -> dict[str, Any]:
        """What a command gives with ``--json``."""
        return {
            name: {
                target: {"worst_floors": each.worst, "probes": dict(each.probes), "checkpoints": list(each.checkpoints)}
                for target, each in targets.items()
            }
            for name, targets in self.families.items()
        }


def proven() -> Record:
    """The record of this version."""
    values = json.loads(importlib.resources.files("paritas").joinpath("proven.json").read_text(encoding="utf-8"))
    return Record(
        versions=values["versions"],
        families={
            name: {target: Proven(tuple(each["checkpoints"]), each["probes"]) for target, each in targets.items()}
            for name, targets in values["families"].items()
        },
    )
