"""What a user's CI gets: JUnit XML, and a fixture for pytest."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import Result

from checkpoints import paritas, refused
from paritas.export import export
from paritas.pytest_plugin import AssertParity
from paritas.targets import TARGETS
from paritas.verify import junit
from paritas.verify.evidence import Evidence
from paritas.verify.replay import replay
from paritas.verify.run import verify
from paritas.verify.verdict import Verdict

RAW = ("onnxruntime",)


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("llama")


@pytest.fixture(scope="module")
def package(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not proven by its export: the tests here do that."""
    out = tmp_path_factory.mktemp("ci") / "package"
    export(model, out, TARGETS["onnx"])
    return out


@pytest.fixture(scope="module")
def broken(package: Path) -> Path:
    """With other weights in the last bytes."""
    out = package.with_name("broken")
    shutil.copytree(package, out)
    data = np.fromfile(out / "model.onnx.data", np.float32)
    data[-2000:] += 0.5
    data.tofile(out / "model.onnx.data")
    return out


@pytest.fixture(scope="module")
def evidence(package: Path, model: Path) -> Evidence:
    return verify(package, model, runtimes=RAW, power=False)


@pytest.fixture(scope="module")
def record(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evidence.write(tmp_path_factory.mktemp("record"))


# JUnit


def cases(document: bytes) -> dict[tuple[str, str], ElementTree.Element]:
    suite = ElementTree.fromstring(document).find("testsuite")
    assert suite is not None
    found = suite.findall("testcase")
    outcomes = [child.tag for case in found for child in case if child.tag != "system-out"]
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    assert {name: int(suite.attrib[name]) for name in counts} == {n: outcomes.count(t) for n, t in counts.items()}
    assert int(suite.attrib["tests"]) == len(found)
    return {(case.attrib["classname"], case.attrib["name"]): case for case in found}


def test_a_case_for_each_probe_and_runtime(evidence: Evidence) -> None:
    found = cases(junit.to_xml(evidence))
    assert list(found) == [(f"paritas.{probe.runtime}", probe.id) for probe in evidence.probes]
    assert all(float(case.attrib["time"]) >= 0 for case in found.values())
    assert found["paritas.onnxruntime", "short"].find("failure") is None
    assert "floors" in str(found["paritas.onnxruntime", "short"].findtext("system-out"))


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (Verdict.PROVEN, None),
        (Verdict.UNEXPLAINED, "failure"),
        (Verdict.DIVERGES, "failure"),
        (Verdict.INVALID, "error"),
        (Verdict.NOT_TESTED, "skipped"),
    ],
)
def test_every_verdict_has_its_outcome(evidence: Evidence, verdict: Verdict, outcome: str | None) -> None:
    reason = "a runtime said \x1b[31m<no>\x00\udcff" if outcome in ("error", "skipped") else None
    probe = evidence.probes[0].model_copy(update={"verdict": verdict, "reason": reason})
    (case,) = cases(junit.to_xml(evidence.model_copy(update={"probes": (probe,)}))).values()
    assert [child.tag for child in case if child.tag != "system-out"] == ([outcome] if outcome else [])
    if reason is not None:
        assert case.find(str(outcome)).attrib["message"] == "a runtime said �[31m<no>��"  # type: ignore[union-attr]


