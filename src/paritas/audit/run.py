"""The whole audit: what the graph holds against what the checkpoint says."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritas.audit.attention import attention_findings
from paritas.audit.claims import claim_findings
from paritas.audit.expected import expected
from paritas.audit.finding import ORDER, Finding
from paritas.audit.frequencies import frequencies_of, frequency_findings
from paritas.audit.genai import genai_findings
from paritas.audit.identity import Identity, identify
from paritas.audit.numbers import number_findings
from paritas.audit.rope import rope_findings, tables_of
from paritas.audit.sites import sites
from paritas.audit.stops import stop_findings
from paritas.audit.texts import Words, of_folder, text_findings
from paritas.audit.view import View
from paritas.audit.weights import weight_findings
from paritas.checkpoint import open_checkpoint
from paritas.errors import Exit
from paritas.progress import Progress, silent
from paritas.runtime.package import Package, open_package
from paritas.spec import Decoder


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        package: its folder, or graph.
        checkpoint: what people call it.
        identity: where every initializer comes from.
        findings: errors first.
        seconds: the audit took.
    """

    package: Path
    checkpoint: str
    identity: Identity
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def exit_code(self) -> Exit:
        """Of a command that ends with this audit."""
        return Exit.DIVERGES if any(each.severity == "error" for each in self.findings) else Exit.PROVEN

    def summary(self) -> dict[str, Any]:
        """What a command gives with ``--json``."""
        return {
            "package": str(self.package),
            "checkpoint": self.checkpoint,
            "errors": sum(finding.severity == "error" for finding in self.findings),
            "findings": [vars(finding) for finding in self.findings],
            "census": self.identity.census,
            "unused": list(self.identity.unused),
            "initializers": [
                {"name": r.name, "dtype": r.dtype, "bytes": r.bytes, "tensors": r.tensors, "transforms": r.transforms}
                for r in self.identity.initializers
            ],
            "seconds": round(self.seconds, 2),
        }


def audit(package: Path, model: str | Path, progress: Progress = silent) -> Audit:
    """Audit ``package`` against the checkpoint ``model``.

    Raises:
        ParitasError: the package or the checkpoint cannot be read, or names files outside of its folder.
    """
    started = time.perf_counter()
    opened = open_package(package)
    wanted = expected(open_checkpoint(model))
    view = View(opened.model, opened.folder)
    attending = sites(view)
    found: list[Finding] = [wanted.why] if wanted.why else []
    frequencies = frequencies_of(view)
    known = tables_of(view, attending) | {stored.name for stored in frequencies}
    if wanted.spec:
        found += rope_findings(view, attending, wanted.spec, _context(opened, wanted.spec))
        found += frequency_findings(frequencies, wanted.spec)
    identity = identify(view, wanted.tensors, known, progress)
    found += weight_findings(view, identity, wanted)
    if wanted.spec:
        found += attention_findings(view, attending, wanted.spec)
        found += number_findings(view, identity, wanted.spec, _logits(view))
    else:
        found += claim_findings(view, identity, attending, wanted.checkpoint.config)
    theirs = Words(wanted.checkpoint.tokenizer_files)
    found += text_findings(of_folder(opened.folder), theirs)
    if opened.genai_config:
        found += genai_findings(opened.genai_config, view, attending, wanted.spec)
        found += stop_findings(opened.genai_config, wanted.checkpoint, theirs)
    found.sort(key=lambda finding: ORDER.index(finding.severity))
    return Audit(package, wanted.checkpoint.name, identity, tuple(found), time.perf_counter() - started)


def _context(package: Package, spec: Decoder) -> int:
    """Positions that a package promises."""
    model = (package.genai_config or {}).get("model", {})
    context = model.get("context_length", spec.context)
    return context if isinstance(context, int) else spec.context


def _logits(view: View) -> str:
    outputs = [value.name for value in view.proto.graph.output]
    return next((name for name in outputs if "logits" in name), outputs[0])
