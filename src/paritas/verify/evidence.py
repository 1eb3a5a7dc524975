"""The machine-readable record of a verification, from which it can be repeated."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from paritas.errors import Exit
from paritas.verify.verdict import EXITS, Verdict

SCHEMA_VERSION = 2
FILE = "evidence/evidence.json"
Severity = Literal["error", "warning", "note"]


def _compact(value: float) -> float | str:
    """Three significant digits; what JSON has no number for is a word."""
    if math.isfinite(value):
        return float(f"{value:.3g}")
    return "nan" if math.isnan(value) else "infinite"


def _number(value: Any) -> Any:
    return {"nan": math.nan, "infinite": math.inf}.get(value, value) if isinstance(value, str) else value


Compact = Annotated[
    float,
    BeforeValidator(_number),
    PlainSerializer(_compact, return_type=float | Literal["nan", "infinite"], when_used="json"),
]


class Record(BaseModel):
    """What all parts have in common: nothing changes afterwards, nothing unknown is let in."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Environment(Record):
    """What it ran on."""

    python: str
    platform: str
    cpu: str
    torch: str
    transformers: str
    onnxruntime: str
    onnxruntime_genai: str | None = Field(description="None if it is not installed")


class CheckpointRecord(Record):
    """The checkpoint that the package was held against."""

    name: str = Field(description="base name of the folder or file")
    reference: str = Field(description="transformers' class")
    sha256: str = Field(description="over the names and contents of config.json and the tensor files, by name")


class FileRecord(Record):
    """One file of the package."""

    name: str
    sha256: str


class Settings(Record):
    """How the reference was run."""

    dtype: str = "float32"
    attention: str = "eager"
    repetition_penalty: float = 1.0
    seed: int | None = Field(description="of random ids; None if a tokenizer gave them")
    ids: str = Field(description="where the token ids come from")
    refused: dict[str, str] = Field(description="variants that the reference cannot do, and why")
    remembered: bool = Field(default=False, description="whether its answers come out of the cache")


class VariantRecord(Record):
    """One variant's difference from the reference; null where it does not reach."""

    name: str
    differences: tuple[Compact | None, ...]


class SequenceRecord(Record):
    """One sequence that was put to both."""

    name: str
    ids: tuple[int, ...]
    prefill: int
    stop: int
    prompt: int
    greedy: tuple[int, ...]
    floors: tuple[Compact, ...]
    variants: tuple[VariantRecord, ...]


class Where(Record):
    """A single logit."""

    sequence: str
    position: int
    vocab_id: int


class Alike(Record):
    """What people know of two rows of logits. It judges nothing: a wrong epsilon passes all of it."""

    cosine: float = Field(description="mean over the positions, seven decimals")
    least_cosine: float = Field(description="at the position where it is least, seven decimals")
    same_best: int = Field(description="positions whose best token is the same")
    positions: int


class TokenCount(Record):
    """Greedy tokens beside the reference's."""

    identical: int
    near_ties: int
    different: int


class Differences(Record):
    """Per position, of one sequence under one probe."""

    sequence: str
    differences: tuple[Compact, ...]
    floors: tuple[Compact, ...] = Field(default=(), description="where they are not the sequence's: keys and values")


class Choices(Record):
    """The package's greedy tokens after one prompt, each given the reference's tokens before it."""

    sequence: str
    tokens: tuple[int, ...] = Field(description="beside `greedy` of the sequence")
    gaps: tuple[Compact, ...] = Field(description="between the reference's two best logits there")
    near_ties: tuple[int, ...] = Field(description="indices of the tokens that differ and are near ties")


class ProbeRecord(Record):
    """What one probe found in one runtime."""

    id: str
    runtime: str
    boundary: str
    verdict: Verdict
    reason: str | None = Field(default=None, description="why it was not tested, or is invalid")
    worst_floors: Compact | None = None
    difference: Compact | None = Field(default=None, description="at the worst place, in logits")
    floor: Compact | None = Field(default=None, description="at the worst place, in logits")
    where: Where | None = None
    first_bad: Where | None = Field(default=None, description="first position beyond the gate")
    tokens: TokenCount | None = None
    alike: Alike | None = None
    choices: tuple[Choices, ...] = ()
    differences: tuple[Differences, ...] = ()
    seconds: Compact = 0.0


class PowerRecord(Record):
    """What a fault in the reference itself would have shown."""

    fault: str
    probe: str
    floors: Compact


class Finding(Record):
    """One fact about the package."""

    code: str
    severity: Severity
    where: str
    message: str
    remedy: str = ""


