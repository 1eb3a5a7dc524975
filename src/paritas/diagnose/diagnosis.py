"""What a diagnosis says, in plain frozen values: no torch, no graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


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
        regions: local beside accumulated error, in the order of the computation.
        smallest: the smallest failing region, where no cause is proved.
        seconds: by stage.
    """

    package: str
    checkpoint: str
    worst_floors: float
    witnesses: tuple[str, ...]
    causes: tuple[Cause, ...]
    suspects: tuple[Suspect, ...]
    experiments: tuple[Experiment, ...]
    regions: tuple[RegionError, ...]
    smallest: str | None
    seconds: Mapping[str, float]

    @property
    def is_proved(self) -> bool:
        """Whether the causes are proved both ways."""
        return bool(self.causes) and all(cause.proof is Proof.PROVED for cause in self.causes)
