"""The documents are true: every command in them runs, every link leads somewhere, every list is complete."""

import ast
import contextlib
import gc
import io
import json
import os
import re
import shlex
import sys
import tomllib
import types
from dataclasses import dataclass, replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import paritas.export
import paritas.plan
from paritas.cli import app
from paritas.families import families
from paritas.spec import Decoder
from paritas.targets import TARGETS
from paritas.verify.evidence import Evidence

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REFERENCE = ROOT / "docs" / "reference"
CONTEXT = 2048  # so that what a user may type fits into the tiny models


@dataclass(frozen=True)
class Block:
    """A fenced block: the words after the fence, and its lines."""

    kind: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Of a bash block: every line; a comment of its own is none."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(document: Path, *kinds: str) -> list[Block]:
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [Block(words, text) for words, text in found if words.split()[:1] and words.split()[0] in kinds]


def commands(document: Path) -> list[str]:
    return [line for block in blocks(document, "bash") for line in block.commands]


def name(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def tool(file: str) -> types.ModuleType:
    """A script of tools/, as a module."""
    return module(file, (ROOT / "tools" / f"{file}.py").read_text(encoding="utf-8"), ROOT / "tools" / f"{file}.py")


def module(title: str, source: str, file: Path) -> types.ModuleType:
    made = types.ModuleType(title)
    made.__file__ = str(file)
    sys.modules[title] = made  # dataclasses look there
    exec(compile(source, str(file), "exec"), made.__dict__)
    return made


# The world that the documents speak of: the models' names, and tiny models behind them.


@pytest.fixture(scope="session")
def world(shared_folder: Path) -> Path:
    """A folder with a tiny checkpoint under every name that a document uses."""
    import tiny  # noqa: F401 - torch and transformers, before anything is measured or frozen

    final = shared_folder / "documents"
    if not final.exists():
        aside = shared_folder / f"documents.{os.getpid()}"
        make_world(aside)
        with contextlib.suppress(OSError):  # another worker was first
            aside.rename(final)
    return final


def make_world(folder: Path) -> None:
    import pairs
    import quantised
    import tiny

    for checkpoint in ("SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", "my-finetune"):
        tiny.tiny_llama(folder / checkpoint, max_position_embeddings=CONTEXT)
    tiny.tiny_gemma3(folder / "gemma-3-270m", max_position_embeddings=CONTEXT)
    tiny.tiny_gemma3_multimodal(folder / "google/gemma-3-4b-it", tiny.HUB_PREFIXES)
    config = folder / "google/gemma-3-4b-it/config.json"
    values = json.loads(config.read_text())
    values["text_config"]["max_position_embeddings"] = CONTEXT
    config.write_text(json.dumps(values))
    tiny_qwen3(folder / "Qwen3-0.6B")
    pairs.tiny_target(folder / "gemma-4-E2B-it")
    pairs.tiny_drafter(folder / "gemma-4-E2B-it-assistant", **pairs.CLUSTERS)
    tiny_adapter(folder / "my-adapter")
    quantised.write(folder / "my-finetune", folder / "my-finetune-gptq", quantised.gptq)
    tiny_gguf(folder / "SmolLM2-135M-Instruct.Q4_1.gguf")
    broken_package(folder / "gemma-3-270m", folder / "theirs")
    their_exporter(folder / "their-exporter")


def tiny_qwen3(folder: Path) -> None:
    from transformers import Qwen3Config

    import tiny

    config = Qwen3Config(
        vocab_size=tiny.VOCAB,
        hidden_size=tiny.HIDDEN,
        intermediate_size=104,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        use_sliding_window=True,
        sliding_window=tiny.WINDOW,
        max_window_layers=2,
        attention_bias=True,
        rms_norm_eps=3e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5_000.0},
        **tiny.TOKEN_IDS,
    )
    tiny.save(folder, config, tiny.CHATML, [tiny.EOS, tiny.IM_END])


def tiny_adapter(folder: Path) -> None:
    """LoRA on the queries of two layers, as PEFT names it."""
    import torch
    from safetensors.torch import save_file

    import tiny

    torch.manual_seed(6)
    parts = {"A": torch.randn(4, tiny.HIDDEN), "B": torch.randn(6 * tiny.HEAD_DIM, 4)}
    modules = [f"base_model.model.model.layers.{layer}.self_attn.q_proj" for layer in range(2)]
    tensors = {f"{module}.lora_{part}.weight": each / 9 for module in modules for part, each in parts.items()}
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    values = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": r"model\.layers\.[01]\.self_attn\.q_proj"}
    (folder / "adapter_config.json").write_text(json.dumps(values))


