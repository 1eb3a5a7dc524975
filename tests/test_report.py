"""The report says what the evidence says, as JSON by its schema and as a page that nothing foreign runs in."""

import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest

from checkpoints import paritas, refused
from paritas.audit.run import audit
from paritas.errors import ParitasError
from paritas.report import model, strips
from paritas.report.build import of_audit, of_verification
from paritas.report.heatmap import CELLS, heatmap
from paritas.report.html import to_html
from paritas.report.model import Heatmap, Power, Probes, Report, Surroundings, Tokens, Triage, Weights
from paritas.report.words import no_words, words_of
from paritas.report.write import to_json, write
from paritas.verify.evidence import (
    Choices,
    Differences,
    Evidence,
    Finding,
    MatrixRecord,
    PrecisionRecord,
    ProbeRecord,
    QualityRecord,
    SequenceRecord,
)
from paritas.verify.verdict import PROVEN_FLOORS, Verdict
from reports import KIND, KINDS, Reports, reports_in
from tiny import WINDOW

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = json.loads((ROOT / "docs" / "reference" / "report.schema.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reports(
    checkpoint: Callable[[str], Path], judge: Callable[..., Evidence], tmp_path_factory: pytest.TempPathFactory
) -> Reports:
    return reports_in(tmp_path_factory.mktemp("reports"), checkpoint, judge)


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


# What it says.


@pytest.mark.parametrize("kind", KINDS)
def test_the_json_is_by_its_schema(kind: str, reports: Reports) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    values = json.loads(to_json(reports(kind).report))
    jsonschema.Draft202012Validator(SCHEMA).validate(values)
    assert [section["kind"] for section in values["sections"]] == [s.kind for s in reports(kind).report.sections]
    assert Report.model_validate(values).verdict is reports(kind).evidence.verdict


def test_the_schema_is_current() -> None:
    assert {"$schema": SCHEMA["$schema"], **model.json_schema()} == SCHEMA, "make snapshots writes it anew"


def test_the_reference_names_every_section_and_field() -> None:
    text = (ROOT / "docs" / "reference" / "report.md").read_text(encoding="utf-8")
    evidence = Evidence.model_json_schema(mode="serialization")["$defs"].keys()
    own = [SCHEMA, *(record for name, record in SCHEMA["$defs"].items() if name not in evidence)]
    fields = {field for record in own for field in record.get("properties", {})}
    assert {field for field in fields if f"`{field}`" not in text} == set()


def test_every_kind_of_section_has_a_template() -> None:
    kinds = {
        definition["properties"]["kind"]["const"] for definition in SCHEMA["$defs"].values() if is_section(definition)
    }
    templates = {file.stem for file in (ROOT / "src/paritas/report/templates").glob("*.html")}
    assert templates == kinds | {"page"}


def is_section(definition: dict[str, dict[str, object]]) -> bool:
    return "kind" in definition.get("properties", {})


def test_a_wrong_package_is_told_first_what_its_audit_names(reports: Reports) -> None:
    triage = reports("wrong").section(Triage)
    first = triage.findings[0]
    assert (first.source, first.severity, first.code) == ("audit", "error", "rope-table-wrong")
    assert all(finding.remedy for finding in triage.findings)
    assert triage.steps[0] == "Do not ship it."
    assert "rope-table-wrong" in triage.steps[1]
    assert first.where in triage.steps[1]
    assert triage.signatures == reports("wrong").evidence.signatures
    assert "first bad position 1" in triage.signatures["onnxruntime"]


def test_without_an_audit_the_signature_says_where_to_look(reports: Reports) -> None:
    evidence = reports("wrong").evidence
    (triage,) = (s for s in of_verification(evidence, "wrong").sections if isinstance(s, Triage))
    assert "first bad position 1" in triage.steps[1]
    assert "paritas audit" in triage.steps[2]


def test_an_invalid_comparison_is_told_how_to_be_put_right(reports: Reports) -> None:
    reported = reports("invalid")
    assert reported.evidence.verdict is Verdict.INVALID
    triage = reported.section(Triage)
    assert "graph-last-logits" in {finding.code for finding in triage.findings}
    remedy = next(finding.remedy for finding in triage.findings if finding.code == "graph-last-logits")
    assert remedy in triage.steps[0]
    assert "nothing is proven" in reported.report.headline


def test_a_runtime_that_alone_is_wrong_is_named(reports: Reports) -> None:
    right, wrong = reports("right").evidence, reports("wrong").evidence
    mixed = [p for p in right.probes if p.runtime == "onnxruntime"] + [
        p for p in wrong.probes if p.runtime != "onnxruntime"
    ]
    evidence = wrong.model_copy(update={"probes": tuple(mixed)})
    (triage,) = (s for s in of_verification(evidence, "mixed").sections if isinstance(s, Triage))
    assert "onnxruntime agrees on the same graph and onnxruntime-genai does not" in triage.steps[1]


def test_strips_are_the_records_differences_in_its_floors(reports: Reports) -> None:
    evidence = reports("wrong").evidence
    found = reports("wrong").section(Heatmap)
    rows = {(row.probe, row.runtime, row.label): row for panel in found.panels for row in panel.rows}
    window = next(s for s in evidence.sequences if s.name == "window")
    record = next(p for p in evidence.probes if p.id == "window" and p.runtime == "onnxruntime")
    ratios = [d / f for d, f in zip(record.differences[0].differences, window.floors, strict=True)]
    row = rows["window", "onnxruntime", "window"]
    assert row.log10 == pytest.approx([math.log10(ratio) for ratio in ratios])
    assert row.worst == pytest.approx(record.worst_floors)
    assert record.first_bad is not None
    assert row.first_bad == record.first_bad.position == 1
    assert row.steps_from is None
    assert rows["decode", "onnxruntime", "decode"].steps_from == window.prefill
    panel = next(panel for panel in found.panels if row in panel.rows)
    assert [(mark.position, mark.text) for mark in panel.marks] == [(WINDOW, f"window of {WINDOW}")]


def test_every_measured_probe_has_a_strip(reports: Reports) -> None:
    for kind in ("right", "wrong"):
        rows = {(row.probe, row.runtime) for panel in reports(kind).section(Heatmap).panels for row in panel.rows}
        measured = {(p.id, p.runtime) for p in reports(kind).evidence.probes if p.worst_floors is not None}
        assert rows == measured


def test_the_caches_are_a_strip_over_layers(reports: Reports) -> None:
    (panel,) = (panel for panel in reports("wrong").section(Heatmap).panels if panel.axis == "layer")
    record = next(p for p in reports("wrong").evidence.probes if p.id == "cache" and p.differences)
    assert panel.length * 2 == len(record.differences)
    keys, values = panel.rows
    assert (keys.label, values.label) == ("keys", "values")
    assert max(keys.worst, values.worst) == pytest.approx(record.worst_floors)
    assert keys.first_bad == 0  # rotated by the wrong table
    assert values.first_bad == 1  # the first layer's values are right


def test_a_long_sequence_is_binned_by_its_worst_position(reports: Reports) -> None:
    evidence = reports("right").evidence
    length, at = 3 * CELLS - 1, 1234
    sequence = SequenceRecord(
        name="long",
        ids=(1,) * length,
        prefill=length,
        stop=length,
        prompt=0,
        greedy=(),
        floors=(1.0,) * length,
        variants=(),
    )
    differences = Differences(sequence="long", differences=tuple(1e3 if p == at else 1.0 for p in range(length)))
    record = ProbeRecord(
        id="long", runtime="onnxruntime", boundary="", verdict=Verdict.DIVERGES, differences=(differences,)
    )
    found = heatmap(evidence.model_copy(update={"sequences": (sequence,), "probes": (record,)}))
    (panel,), (row,) = found.panels, found.panels[0].rows
    assert (panel.cell, len(row.log10), panel.length) == (3, CELLS, length)
    assert [index for index, log in enumerate(row.log10) if log] == [at // 3]
    assert (row.worst_at, row.first_bad) == (at, at)


def test_what_is_not_finite_has_a_colour_of_its_own() -> None:
    cells = (None, -2.0, math.log10(PROVEN_FLOORS), math.log10(PROVEN_FLOORS) + 1e-9, 7.0, math.inf, math.nan)
    last = len(strips.LEVELS)
    assert [strips.level(cell) for cell in cells] == [0, 0, 2, 3, last - 1, last, last]
    assert strips.paths((0.5, 0.5, None, 0.5)) == [(0, "M2 0h1v1h-1z"), (2, "M0 0h2v1h-2zM3 0h1v1h-1z")]
    assert strips.numbers((None, 1.234, math.inf)) == "- 123 x"


def test_a_near_tie_is_shown_with_its_gap_and_both_tokens(reports: Reports) -> None:
    evidence = reports("right").evidence
    changed = [with_choices(record) for record in evidence.probes]
    evidence = evidence.model_copy(update={"probes": tuple(changed)})
    (tokens,) = (s for s in of_verification(evidence, "ties", words=no_words).sections if isinstance(s, Tokens))
    states = [choice.state for token in tokens.prompts[0].tokens for choice in token.choices]
    assert states[:4] == ["near tie", "near tie", "different", "different"]
    assert set(states[4:]) == {"identical"}
    first = tokens.prompts[0].tokens[0]
    assert first.id == evidence.sequences[[s.name for s in evidence.sequences].index("greedy-1")].greedy[0]
    assert {choice.id for choice in first.choices} == {7}
    assert first.gap > 0
    page = to_html(of_verification(evidence, "ties"))
    assert page.count("<strong>near tie</strong>") == page.count("<strong>different</strong>") == 2
    assert "18 of 20 identical, 1 near tie, 1 different" in page


def with_choices(record: ProbeRecord) -> ProbeRecord:
    """The first token of the first prompt a near tie, the second another one."""
    if not record.choices:
        return record
    first, *others = record.choices
    changed = Choices(sequence=first.sequence, tokens=(7, 8, *first.tokens[2:]), gaps=first.gaps, near_ties=(0,))
    return record.model_copy(update={"choices": (changed, *others)})


def test_tokens_and_prompts_are_told_in_words(reports: Reports) -> None:
    tokens = reports("right").section(Tokens)
    assert "What is the capital of France?" in tokens.prompts[0].text
    assert all(token.text for prompt in tokens.prompts for token in prompt.tokens)
    assert words_of({})([1, 2]) == words_of({"tokenizer.json": b"{"})([1]) == ""


def test_the_census_is_the_audits(reports: Reports, checkpoint: Callable[[str], Path]) -> None:
    found = audit(reports("right").package, checkpoint(KIND))
    weights = reports("right").section(Weights)
    assert {row.transform: row.initializers for row in weights.census} == found.identity.census
    assert len(weights.initializers) == len(found.identity.initializers)
    alone = of_audit(found, "right")
    assert [section.kind for section in alone.sections] == ["triage", "weights", "environment"]
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(to_json(alone)))
    assert "no errors" in Page(to_html(alone)).text


def test_what_could_not_be_audited_says_why(reports: Reports) -> None:
    error = ParitasError("shard-missing", "a shard is missing", place="model.safetensors")
    report = of_verification(reports("right").evidence, "right", error)
    (weights,) = (section for section in report.sections if isinstance(section, Weights))
    assert weights.reason is not None
    assert "shard-missing" in weights.reason
    assert "could not be audited: shard-missing" in to_html(report)


def test_precision_is_a_section_where_not_all_is_fp32(reports: Reports) -> None:
    evidence = reports("right").evidence
    plain = PrecisionRecord(formats={"fp32": 93}, arithmetic=(), compared="as it is", verdict=None)
    kinds = [s.kind for s in of_verification(evidence.model_copy(update={"precision": plain}), "fp32").sections]
    assert "precision" not in kinds
    matrices = (
        MatrixRecord(
            stored="q_proj.Q4", parameters=("model.q_proj.weight",), format="int4 in 32", error=0.1, steps=0.5
        ),
        MatrixRecord(stored="odd.Q4", parameters=(), format="int4 in 32", fault="it is near no parameter"),
    )
    quality = QualityRecord(
        part="weights", compared="int4", positions=700, difference=0.5, kl=1.5e-3, kl_error=1e-4, kl_p99=0.01,
        kl_max=0.2, top1=0.987, flips=3, perplexity=1.0123,
    )  # fmt: skip
    mixed = PrecisionRecord(
        formats={"int4 in 32": 2}, arithmetic=("fp16",), compared="with its own weights", verdict=Verdict.DIVERGES,
        matrices=matrices, quality=(quality,),
    )  # fmt: skip
    report = of_verification(evidence.model_copy(update={"precision": mixed}), "int4")
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(to_json(report)))
    text = " ".join(Page(to_html(report)).text.split())
    for told in (
        "int4 in 32 × 2",
        "98.7 %",
        "1.5e-3 ± 1.0e-4",
        "× 1.0123",
        "2 weights of integers, 1 faulty",
        "near no",
    ):
        assert told in text


