"""The same evidence in the files that model cards of ONNX packages show.

One forward pass (L4), greedy text (L5), hidden states, and what the runtimes could not be asked.

Nothing is measured here; evidence.json is the record, and has what the verdict rests on.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paritas.verify.evidence import Evidence, ProbeRecord
from paritas.verify.verdict import Verdict

FOLDER = Path("evidence")
_ONE_PASS = ("short", "window", "long", "switch")


def write_levels(evidence: Evidence, folder: Path) -> tuple[Path, ...]:
    """``l4_parity.json``, ``l5_generation.json``, ``l4_hidden_state.json`` where hidden states were compared, and
    ``runtime_limitations.md``, under ``folder``'s ``evidence/``."""
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    documents: dict[str, Any] = {
        "l4_parity.json": _about(evidence) | {"passes": [_pass(each) for each in _of(evidence, _ONE_PASS)]},
        "l5_generation.json": _about(evidence) | {"prompts": _texts(evidence)},
    }
    if hidden := _of(evidence, ("hidden",)):
        documents["l4_hidden_state.json"] = _about(evidence) | {"passes": [_pass(each) for each in hidden]}
    written: list[Path] = []
    for name, values in documents.items():
        written.append(place / name)
        written[-1].write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    written.append(place / "runtime_limitations.md")
    written[-1].write_text(_limitations(evidence), encoding="utf-8")
    return tuple(written)


def _about(evidence: Evidence) -> dict[str, Any]:
    environment = evidence.environment
    return {
        "checkpoint": evidence.checkpoint.name,
        "checkpoint_sha256": evidence.checkpoint.sha256,
        "reference": f"{evidence.checkpoint.reference}, transformers {environment.transformers}, fp32, eager",
        "verdict": evidence.verdict.value,
        "created": evidence.created,
    }


def _of(evidence: Evidence, probes: Sequence[str]) -> list[ProbeRecord]:
    return [each for each in evidence.probes if each.id in probes and each.alike is not None]


def _pass(record: ProbeRecord) -> dict[str, Any]:
    alike = record.alike
    assert alike is not None
    bad = record.first_bad
    return {
        "probe": record.id,
        "runtime": record.runtime,
        "positions": alike.positions,
        "top1_agreement": alike.same_best / alike.positions,
        "mean_cosine": alike.cosine,
        "least_cosine": alike.least_cosine,
        "worst_difference": record.difference,
        "worst_floors": record.worst_floors,
        "first_divergence": None if bad is None else {"sequence": bad.sequence, "position": bad.position},
        "verdict": record.verdict.value,
    }


def _texts(evidence: Evidence) -> list[dict[str, Any]]:
    wanted = {each.name: each for each in evidence.sequences}
    return [
        {
            "prompt": choices.sequence,
            "runtime": record.runtime,
            "prompt_tokens": wanted[choices.sequence].prompt,
            "reference_tokens": list(wanted[choices.sequence].greedy),
            "tokens": list(choices.tokens),
            "matching": sum(a == b for a, b in zip(wanted[choices.sequence].greedy, choices.tokens, strict=True)),
            "near_ties": list(choices.near_ties),
        }
        for record in evidence.probes
        for choices in record.choices
    ]


def _limitations(evidence: Evidence) -> str:
    """What was not asked, of whom, and why; a reader should not have to look for what is missing."""
    environment = evidence.environment
    versions = {"onnxruntime": environment.onnxruntime, "onnxruntime-genai": environment.onnxruntime_genai or ""}
    asked = list(dict.fromkeys(record.runtime for record in evidence.probes))
    runtimes = ", ".join(f"{each} {versions.get(each, '')}".strip() for each in asked)
    reasons: dict[str, list[str]] = {}
    for record in evidence.probes:
        if record.verdict in (Verdict.NOT_TESTED, Verdict.INVALID):
            reasons.setdefault(record.reason or "", []).append(f"{record.id} ({record.runtime})")
    lines = ["# Runtime limitations", "", f"Asked: {runtimes}, CPU. Verdict: {evidence.verdict.value}.", ""]
    lines += ["## Not tested", ""]
    lines += [f"- {', '.join(probes)}: {reason}" for reason, probes in reasons.items()] or ["Nothing."]
    lines += ["", "## Not looked at", ""]
    lines += [f"- {each}" for each in evidence.blind] or ["Nothing."]
    return "\n".join(lines) + "\n"