def tiny_gguf(file: Path) -> None:
    from test_gguf import Model, Q

    random = np.random.default_rng(11)

    class Plain(Model):
        """In fp32, and of a size that keeps the size of what goes through."""

        def add(self, name: str, shape: tuple[int, ...], kind: Q, shift: float = 0.0) -> None:
            spread = 0.3 if len(shape) == 1 else shape[-1] ** -0.5
            self.tensors[name] = (random.normal(size=shape) * spread + shift).astype(np.float32), Q.F32

    model = Plain("llama")
    model.keys["llama.context_length"] = CONTEXT
    model.write(file.parent).rename(file)


def broken_package(checkpoint: Path, out: Path) -> None:
    """The sliding layers rotate with the scaling of the full ones."""
    read = paritas.plan.read_spec

    def faulty(*given: object) -> Decoder:
        spec: Decoder = read(*given)  # type: ignore[arg-type]
        (scaling, *_) = {layer.attention.rope.scaling for layer in spec.layers if layer.attention.window is None}
        layers = (
            replace(layer, mixer=replace(layer.attention, rope=replace(layer.attention.rope, scaling=scaling)))
            for layer in spec.layers
        )
        return replace(spec, layers=tuple(layers))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paritas.plan, "read_spec", faulty)
        paritas.export.export(checkpoint, out, TARGETS["ort"])


def their_exporter(file: Path) -> None:
    """A program with the same fault."""
    tests = str(ROOT / "tests")
    lines = (f"#!{sys.executable}", "import sys", f"sys.path.insert(0, {tests!r})", "import faulty_exporter")
    call = 'faulty_exporter.main("local layers inherit the global factor", *sys.argv[1:])'
    file.write_text("\n".join((*lines, call)) + "\n")
    file.chmod(0o755)


# Commands.


@dataclass(frozen=True)
class Step:
    """One line of a bash block: words, where stdout goes, and the exit code that the line promises."""

    words: list[str]
    into: str | None
    exit_code: int


def step(line: str) -> Step:
    promise = re.search(r"#.*\bexits (\d+)", line)
    words = shlex.split(line, comments=True)
    into = None
    if ">" in words:
        words, into = words[: words.index(">")], words[-1]
    return Step(words, into, int(promise[1]) if promise else 0)


WITH_COMMANDS = [d for d in DOCUMENTS if any(line.startswith("paritas ") for line in commands(d))]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("document", WITH_COMMANDS, ids=name)
def test_every_command_does_what_the_document_says(
    document: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.freeze()  # verify collects after every probe; torch's and transformers' million objects need no visit
    for model in world.iterdir():
        (tmp_path / model.name).symlink_to(model)
    monkeypatch.chdir(tmp_path)
    if any(is_family(block) for block in blocks(document, "python")):
        monkeypatch.delitem(families(), "qwen3")  # until the document adds it
    for block in blocks(document, "bash", "python"):
        if block.kind == "bash":
            for line in block.commands:
                if line.startswith("paritas "):
                    run(step(line), line)
        elif is_family(block):
            monkeypatch.setitem(families(), "qwen3", module("qwen3", block.text, document))
        elif "run" in block.kind.split():
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, name(document), "exec"), {})


def run(given: Step, line: str) -> None:
    result = CliRunner().invoke(app, given.words[1:], env={"COLUMNS": "110"})
    assert result.exit_code == given.exit_code, f"{line}\n{result.output}"
    assert "Traceback" not in result.output
    if "--json" in given.words:
        json.loads(result.stdout)
    gc.freeze()
    if given.into:
        Path(given.into).write_text(result.stdout, encoding="utf-8")


def is_family(block: Block) -> bool:
    return "MODEL_TYPES" in block.text


def test_the_example_of_a_family_is_of_the_size_of_a_page() -> None:
    (example,) = [block for document in DOCUMENTS for block in blocks(document, "python") if is_family(block)]
    assert len(example.text.splitlines()) <= 70
    assert example.text.strip() == (ROOT / "src/paritas/families/qwen3.py").read_text().strip()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_other_command_names_what_there_is(document: Path) -> None:
    for line in commands(document):
        for part in re.split(r"\s&&\s", line):
            check_command(shlex.split(part, comments=True), line)


