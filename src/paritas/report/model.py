"""What a report says: a list of sections, each with its own data. The page and the JSON are both written from this.

A new kind of section is a class here with its own ``kind``, and a template of that name.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from paritas.verify.evidence import (
    CheckpointRecord,
    Compact,
    Environment,
    FileRecord,
    PrecisionRecord,
    Record,
    Settings,
    Severity,
    TokenCount,
    Where,
)
from paritas.verify.verdict import Verdict

SCHEMA_VERSION = 1


class ReportedFinding(Record):
    """One fact about the package."""

    source: Literal["audit", "verify"]
    severity: Severity
    code: str
    where: str
    message: str
    remedy: str


class Triage(Record):
    """The answer, and what a person should do next."""

    kind: Literal["triage"] = "triage"
    title: str = "What to do next"
    steps: tuple[str, ...] = Field(description="in the order in which they should be done")
    signatures: dict[str, str] = Field(description="runtime -> what the first bad position points to")
    findings: tuple[ReportedFinding, ...] = Field(description="errors first, those of the audit before the others")


class Row(Record):
    """One strip of the heatmap: a sequence under one probe in one runtime, or a half of the caches."""

    probe: str
    runtime: str
    label: str
    log10: tuple[Compact | None, ...] = Field(
        description="log10(difference / floor) of each cell, the greatest of its positions; null where nothing differs"
    )
    steps_from: int | None = Field(description="the first position that was decoded step by step")
    worst: Compact = Field(description="in floors")
    worst_at: int = Field(description="position, or layer")
    first_bad: int | None = Field(description="the first position, or layer, beyond the gate")


class Mark(Record):
    """A length at which the model changes."""

    position: int = Field(description="the first position beyond it")
    text: str


class Panel(Record):
    """Strips over one axis."""

    title: str
    axis: Literal["position", "layer"]
    length: int = Field(description="positions, or layers")
    cell: int = Field(description="positions in a cell")
    marks: tuple[Mark, ...]
    rows: tuple[Row, ...]


class Heatmap(Record):
    """Where the differences are."""

    kind: Literal["heatmap"] = "heatmap"
    title: str = "Where it differs"
    panels: tuple[Panel, ...]


class ProbeRow(Record):
    """What one probe found in one runtime."""

    id: str
    runtime: str
    boundary: str
    verdict: Verdict
    reason: str | None
    worst_floors: Compact | None
    difference: Compact | None
    floor: Compact | None
    where: Where | None
    first_bad: Where | None
    tokens: TokenCount | None
    seconds: Compact


class Probes(Record):
    """Every probe in every runtime."""

    kind: Literal["probes"] = "probes"
    title: str = "Probes"
    rows: tuple[ProbeRow, ...]


class Choice(Record):
    """The token that a runtime would have chosen."""

    runtime: str
    id: int
    text: str
    difference: Compact = Field(description="of the logits there, in logits")
    state: Literal["identical", "near tie", "different"]


class Token(Record):
    """One greedy token of the reference, and what the package would have chosen."""

    position: int = Field(description="of the logits that choose it")
    id: int
    text: str
    gap: Compact = Field(description="between the reference's two best logits")
    floor: Compact
    choices: tuple[Choice, ...]


class Prompt(Record):
    """Greedy tokens after one prompt."""

    sequence: str
    text: str = Field(description="the prompt; empty without a tokenizer")
    tokens: tuple[Token, ...]


class Tokens(Record):
    """Greedy tokens beside the reference's."""

    kind: Literal["tokens"] = "tokens"
    title: str = "Tokens"
    prompts: tuple[Prompt, ...]


class Census(Record):
    """One way in which initializers come from the checkpoint."""

    transform: str
    initializers: int
    bytes: int


class Initializer(Record):
    """Where one initializer comes from."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    tensors: tuple[str, ...]
    transforms: tuple[str, ...]


class Weights(Record):
    """Where the weights come from, by value."""

    kind: Literal["weights"] = "weights"
    title: str = "Weights"
    reason: str | None = Field(default=None, description="why there was no audit")
    census: tuple[Census, ...] = ()
    unused: tuple[str, ...] = Field(default=(), description="checkpoint tensors that no initializer is made of")
    initializers: tuple[Initializer, ...] = ()
    seconds: Compact = Field(default=0.0, description="that the audit took")


class Precision(Record):
    """In which precision the package stores and computes, and what that costs."""

    kind: Literal["precision"] = "precision"
    title: str = "Precision"
    record: PrecisionRecord


class Fault(Record):
    """What a fault in the reference itself would have shown."""

    fault: str
    floors: dict[str, Compact] = Field(description="probe -> the greatest difference")
    most: Compact
    seen: bool = Field(description="whether a probe that was measured would have been beyond the gate")


class Power(Record):
    """What the run could have seen, and what it could not."""

    kind: Literal["power"] = "power"
    title: str = "What this run could see"
    faults: tuple[Fault, ...] = Field(description="the faintest first; empty with --no-power")
    blind: tuple[str, ...] = Field(description="where no probe looked")


class ProvedCause(Record):
    """One cause of the divergence."""

    code: str
    where: str
    message: str
    explanation: str
    references: tuple[str, ...] = Field(description="public reports of the same fault")
    proof: str = Field(description="proved; repaired, not reproduced; reproduced, not repaired; not proved")


class LadderStep(Record):
    """One experiment on the whole model."""

    words: str
    floors: Compact = Field(description="worst difference with it")
    mark: str = Field(description="what that says; empty for most")


class Region(Record):
    """One region of the package beside the reference's module."""

    region: str
    layer: int | None
    phase: str = Field(description="prefill or decode")
    operator: str
    local: Compact | None = Field(description="relative error when it is fed with the reference's own tensors")
    accumulated: Compact = Field(description="relative error in the whole package")
    unit: Compact = Field(description="what rounding explains")
    source: bool = Field(description="wrong by itself")


class Diagnosis(Record):
    """Why the package diverges."""

    kind: Literal["diagnosis"] = "diagnosis"
    title: str = "Why it diverges"
    headline: str
    causes: tuple[ProvedCause, ...]
    ladder: tuple[LadderStep, ...]
    tokens: int = Field(description="of the sequence on which the regions were compared")
    regions: tuple[Region, ...] = Field(description="in the order of the computation")
    remarks: tuple[str, ...] = Field(description="on fused operators, settings of the runtime, missing modules")


class Surroundings(Record):
    """What it ran on, and what was compared."""

    kind: Literal["environment"] = "environment"
    title: str = "Environment"
    environment: Environment
    settings: Settings | None = Field(description="null if there was no verification")
    checkpoint: CheckpointRecord | None = Field(description="null if there was no verification")
    package: tuple[FileRecord, ...]


Section = Annotated[
    Triage | Diagnosis | Heatmap | Probes | Tokens | Precision | Weights | Power | Surroundings,
    Field(discriminator="kind"),
]


class Report(Record):
    """A whole report."""

    schema_version: Literal[1] = SCHEMA_VERSION
    created: str = Field(description="UTC, ISO 8601")
    paritas: str
    package: str
    checkpoint: str
    verdict: Verdict | None = Field(description="null if there was no verification")
    worst_floors: Compact | None = Field(description="over all probes; null if nothing was measured")
    headline: str = Field(description="the answer in a line")
    exit_code: int = Field(description="of the command that wrote this")
    sections: tuple[Section, ...]


def json_schema() -> dict[str, Any]:
    """JSON Schema of ``report.json``."""
    return Report.model_json_schema(mode="serialization")