def test_wrong_stored_weights_are_told_before_the_logits(reports: Reports) -> None:
    stored = PrecisionRecord(
        formats={"int4": 2}, arithmetic=(), compared="its own", verdict=Verdict.DIVERGES, reason="two are swapped"
    )
    evidence = reports("right").evidence.model_copy(update={"verdict": Verdict.DIVERGES, "precision": stored})
    report = of_verification(evidence, "int4")
    assert report.headline == "The stored weights are not right: two are swapped"
    (triage,) = (section for section in report.sections if isinstance(section, Triage))
    assert "two are swapped" in triage.steps[1]


def test_power_has_the_faintest_first_and_the_environment_the_hashes(reports: Reports) -> None:
    power = reports("right").section(Power)
    assert [fault.most for fault in power.faults] == sorted(fault.most for fault in power.faults)
    assert all(fault.seen is (fault.most > PROVEN_FLOORS) for fault in power.faults)
    assert any(fault.seen for fault in power.faults)
    assert not any(fault.seen for fault in reports("invalid").section(Power).faults)  # no probe was measured
    assert power.blind == reports("right").evidence.blind
    assert reports("right").section(Surroundings).package == reports("right").evidence.package
    assert len(reports("right").section(Probes).rows) == len(reports("right").evidence.probes)