def check_command(words: list[str], line: str) -> None:
    program, *rest = [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]
    known = {"paritas": no_check, "git": no_check, "cd": no_check, "make": check_make, "pip": check_pip}
    known |= {"python": check_script, "pytest": check_pytest}
    assert program in known, f"no check for {line!r}"
    known[program](rest)


def no_check(words: list[str]) -> None:
    assert words


def check_make(words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(words) <= targets


def check_pip(words: list[str]) -> None:
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )
    assert words[0] == "install"
    for asked in re.findall(r"\[([\w,]+)\]", " ".join(words)):
        assert set(asked.split(",")) <= extras


def check_script(words: list[str]) -> None:
    assert (ROOT / words[0]).is_file()


def check_pytest(words: list[str]) -> None:
    for word in words:
        if word.startswith("tests"):
            assert (ROOT / word.split("::")[0]).exists(), word


# Lists.


def options(command: typer.core.TyperCommand) -> set[str]:
    return {option for p in command.params if p.param_type_name == "option" for option in [*p.opts, *p.secondary_opts]}


def test_the_reference_of_commands_lists_every_option_and_no_other() -> None:
    group = typer.main.get_command(app)
    _, *sections = re.split(r"^## ", (REFERENCE / "commands.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    told = {section.split("\n")[0].strip("`"): set(re.findall(r"`(-[\w-]+)", tables(section))) for section in sections}
    real = {f"paritas {title}": options(command) for title, command in group.commands.items()}  # type: ignore[attr-defined]
    assert told == {"paritas": options(group) | {"-h", "--help"}, **real}  # type: ignore[arg-type]


def tables(text: str) -> str:
    """The first cells of all tables."""
    return "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))


def test_the_reference_of_errors_lists_every_code_with_its_exit() -> None:
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| ([\w, ]+) \|", (REFERENCE / "errors.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) == len(dict(rows))
    told = {code: set(exits.split(", ")) for code, exits in rows}
    assert told == tool("list_errors").errors()


def test_the_schema_of_the_evidence_is_current() -> None:
    schema = (REFERENCE / "evidence.schema.json").read_text(encoding="utf-8")
    assert schema == tool("write_schema").schema(), "make snapshots writes it anew"
    jsonschema.Draft202012Validator.check_schema(json.loads(schema))


def test_the_reference_of_the_evidence_names_every_field() -> None:
    text = (REFERENCE / "evidence.md").read_text(encoding="utf-8")
    schema = Evidence.model_json_schema(mode="serialization")
    fields = {f for record in [schema, *schema["$defs"].values()] for f in record.get("properties", {})}
    assert {field for field in fields if f"`{field}`" not in text} == set()


def test_the_source_tree_is_current_and_every_module_says_what_it_is() -> None:
    tree = (REFERENCE / "source-tree.md").read_text(encoding="utf-8")
    assert tree == tool("write_tree").page(), "make snapshots writes it anew"
    assert "| |\n" not in tree.replace("| module | |\n", "")


def test_the_tree_of_the_readme_is_there() -> None:
    """Of folders and files by indentation."""
    (block,) = [b for b in blocks(ROOT / "README.md", "text") if "src/paritas/" in b.text]
    parents: list[tuple[int, str]] = []
    for line in block.text.splitlines():
        depth, word = len(line) - len(line.lstrip()), line.split()[0]
        parents = [(d, p) for d, p in parents if d < depth]
        path = (parents[-1][1] if parents else "") + word
        parents.append((depth, path))
        assert (ROOT / path).exists(), path
    named = {path for _, path in parents} | set(block.text.split())
    folders = {f"{path.parent.name}/" for path in (ROOT / "src/paritas").glob("*/__init__.py")}
    assert folders - named == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_link_leads_somewhere(document: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not link.startswith(("https://", "#")):
            assert (document.parent / link.split("#")[0]).exists(), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_example_in_python_is_python(document: Path) -> None:
    for block in blocks(document, "python"):
        ast.parse(block.text)


FORBIDDEN = r"(?<![\w.])/(work|tmp|root|home)/|\.\./shared|PyPI mirror|localhost|127\.0\.0\.1|\b\d+\.\d+\.\d+\.\d+:\d+"


@pytest.mark.parametrize(
    "file",
    [*DOCUMENTS, ROOT / "Makefile", ROOT / ".ci/run", ROOT / "constraints.txt", ROOT / "pyproject.toml"],
    ids=name,
)
def test_nothing_names_a_machine(file: Path) -> None:
    assert re.findall(FORBIDDEN, file.read_text(encoding="utf-8")) == []
