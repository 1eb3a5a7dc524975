"""Reports to look at: of a right package, a wrong one, and one that cannot be compared; each made once."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import onnx
import pytest

from paritas.audit.run import audit
from paritas.checkpoint import open_checkpoint
from paritas.diagnose.run import diagnose
from paritas.export import export
from paritas.report.build import of_verification
from paritas.report.model import Report, Section
from paritas.report.words import words_of
from paritas.targets import TARGETS
from paritas.verify.evidence import Evidence
from test_mutants import MUTANTS

KIND, FAULT = "gemma3", "local layers inherit the global factor"
KINDS = ("right", "wrong", "invalid")
T = TypeVar("T", bound=Section)


@dataclass(frozen=True)
class Reported:
    """A package, what a verification found, and the report of it."""

    package: Path
    evidence: Evidence
    report: Report

    def section(self, kind: type[T]) -> T:
        """The only section of a kind."""
        (found,) = (section for section in self.report.sections if isinstance(section, kind))
        return found


Reports = Callable[[str], Reported]


def reports_in(folder: Path, checkpoint: Callable[[str], Path], judge: Callable[..., Evidence]) -> Reports:
    """``reports(kind)``, for each of :data:`KINDS`."""
    make = {"right": _right, "wrong": _wrong, "invalid": _invalid}

    @cache
    def reported(kind: str) -> Reported:
        package = folder / kind
        make[kind](checkpoint(KIND), package)
        evidence = judge(KIND, package, "onnxruntime", "onnxruntime-genai")
        words = words_of(open_checkpoint(checkpoint(KIND)).tokenizer_files)
        diagnosis = diagnose(package, checkpoint(KIND)).diagnosis if kind == "wrong" else None
        report = of_verification(evidence, kind, audit(package, checkpoint(KIND)), words, diagnosis)
        return Reported(package, evidence, report)

    return reported


def _right(model: Path, out: Path) -> None:
    export(model, out, TARGETS["onnx"])


def _wrong(model: Path, out: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[FAULT].fault(patch)
        export(model, out, TARGETS["ort"])


def _invalid(model: Path, out: Path) -> None:
    """The logits of the last position alone."""
    _right(model, out)
    shutil.rmtree(out / "evidence")
    graph = onnx.load(out / "model.onnx", load_external_data=False)
    (producer,) = (node for node in graph.graph.node if "logits" in node.output)
    producer.output[list(producer.output).index("logits")] = "logits.all"
    graph.graph.initializer.append(onnx.helper.make_tensor("last", onnx.TensorProto.INT64, [1], [-1]))
    graph.graph.node.append(onnx.helper.make_node("Gather", ["logits.all", "last"], ["logits"], axis=1))
    onnx.save(graph, out / "model.onnx")
