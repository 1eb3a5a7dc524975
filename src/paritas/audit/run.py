"""The whole audit: what the graph holds against what the checkpoint says."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.audit.activation import activation_findings
from paritas.audit.attending import joined, of_operator
from paritas.audit.attention import attention_findings
from paritas.audit.expected import Expected, expected
from paritas.audit.finding import ORDER, Finding
from paritas.audit.frequencies import frequencies_of, frequency_findings
from paritas.audit.genai import genai_findings
from paritas.audit.identity import Identity, identify
from paritas.audit.norms import norm_findings, norm_sites
from paritas.audit.numbers import number_findings
from paritas.audit.operators import operator_findings
from paritas.audit.probing import of_ways, of_written
from paritas.audit.projections import made_of
from paritas.audit.roles import role_findings
from paritas.audit.rope import every_rotation_read, rope_findings, tables_of
from paritas.audit.sites import sites
from paritas.audit.stops import stop_findings
from paritas.audit.texts import Words, of_folder, text_findings
from paritas.audit.told import Told, Unknown
from paritas.audit.view import View
from paritas.audit.weights import spec_offsets, weight_findings
from paritas.audit.written import before_operators, written
from paritas.checkpoint import Checkpoint, open_checkpoint
from paritas.errors import Exit
from paritas.progress import Progress, silent
from paritas.runtime.package import Package, open_package

_ENDLESS = 1 << 40


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


def audit(package: Path, model: str | Path | Checkpoint, progress: Progress = silent) -> Audit:
    """Audit ``package`` against the checkpoint ``model``.

    Raises:
        ParitasError: the package or the checkpoint cannot be read, or names files outside of its folder.
    """
    started = time.perf_counter()
    opened = open_package(package)
    wanted = expected(open_checkpoint(model))
    told = wanted.told
    view = View(opened.model, opened.folder)
    found: list[Finding] = [wanted.why] if wanted.why else []
    operators = sites(view)
    attending = [of_operator(view, site, told.layer(site.layer)) for site in operators]
    frequencies = frequencies_of(view)
    known = tables_of(view, [names for each in attending for names in each.tables])
    identity = identify(view, wanted.weights, known | {stored.name for stored in frequencies}, progress)
    made = made_of(identity)
    norms = _head_norms(wanted)
    ways, products = before_operators(view, made, operators), written(view, made)
    attending = joined(attending, of_ways(view, ways, told, norms)) + of_written(view, products, told, norms)
    identity = identity.without(tables_of(view, [names for each in attending for names in each.tables]))
    context = _context(opened, told)
    dtype = _dtype(identity)
    found += operator_findings(view.proto)
    found += rope_findings(view, attending, told, context)
    if not every_rotation_read(attending, told):
        found += frequency_findings(frequencies, told)
    found += weight_findings(view, identity, wanted)
    found += role_findings(identity, wanted.tensors, made, operators, [*ways, *products])
    found += attention_findings(attending, told, dtype, context)
    found += norm_findings(list(norm_sites(view, made)), made, told, dtype)
    found += activation_findings(view, made, told)
    found += number_findings(view, made, told, _logits(view))
    theirs = Words(wanted.checkpoint.tokenizer_files)
    found += text_findings(of_folder(opened.folder), theirs)
    if opened.genai_config:
        found += genai_findings(opened.genai_config, view, attending, wanted.spec)
        found += stop_findings(opened.genai_config, wanted.checkpoint, theirs)
    listed = sorted(_once(found), key=lambda finding: ORDER.index(finding.severity))
    return Audit(package, wanted.checkpoint.name, identity, tuple(listed), time.perf_counter() - started)


def _once(found: Iterable[Finding]) -> Iterable[Finding]:
    """A weight in a wrong place may show by its name and by its use: the first that is said of it."""
    swaps: dict[str, Finding] = {}
    for each in found:
        if each.code != "weight-swapped" or swaps.setdefault(each.where, each) is each:
            yield each


def _head_norms(wanted: Expected) -> dict[str, NDArray[np.float32]]:
    """Weights of the norms of queries and keys, with what the model adds to them."""
    offsets = spec_offsets(wanted)
    found: dict[str, NDArray[np.float32]] = {}
    for name, tensor in wanted.tensors.items():
        if name.endswith(("self_attn.q_norm.weight", "self_attn.k_norm.weight")):
            found[name] = tensor.read() + np.float32(offsets.get(name, 0.0))
        elif name.endswith(("self_attn.q_norm.norms.0.weight", "self_attn.k_norm.norms.0.weight")):
            found[name.replace(".norms.0", "")] = _stacked(wanted, name)
    return found


def _stacked(wanted: Expected, first: str) -> NDArray[np.float32]:
    """A norm that is kept head by head, as [heads, head_dim]."""
    names = (first.replace(".norms.0", f".norms.{head}") for head in count())
    return np.stack([wanted.tensors[name].read() for name in takewhile(wanted.tensors.__contains__, names)])


def _dtype(identity: Identity) -> str:
    """Of most of the graph's weights."""
    sizes = Counter[str]()
    for record in identity.initializers:
        sizes[record.dtype] += record.bytes
    return sizes.most_common(1)[0][0] if sizes else "fp32"


def _context(package: Package, told: Told) -> int:
    """Positions that a package promises, or that the model was made for."""
    made_for = _ENDLESS if isinstance(told.context, Unknown) else told.context
    context = (package.genai_config or {}).get("model", {}).get("context_length", made_for)
    return context if isinstance(context, int) else made_for


def _logits(view: View) -> str:
    outputs = [value.name for value in view.proto.graph.output]
    return next((name for name in outputs if "logits" in name), outputs[0])
