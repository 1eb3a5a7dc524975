"""The report in a real Chromium: what it shows, at two widths, light and dark; nothing is fetched, nothing complains.

``make test-browser``. Pictures of every page are kept where PARITAS_PICTURES says.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Browser
from paritas.audit.run import audit
from paritas.errors import ParitasError
from paritas.report.build import of_audit, of_verification
from paritas.report.model import Diagnosis, Heatmap, Probes
from paritas.report.strips import LEVELS, level
from paritas.report.write import write_page
from paritas.verify.evidence import Evidence, Finding
from reports import KIND, KINDS, Reports, reports_in
from test_report import with_choices
from tiny import WINDOW

pytestmark = pytest.mark.browser
WIDTHS = (1400, 400)
SCHEMES = ("light", "dark")
BACKGROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 28)"}
HEADINGS = [
    "What to do next",
    "Where it differs",
    "Probes",
    "Tokens",
    "Weights",
    "What this run could see",
    "Environment",
]

TEXTS = "return [...document.querySelectorAll(arguments[0])].map(each => each.textContent.trim().replace(/\\s+/g, ' '))"
# Text whose colour is too close to what is behind it: less than 4.5 to 1, as WCAG 2 counts.
FAINT = """
const numbers = text => (text.match(/[\\d.]+/g) || []).map(Number);
const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = colour => colour.slice(0, 3).map(v => linear(v / 255))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = element => {
  for (let each = element; each; each = each.parentElement) {
    const colour = numbers(getComputedStyle(each).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const found = [];
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest("script, style")) continue;
  const [a, b] = [light(numbers(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
  const contrast = (a + 0.05) / (b + 0.05);
  if (contrast < 4.5) found.push(`${walker.currentNode.data.trim().slice(0, 40)}: ${contrast.toFixed(2)}`);
}
return found;
"""
# Elements that reach beyond the page, but for what scrolls or is cut in its own box.
BEYOND = """
return [...document.body.querySelectorAll('*')].filter(each => each.checkVisibility()
  && !each.closest('.scroll') && !each.closest('summary')
  && each.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
  .map(each => each.outerHTML.slice(0, 120));
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def reports(
    checkpoint: Callable[[str], Path], judge: Callable[..., Evidence], tmp_path_factory: pytest.TempPathFactory
) -> Reports:
    return reports_in(tmp_path_factory.mktemp("reports"), checkpoint, judge)


@pytest.fixture(scope="module")
def page(
    reports: Reports, checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The page of a report, by its name."""
    folder = tmp_path_factory.mktemp("pages")

    def written(name: str) -> Path:
        file = folder / f"{name}.html"
        if not file.exists():
            audited = audit(reports("wrong").package, checkpoint(KIND)) if name == "audit" else None
            write_page(of_audit(audited, "wrong") if audited else reports(name).report, file)
        return file

    return written


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*KINDS, "audit"])
def test_a_page_is_right_at_every_width_and_in_both_schemes(
    name: str, width: int, scheme: str, browser: Browser, page: Callable[[str], Path]
) -> None:
    browser.show(page(name), width, scheme)
    if pictures := os.environ.get("PARITAS_PICTURES"):
        Path(pictures).mkdir(parents=True, exist_ok=True)
        browser.picture(Path(pictures) / f"{name}-{width}-{scheme}.png")
    assert browser.logged("browser") == []
    assert [url for url in browser.requests() if url not in (page(name).as_uri(), "data:,")] == []
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.run(BEYOND) == []
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == BACKGROUND[scheme]
    browser.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.run(FAINT) == []


@pytest.mark.parametrize("name", KINDS)
def test_a_page_shows_what_the_report_says(
    name: str, browser: Browser, page: Callable[[str], Path], reports: Reports
) -> None:
    browser.show(page(name), 1400)
    evidence = reports(name).evidence
    assert browser.run(TEXTS, "h1") == [f"{name} against {evidence.checkpoint.name}"]
    headings = [HEADINGS[0], "Why it diverges", *HEADINGS[1:]] if name == "wrong" else HEADINGS
    assert browser.run(TEXTS, "h2") == headings
    assert browser.run(TEXTS, ".badge") == [evidence.verdict.value]
    assert browser.run(TEXTS, "nav a") == headings
    rows: list[str] = browser.run(TEXTS, "#probes tbody tr")
    assert len(rows) == len(reports(name).section(Probes).rows)
    for record in evidence.probes:
        assert any(record.verdict.value in row and (record.reason or "") in row for row in rows), record.id
    assert browser.run(TEXTS, "#triage .findings .code code") == list(
        dict.fromkeys(finding.code for finding in reports(name).report.sections[0].findings)  # type: ignore[union-attr]
    )


def test_the_diagnosis_is_shown_with_its_proof(browser: Browser, page: Callable[[str], Path], reports: Reports) -> None:
    diagnosis = reports("wrong").section(Diagnosis)
    browser.show(page("wrong"), 1400)
    assert browser.run(TEXTS, "#diagnosis .code code") == [cause.code for cause in diagnosis.causes]
    assert browser.run(TEXTS, "#diagnosis .code strong") == ["proved"] * len(diagnosis.causes)
    sources = [each for each in diagnosis.regions if each.source and each.phase == "prefill"]
    assert browser.run("return document.querySelectorAll('.depth i').length") == len(sources) > 0
    assert len(browser.run(TEXTS, "#diagnosis details tbody tr")) == len(diagnosis.regions)
    width = browser.run("return document.querySelector('.depth .tick').getBoundingClientRect().height")
    assert width < 24  # on one line


def test_a_strip_has_a_colour_for_every_cell(browser: Browser, page: Callable[[str], Path], reports: Reports) -> None:
    panels = reports("wrong").section(Heatmap).panels
    rows = [row for panel in panels for row in panel.rows]
    for scheme in SCHEMES:
        browser.show(page("wrong"), 1400, scheme)
        palette = browser.run(
            "const style = getComputedStyle(document.documentElement);"
            "return [...Array(arguments[0]).keys()].map(index => {"
            "  const probe = document.createElement('i'); probe.style.color = style.getPropertyValue(`--h${index}`);"
            "  document.body.append(probe); return getComputedStyle(probe).color; })",
            len(LEVELS) + 1,
        )
        assert len(set(palette)) == len(LEVELS) + 1
        shown = browser.run(
            "return [...document.querySelectorAll('.strip svg')].map(svg => {"
            "  const cells = {};"
            "  for (const path of svg.querySelectorAll('path')) for (const [, x, w] of"
            "    path.getAttribute('d').matchAll(/M(\\d+) 0h(\\d+)/g)) for (let i = 0; i < w; i++)"
            "      cells[Number(x) + i] = getComputedStyle(path).fill;"
            "  return Object.values(cells); })"
        )
        assert shown == [[palette[level(cell)] for cell in row.log10] for row in rows]


def test_prefill_and_window_are_marked(browser: Browser, page: Callable[[str], Path], reports: Reports) -> None:
    browser.show(page("right"), 1400)
    panels = reports("right").section(Heatmap).panels
    rows = [row for panel in panels for row in panel.rows]
    for kind, wanted in (
        ("solid", [[row.steps_from] if row.steps_from is not None else [] for row in rows]),
        ("dashed", [[m.position for m in p.marks if m.position < len(r.log10)] for p in panels for r in p.rows]),
    ):
        found = browser.run(
            "return [...document.querySelectorAll('.strip svg')].map(svg =>"
            "  [...svg.querySelectorAll(`line.${arguments[0]}`)].map(line => Number(line.getAttribute('x1'))))",
            kind,
        )
        assert found == wanted
        assert any(found)
    assert any(f"window of {WINDOW}" in text for text in browser.run(TEXTS, ".heat caption"))


def test_a_strip_answers_to_the_pointer_and_to_keys(
    browser: Browser, page: Callable[[str], Path], reports: Reports
) -> None:
    browser.show(page("wrong"), 1400)
    row = reports("wrong").section(Heatmap).panels[0].rows[0]
    assert row.label == "short"
    value = 10 ** float(row.log10[3] or 0)
    strip = "[data-cells]"
    box = browser.run(
        f"const b = document.querySelector('{strip}'); b.scrollIntoView(); return b.getBoundingClientRect()"
    )
    cells = browser.run(f"return Number(document.querySelector('{strip}').dataset.length)")
    browser.point(box["x"] + 3.5 * box["width"] / cells, box["y"] + box["height"] / 2)
    (told,) = browser.run(TEXTS, ".readout:not([hidden])")
    assert told.startswith("short, ONNX Runtime, position 3: ")
    assert float(told.split(": ")[1].removesuffix(" floors").replace(",", "")) == pytest.approx(value, rel=0.06)
    browser.point(5, 5)
    assert browser.run(TEXTS, ".readout:not([hidden])") == []
    browser.run(f"document.querySelector('{strip}').focus()")
    for key in ("End", "Home", "ArrowRight"):
        browser.press(key)
    attributes = browser.run(
        f"const b = document.querySelector('{strip}');"
        "return [b.getAttribute('role'), b.getAttribute('aria-valuenow'), b.getAttribute('aria-valuetext')]"
    )
    assert attributes[:2] == ["slider", "1"]
    assert attributes[2].startswith("position 1: ")
    assert browser.run(TEXTS, ".readout:not([hidden])")[0].endswith(attributes[2])
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    assert browser.run(TEXTS, ".readout:not([hidden])")[0].startswith("short, ORT GenAI, position 1: ")
    stops = "return [...document.querySelectorAll('.heat')].map(e => e.querySelectorAll('[tabindex=\"0\"]').length)"
    assert set(browser.run(stops)) == {1}


def test_everything_can_be_reached_by_name(browser: Browser, page: Callable[[str], Path]) -> None:
    """What a screen reader is told: the tree that Chromium itself makes of the page."""
    browser.show(page("wrong"), 1400)
    nodes: list[dict[str, Any]] = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    named = [
        (n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"] and "role" in n
    ]
    asked = {"slider", "table", "region", "image", "link", "navigation", "heading"}
    assert {role for role, _ in named} >= asked
    assert [(role, name) for role, name in named if role in asked and not name] == []
    assert next(name for role, name in named if role == "heading") == f"wrong against {KIND}"
    assert {"columnheader", "rowheader"} <= {role for role, _ in named}


def test_without_scripts_nothing_is_lost(browser: Browser, page: Callable[[str], Path], reports: Reports) -> None:
    browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.show(page("wrong"), 1400)
        nodes: list[dict[str, Any]] = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    finally:
        browser.devtools("Emulation.setScriptExecutionDisabled", value=False)
    images = [n["name"]["value"] for n in nodes if not n["ignored"] and n["role"]["value"] == "image"]
    for row in (row for panel in reports("wrong").section(Heatmap).panels for row in panel.rows):
        assert any(name.startswith(f"{row.label}, ") and f"at {place(row)} {row.worst_at}" in name for name in images)


def place(row: Any) -> str:
    return "layer" if row.probe == "cache" else "position"


def test_on_paper_everything_is_open(browser: Browser, page: Callable[[str], Path]) -> None:
    browser.show(page("right"), 1000, media="print")
    assert browser.run("return getComputedStyle(document.querySelector('nav')).display") == "none"
    folded = "return [...document.querySelectorAll('details')].filter(each => !each.open).length"
    before = browser.run(folded)
    assert before > 5
    browser.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    opened = browser.pages()
    browser.run("document.querySelectorAll('details').forEach(each => each.remove())")
    assert browser.pages() < opened
    browser.show(page("right"), 1000, media="print")
    assert browser.pages() == opened
    assert browser.run(folded) == before


def test_near_ties_stand_out(browser: Browser, reports: Reports, tmp_path: Path) -> None:
    evidence = reports("right").evidence
    evidence = evidence.model_copy(update={"probes": tuple(with_choices(record) for record in evidence.probes)})
    write_page(of_verification(evidence, "ties"), tmp_path / "ties.html")
    browser.show(tmp_path / "ties.html", 1400)
    assert browser.run("return [...document.querySelectorAll('details.prompt')].map(each => each.open)") == [
        True,
        *[False] * 4,
    ]
    assert browser.run(TEXTS, ".tokens td.near-tie") == ["near tie 7", "near tie 7"]
    assert browser.run(TEXTS, ".tokens td.different") == ["different 8", "different 8"]


def test_hostile_words_do_nothing(browser: Browser, reports: Reports, tmp_path: Path) -> None:
    evil = (
        "</title></style></script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\u202e"
        + "w" * 500
    )
    evidence = reports("wrong").evidence
    finding = Finding(code="logits-diverge", severity="error", where=evil, message=evil, remedy=evil)
    checkpoint = evidence.checkpoint.model_copy(update={"name": evil})
    probes = tuple(p.model_copy(update={"boundary": evil, "reason": evil}) for p in evidence.probes)
    changed = {
        "findings": (finding,),
        "checkpoint": checkpoint,
        "signatures": {evil: evil},
        "blind": (evil,),
        "probes": probes,
    }
    report = of_verification(evidence.model_copy(update=changed), evil, ParitasError("code", evil), lambda ids: evil)
    write_page(report, tmp_path / "evil.html")
    for width in WIDTHS:
        browser.show(tmp_path / "evil.html", width)
        assert browser.run("return window.hacked ?? null") is None
        assert browser.logged("browser") == []
        assert [url for url in browser.requests() if not url.startswith("file:")] in ([], ["data:,"])
        assert browser.run("return document.documentElement.scrollWidth") == width


def test_a_missing_chromium_fails_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssertionError, match="apt-get install chromium chromium-driver"):
        Browser(tmp_path)