class MatrixRecord(Record):
    """One weight of integers."""

    stored: str = Field(description="name of its integers' initializer")
    parameters: tuple[str, ...] = Field(description="of transformers, whose rows it has; empty if it is near none")
    format: str
    error: Compact | None = Field(default=None, description="relative distance (L2) from the checkpoint's values")
    steps: Compact | None = Field(default=None, description="worst distance from the nearest value that its grid has")
    fault: str | None = Field(default=None, description="why it cannot be the checkpoint's weight, quantised")


class QualityRecord(Record):
    """What one part of the rounding does to the logits; no gate."""

    part: str = Field(description="graph, weights, activations, package")
    compared: str
    positions: int
    difference: Compact = Field(description="largest, in logits")
    kl: Compact = Field(description="mean Kullback-Leibler divergence a position, in nats")
    kl_error: Compact = Field(description="standard error of that mean")
    kl_p99: Compact
    kl_max: Compact
    top1: Compact = Field(description="share of positions with the same best token")
    flips: int = Field(description="positions with another best token, near ties not counted")
    perplexity: Compact = Field(description="ratio on the tokens that were fed")


class PrecisionRecord(Record):
    """In which precision the package stores and computes, and what it was therefore held against."""

    formats: dict[str, int] = Field(description="format -> how many parameters or weights are stored so")
    arithmetic: tuple[str, ...] = Field(description="what it rounds activations to; empty for fp32")
    compared: str
    verdict: Verdict | None = Field(description="of the stored weights alone; None where they are not looked at")
    reason: str | None = None
    matrices: tuple[MatrixRecord, ...] = ()
    floats: dict[str, tuple[str, ...]] = Field(default={}, description="dtype -> parameters that are stored in it")
    offsets: dict[str, str] = Field(default={}, description="norm -> dtype to which its 1 + weight was rounded")
    missing: tuple[str, ...] = Field(default=(), description="matrices of the checkpoint that are found nowhere")
    quality: tuple[QualityRecord, ...] = ()


class Lengths(Record):
    """Lengths, in tokens, at which the model changes."""

    windows: tuple[int, ...] = Field(description="sliding windows, ascending")
    switches: tuple[int, ...] = Field(description="beyond which RoPE rotates otherwise, ascending")
    positions: int | None = Field(description="that the model was made for; None if it does not say")


class Evidence(Record):
    """A whole verification."""

    schema_version: Literal[2] = SCHEMA_VERSION
    created: str = Field(description="UTC, ISO 8601")
    paritas: str
    environment: Environment
    checkpoint: CheckpointRecord
    package: tuple[FileRecord, ...]
    settings: Settings
    lengths: Lengths | None = Field(default=None, description="None in a record that is older than this field")
    precision: PrecisionRecord | None = Field(default=None, description="None in a record that is older than it")
    sequences: tuple[SequenceRecord, ...]
    probes: tuple[ProbeRecord, ...]
    findings: tuple[Finding, ...]
    signatures: dict[str, str] = Field(description="runtime -> what the first bad position points to")
    power: tuple[PowerRecord, ...] = Field(description="faults that were put into the reference, in floors")
    blind: tuple[str, ...] = Field(description="where no probe looked")
    verdict: Verdict
    worst_floors: Compact | None = Field(description="over all probes; None if nothing was measured")

    @property
    def exit_code(self) -> Exit:
        """Of a command that ends with this evidence."""
        return EXITS[self.verdict]

    def summary(self) -> dict[str, Any]:
        """What a command gives with ``--json``: everything but the ids and the numbers of every position."""
        return self.model_dump(
            mode="json", exclude={"sequences": True, "probes": {"__all__": {"choices", "differences"}}}
        )

    def write(self, folder: Path) -> Path:
        """Write ``evidence/evidence.json`` under ``folder``, and give its path."""
        path = folder / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json() + "\n", encoding="utf-8")
        return path

    def to_json(self) -> str:
        """JSON with a line for each probe, sequence and finding, to be read and compared by lines."""
        values = self.model_dump(mode="json")
        lines = (f"{json.dumps(key)}: {_lines(value)}" for key, value in values.items())
        return "{\n" + ",\n".join(lines) + "\n}"


def _lines(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in cast(list[Any], value)) + "\n]"
    return json.dumps(value, ensure_ascii=False)


def read(path: Path) -> Evidence:
    """The evidence in a file that :meth:`Evidence.write` wrote."""
    return Evidence.model_validate_json(path.read_bytes())


def json_schema() -> dict[str, Any]:
    """JSON Schema of ``evidence.json``."""
    return Evidence.model_json_schema(mode="serialization")
