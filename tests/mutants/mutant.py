"""What a mutant and a control are: plain values, from which making.py makes a package."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import onnx
import pytest

Fault = Callable[[pytest.MonkeyPatch], None]
Change = Callable[[onnx.ModelProto], None]


class Topic(StrEnum):
    """What a fault is about; rows of the table of results."""

    ROPE = "RoPE and positions"
    MASK = "masks and windows"
    ATTENTION = "attention"
    NORM = "norms"
    MLP = "activation and MLP"
    NUMBER = "multipliers and caps"
    WEIGHT = "weights"
    EXPERTS = "mixture of experts"
    STATE = "caches and states"
    PAIR = "two faults at once"
    PRECISION = "fp16, int8 and int4 builds"


@dataclass(frozen=True)
class Mutant:
    """One fault in one package.

    Attributes:
        kind: the fault, in words; the same words on several architectures are one kind.
        topic: what it is about.
        checkpoint: name of a tiny checkpoint, or of one that is kept with other exporters' packages.
        source: ``ort`` or ``onnx``, whose export is broken; or an exporter, whose kept package is.
        module: where it acts, a regular expression over the reference's words behind ``model.layers.N.``
            (``self_attn[attention]``), or over the whole of them outside of layers (``model.norm``).
        layers: numbers of the layers where it acts; None for all of them, or for what is in no layer.
        fault: put into the export while it runs.
        graph: done to the finished graph.
        drop: tensors that the faulty export leaves unused.
        rounded: how the package is rounded, if it is one of less than fp32; before ``graph``.
        blind: written without knowing what a diagnosis can name.
        seen: a public issue with the same fault.
    """

    kind: str
    topic: Topic
    checkpoint: str
    source: str
    module: str
    layers: tuple[int, ...] | None = None
    fault: Fault | None = None
    graph: Change | None = None
    drop: tuple[str, ...] = ()
    rounded: Change | None = None
    blind: bool = False
    seen: str = ""

    @property
    def name(self) -> str:
        """Unique."""
        return f"{self.kind} ({self.checkpoint}, {self.source})"


@dataclass(frozen=True)
class Control:
    """A package that is right, however unusual.

    Attributes:
        what: makes it unusual.
        checkpoint, source: as of a mutant.
        graph: what is done to the graph without changing what it computes.
        rounded: how it is rounded, if it is of less than fp32, and not by its own exporter.
        dtype: that our export is asked for.
    """

    what: str
    checkpoint: str
    source: str
    graph: Change | None = None
    rounded: Change | None = None
    dtype: str = "fp32"

    @property
    def is_clean(self) -> bool:
        """Whether it is what an exporter wrote: then nothing in it may look like a fault, in whichever place."""
        return self.graph is None

    @property
    def name(self) -> str:
        """Unique."""
        return f"{self.what} ({self.checkpoint}, {self.source})"