def test_the_command_writes_it_whatever_the_verdict(broken: Path, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "parity.xml"
    file.write_text("of an earlier run")
    words = ("verify", str(broken), "-a", str(model), "--runtime", "onnxruntime", "--no-power", "--junit", str(file))
    assert paritas(*words, "--quiet").exit_code == 1
    case = cases(file.read_bytes())["paritas.onnxruntime", "short"]
    failure = case.find("failure")
    assert failure is not None
    assert failure.attrib["type"] == "diverges"
    assert "logits-diverge" in str(failure.text)
    assert list(tmp_path.iterdir()) == [file]


def test_an_export_writes_it_too(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "parity.xml"
    done = paritas("export", str(model), str(tmp_path / "out"), "--no-power", "--junit", str(file), "-q")
    assert done.exit_code == 0
    assert ("paritas.onnxruntime", "short") in cases(file.read_bytes())


def test_a_place_that_cannot_be_written_is_refused_before_the_work(package: Path, model: Path, tmp_path: Path) -> None:
    words = ("verify", str(package), "-a", str(model), "--junit")
    refused(paritas(*words, str(tmp_path / "nowhere" / "a.xml")), "output-unwritable", "nowhere")
    refused(paritas(*words, str(tmp_path)), "output-unwritable", tmp_path.name)
    export_ = ("export", str(model), str(tmp_path / "out"))
    refused(paritas(*export_, "--junit", str(tmp_path / "nowhere" / "a.xml")), "output-unwritable", "nowhere")
    refused(paritas(*export_, "--no-verify", "--junit", str(tmp_path / "a.xml")), "junit-without-verify", "--no-verify")
    assert list(tmp_path.iterdir()) == []


# The fixture


def test_the_fixture_passes_what_is_proven(assert_parity: AssertParity, package: Path, model: Path) -> None:
    assert assert_parity(package, str(model), runtimes=["onnxruntime"]).verdict is Verdict.PROVEN


def test_the_fixture_fails_with_the_report(assert_parity: AssertParity, broken: Path, model: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="not proven\ndiverges") as failed:
        assert_parity(broken, model, ["onnxruntime"])
    assert "logits-diverge" in str(failed.value)
    assert "\x1b" not in str(failed.value)


def test_the_fixture_fails_with_an_error(assert_parity: AssertParity, package: Path, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="checkpoint-missing"):
        assert_parity(package, tmp_path / "nowhere")
    with pytest.raises(pytest.fail.Exception, match="runtime-unknown"):
        assert_parity(package, tmp_path, runtimes=["cuda"])


def test_pytest_starts_without_anything_heavy() -> None:
    program = """
import sys
import pytest
import paritas.pytest_plugin
assert not {"torch", "transformers", "onnx", "onnxruntime", "numpy", "rich", "pydantic"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Replay


def test_the_same_machine_finds_the_same(record: Path, evidence: Evidence, package: Path, model: Path) -> None:
    done = paritas("verify", str(package), "-a", str(model), "--replay", str(record), "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)["replay"]
    assert [(row["probe"], row["runtime"]) for row in found] == [(p.id, p.runtime) for p in evidence.probes]
    assert [row["now"] for row in found] == [row["then"] for row in found]
    shown = paritas("verify", str(package), "-a", str(model), "--replay", str(record))
    assert "replay, in floors" in shown.output


def test_the_tokens_are_the_records(evidence: Evidence, package: Path, model: Path) -> None:
    """Also those that this machine's reference would not have chosen."""
    changed = {each.name: each.model_copy(update={"ids": (*each.ids[:-1], 17)}) for each in evidence.sequences}
    earlier = evidence.model_copy(update={"sequences": tuple(changed.values())})
    replayed = replay(earlier, package, model)
    assert {each.name: each.ids for each in replayed.evidence.sequences} == {n: e.ids for n, e in changed.items()}
    assert replayed.evidence.verdict is Verdict.PROVEN
    assert {row.runtime for row in replayed.rows} == set(RAW)
    assert all(row.now is not None for row in replayed.rows if row.then is not None)


def test_what_a_record_is_not_about_is_refused(
    record: Path, package: Path, broken: Path, model: Path, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def against(package: Path, model: Path, record: Path) -> Result:
        return paritas("verify", str(package), "-a", str(model), "--replay", str(record))

    refused(against(broken, model, record), "replay-another-package", "model.onnx.data")
    refused(against(package, checkpoint("gemma3"), record), "replay-another-checkpoint", "sha256")
    refused(against(package, model, tmp_path / "nowhere.json"), "replay-unreadable", "nowhere.json")
    (tmp_path / "other.json").write_text("{}")
    refused(against(package, model, tmp_path / "other.json"), "replay-unreadable", "other.json")
