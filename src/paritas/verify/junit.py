"""The evidence as JUnit XML, which CI servers show: a test case for each probe and runtime."""

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from paritas.verify.evidence import Evidence, ProbeRecord
from paritas.verify.verdict import Verdict

_OUTCOMES = {
    Verdict.UNEXPLAINED: "failure",
    Verdict.DIVERGES: "failure",
    Verdict.INVALID: "error",
    Verdict.NOT_TESTED: "skipped",
}
_NO_XML = re.compile(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(evidence: Evidence, file: Path) -> None:
    """Write ``file`` aside, and give it its name when it is whole."""
    aside = file.with_name(f".{file.name}.partial-{secrets.token_hex(4)}")
    try:
        aside.write_bytes(to_xml(evidence))
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)


def to_xml(evidence: Evidence) -> bytes:
    """The document, in UTF-8."""
    records = (*evidence.probes, *_weights(evidence))
    outcomes = [_OUTCOMES.get(record.verdict) for record in records]
    counts = {
        "tests": str(len(outcomes)),
        "failures": str(outcomes.count("failure")),
        "errors": str(outcomes.count("error")),
        "skipped": str(outcomes.count("skipped")),
        "time": _seconds(sum(record.seconds for record in records)),
    }
    root = ElementTree.Element("testsuites", {"name": "paritas", **counts})
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        {"name": _text(f"paritas.{evidence.checkpoint.name}"), "timestamp": evidence.created, **counts},
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(evidence):
        ElementTree.SubElement(properties, "property", {"name": name, "value": _text(value)})
    for record in records:
        _case(suite, record, evidence)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _weights(evidence: Evidence) -> Iterator[ProbeRecord]:
    """What is stored in less than fp32 is judged too, before anything is run."""
    if (stored := evidence.precision) is not None and stored.verdict is not None:
        yield ProbeRecord(
            id="weights", runtime="package", boundary=stored.compared, verdict=stored.verdict, reason=stored.reason
        )


def _properties(evidence: Evidence) -> Iterator[tuple[str, str]]:
    yield "verdict", evidence.verdict.value
    if evidence.worst_floors is not None:
        yield "worst_floors", f"{evidence.worst_floors:.3g}"
    if evidence.precision is not None:
        yield "formats", ", ".join(f"{count} {name}" for name, count in evidence.precision.formats.items())
        yield "compared", evidence.precision.compared
    yield "paritas", evidence.paritas
    yield "checkpoint_sha256", evidence.checkpoint.sha256
    for name, version in evidence.environment.model_dump().items():
        if version:
            yield name, version


def _case(suite: ElementTree.Element, record: ProbeRecord, evidence: Evidence) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {"classname": f"paritas.{record.runtime}", "name": record.id, "time": _seconds(record.seconds)},
    )
    if (outcome := _OUTCOMES.get(record.verdict)) is not None:
        message = _text(record.reason or f"{record.verdict.value}: {_measured(record)}")
        words = {"message": message} if outcome == "skipped" else {"message": message, "type": record.verdict.value}
        ElementTree.SubElement(case, outcome, words).text = _text("\n".join(_details(record, evidence)))
    ElementTree.SubElement(case, "system-out").text = _text(f"{record.boundary}: {_measured(record)}")


def _details(record: ProbeRecord, evidence: Evidence) -> Iterator[str]:
    """What the findings say of a probe, and what its runtime's first bad positions point to."""
    yield record.boundary
    for finding in evidence.findings:
        if f"{record.id}, {record.runtime}" in finding.where.split("; "):
            yield f"{finding.code}: {finding.message}"
    if record.first_bad is not None and (pointed := evidence.signatures.get(record.runtime)) is not None:
        yield pointed


def _measured(record: ProbeRecord) -> str:
    return record.verdict.value if record.worst_floors is None else f"{record.worst_floors:.3g} floors"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"


def _text(text: str) -> str:
    """``text`` without the characters that XML has no way to write: a runtime's message may hold any."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