# The page.


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_whole_in_itself_and_small(kind: str, reports: Reports) -> None:
    text = to_html(reports(kind).report)
    page = Page(text)
    links = [each.get("href") or each.get("src") for _, each in page.tags if "href" in each or "src" in each]
    assert [link for link in links if not str(link).startswith(("#", "data:,"))] == []
    assert re.findall(r"url\(|@import|https?:", text) == []
    assert len(text.encode()) < 300_000
    assert all("scope" in attributes for attributes in page.named("th"))
    assert len(page.named("caption")) == len(page.named("table"))
    ids = [str(attributes["id"]) for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_words_of_a_package_are_words(reports: Reports) -> None:
    """Tags, quotes, scripts and characters that turn the line around, wherever a package can put them."""
    evil = (
        "</script><script>document.title='x'</script><img src=x onerror=alert(1)>\"'\u202e\x1b[31m{{ 7 * 7 }}"
        + "x" * 9000
    )
    evidence = reports("wrong").evidence
    finding = Finding(code="logits-diverge", severity="error", where=evil, message=evil, remedy=evil)
    named = evidence.checkpoint.model_copy(update={"name": evil})
    probes = [p.model_copy(update={"boundary": evil, "reason": evil}) for p in evidence.probes]
    hostile = evidence.model_copy(
        update={
            "findings": (finding,),
            "checkpoint": named,
            "probes": tuple(probes),
            "signatures": {evil: evil},
            "blind": (evil,),
        }
    )
    text = to_html(of_verification(hostile, evil, ParitasError(evil, evil), lambda ids: evil))
    page = Page(text)
    plain = Page(to_html(of_verification(evidence, "p", ParitasError("code", "fact"), lambda ids: "w")))
    assert len(page.named("script")) == len(plain.named("script")) == 1
    assert page.named("img") == []
    assert {name for _, attributes in page.tags for name in attributes if name.startswith("on")} == set()
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "{{ 7 * 7 }}" in page.text
    assert "x" * 3000 not in text


# The commands.


def test_verify_and_audit_write_a_report(reports: Reports, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    package, folder = reports("wrong").package, tmp_path / "new" / "report"
    done = paritas(
        "verify",
        package,
        "-a",
        checkpoint(KIND),
        "--report",
        folder,
        "--no-power",
        "--json",
        "--runtime",
        "onnxruntime",
    )
    assert done.exit_code == 1
    assert sorted(file.name for file in folder.iterdir()) == ["report.html", "report.json"]
    values = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(values)
    assert (values["verdict"], values["package"], values["exit_code"]) == ("diverges", "wrong", 1)
    assert "weights" in [section["kind"] for section in values["sections"]]
    done = paritas("audit", package / "model.onnx", "-a", checkpoint(KIND), "--report", folder)
    assert done.exit_code == 1
    values = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert (values["verdict"], values["package"]) == (None, "wrong/model.onnx")


def test_a_folder_that_cannot_be_is_refused_before_any_work(
    reports: Reports, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for command in ("verify", "audit"):
        done = paritas(command, reports("right").package, "-a", checkpoint(KIND), "--report", tmp_path / "file")
        refused(done, "output-unwritable", "file")


def test_an_export_keeps_the_page_of_its_proof(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    done = paritas("export", checkpoint(KIND), tmp_path / "out", "--no-power", "--quiet")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out/evidence/report.html").read_text(encoding="utf-8")
    assert "<title>proven: out against gemma3</title>" in page
    again = paritas(
        "verify", tmp_path / "out", "-a", checkpoint(KIND), "--replay", tmp_path / "out/evidence/evidence.json"
    )
    assert again.exit_code == 0, again.output


def test_hidden_states_have_a_panel_of_their_own(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    words = ("--hidden-states", "0", "--hidden-states", "last", "--no-power", "--quiet")
    done = paritas("export", checkpoint("llama"), tmp_path / "out", *words)
    assert done.exit_code == 0, done.output
    evidence = Evidence.model_validate_json((tmp_path / "out/evidence/evidence.json").read_text())
    panel = next(each for each in heatmap(evidence).panels if each.title.startswith("hidden states"))
    assert [row.label for row in panel.rows] == ["hidden_states.0", "hidden_states.2"]
    record = next(each for each in evidence.probes if each.id == "hidden")
    assert panel.length == len(record.differences[0].differences)
    assert max(row.worst for row in panel.rows) == pytest.approx(record.worst_floors, rel=1e-2)


def test_a_report_is_written_whole(reports: Reports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, data = write(reports("right").report, tmp_path)
    before = page.read_bytes(), data.read_bytes()

    def full(*given: object, **words: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write(reports("wrong").report, tmp_path)
    assert (page.read_bytes(), data.read_bytes()) == before
    assert sorted(tmp_path.iterdir()) == [page, data]
