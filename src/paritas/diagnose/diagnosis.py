"""What a diagnosis says, in plain frozen values: no torch, no graph."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from paritas.verify.verdict import PROVEN_FLOORS


@dataclass(frozen=True)
class RegionError:
    """One region of the package beside the reference's module.

    Attributes:
        region: the reference's word: ``model.layers.0.input_layernorm``, ``model.layers.0.self_attn[rope..softmax]``.
        layer: its number; None for what belongs to no layer.
        operator: ONNX's word for what computes it in the package.
        value: the package's value that is compared.
        accumulated: relative difference (L2) of the value in the whole package.
        local: the same when the region is fed with the reference's own tensors; None if it cannot be fed.
        unit: what rounding of the region's own arithmetic explains.
        confidence: of the alignment, 0 to 1; 1 is by weight identity.
        phase: ``prefill`` or ``decode``.
    """

    region: str
    layer: int | None
    operator: str
    value: str
    accumulated: float
    local: float | None
    unit: float
    confidence: float = 1.0
    phase: str = "prefill"

    @property
    def is_source(self) -> bool:
        """Wrong by itself: its inputs are exact and its output is not."""
        return self.local is not None and self.local > self.unit


@dataclass(frozen=True)
class Suspect:
    """One parameter of which package and reference have different values.

    Attributes:
        code: of the kind of fault, stable, kebab-case.
        where: module, layers, tensor or operator, for people.
        message: the fact with both values.
        explanation: how exporters come to it.
        references: public issues with the same fault.
    """

    code: str
    where: str
    message: str
    explanation: str = ""
    references: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One change or set of changes, tried on the whole model.

    Attributes:
        change: in words.
        side: ``package`` (repaired, against the clean reference) or ``reference`` (broken, against the package).
        codes: of the suspects that it changes.
        before: worst difference in floors without it.
        after: worst difference in floors with it.
        seconds: it took.
    """

    change: str
    side: str
    codes: tuple[str, ...]
    before: float
    after: float
    seconds: float = 0.0


class Proof(StrEnum):
    """How far a cause is proved."""

    PROVED = "proved"  # both ways, and no smaller set does
    REPAIRED = "repaired, not reproduced"
    REPRODUCED = "reproduced, not repaired"
    NOT_PROVED = "not proved"


@dataclass(frozen=True)
class Cause:
    """A suspect that the experiments confirm."""

    suspect: Suspect
    proof: Proof


@dataclass(frozen=True)
class Whereabouts:
    """Where the package parts from the reference, without a word of why.

    Attributes:
        tokens: of the sequence that was looked at, the shortest beginning of a failing one that fails itself.
        regions: local beside accumulated error, in the order of the computation.
        depth: layer -> largest difference of a logit, were the residual stream led into the head behind it.
        fused: what the operators that are wrong compute, beside what they are documented to compute, in words.
        missing: modules of the reference that own weights and have no counterpart in the graph.
        unexplained: initializers and nodes of the graph that nothing in the reference explains.
    """

    tokens: int
    regions: tuple[RegionError, ...]
    depth: Mapping[int, float]
    fused: tuple[str, ...]
    missing: tuple[str, ...]
    unexplained: tuple[str, ...]

    @property
    def sources(self) -> tuple[RegionError, ...]:
        """Regions that are wrong by themselves."""
        return tuple(region for region in self.regions if region.is_source)


@dataclass(frozen=True)
class Truncated:
    """A package that the exporter made of the checkpoint's first layers alone.

    Attributes:
        layers: how many.
        floors: worst difference from transformers on the same layers, in floors; None if there is none.
        refused: why there is none.
    """

    layers: int
    floors: float | None
    refused: str = ""

    @property
    def diverges(self) -> bool:
        """Whether that is no rounding."""
        return self.floors is not None and self.floors > PROVEN_FLOORS


@dataclass(frozen=True)
class Truncation:
    """From which depth on an exporter's packages diverge.

    Attributes:
        exporter: its command, as a person types it.
        tried: depths, the shallowest first.
        first: the least depth that diverges; None if none does, or none could be tried.
        refused: why none could be tried.
    """

    exporter: str
    tried: tuple[Truncated, ...]
    first: int | None
    refused: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All of it.

    Attributes:
        package: its path.
        checkpoint: its name.
        worst_floors: worst difference of the package, in floors, over the witnesses.
        witnesses: sequences that the experiments were made on.
        causes: the smallest set that explains everything; empty if nothing is proved.
        suspects: every parameter that differs, the causes among them.
        experiments: in the order in which they were made.
        where: local beside accumulated error, by depth, inside of operators; None if nothing diverges, or nothing but
            padded rows.
        runtime: settings of the runtime with which the difference vanishes; only asked if no cause is proved.
        seconds: by stage.
        truncation: the exporter on fewer and fewer layers; None if it was not asked.
    """

    package: str
    checkpoint: str
    worst_floors: float
    witnesses: tuple[str, ...]
    causes: tuple[Cause, ...]
    suspects: tuple[Suspect, ...]
    experiments: tuple[Experiment, ...]
    where: Whereabouts | None
    runtime: tuple[str, ...]
    seconds: Mapping[str, float]
    truncation: Truncation | None = None

    @property
    def diverges(self) -> bool:
        """Whether there was anything to diagnose."""
        return self.worst_floors > PROVEN_FLOORS or bool(self.causes)

    @property
    def is_proved(self) -> bool:
        """Whether the causes are proved both ways."""
        return bool(self.causes) and all(cause.proof is Proof.PROVED for cause in self.causes)

    @property
    def smallest(self) -> str | None:
        """The first region that is wrong by itself: the smallest that fails, where no cause is proved."""
        sources = self.where.sources if self.where else ()
        return sources[0].region if sources else None

    def summary(self) -> dict[str, Any]:
        """What a command gives with ``--json``."""
        return {
            "package": self.package,
            "checkpoint": self.checkpoint,
            "diverges": self.diverges,
            "proved": self.is_proved,
            "worst_floors": self.worst_floors,
            "causes": [
                {**asdict(cause.suspect), "proof": cause.proof, "proved": cause.proof is Proof.PROVED}
                for cause in self.causes
            ],
            "suspects": [asdict(suspect) for suspect in self.suspects],
            "experiments": [asdict(experiment) for experiment in self.experiments],
            "where": None if self.where is None else asdict(self.where),
            "smallest": self.smallest,
            "truncation": None if self.truncation is None else asdict(self.truncation),
            "runtime": list(self.runtime),
            "witnesses": list(self.witnesses),
            "seconds": {stage: round(seconds, 2) for stage, seconds in self.seconds.items()},
        }
