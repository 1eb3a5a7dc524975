"""inference_metadata.yaml: what it says of each kind of decoder, and that the released onnx-genai runs by it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

import wheel
from paritas.checkpoint import open_checkpoint
from paritas.export import export
from paritas.lint.run import lint
from paritas.lint.schema import validator
from paritas.metadata import released, text
from paritas.metadata.decoder import read_decoder
from paritas.metadata.dialect import Dialect
from paritas.metadata.looped import looped, policies
from paritas.metadata.workflow import Document, Tokens
from paritas.plan import Options, prepare
from paritas.targets import TARGETS
from threefry import sampled

CASES = ("llama", "gemma3", "qwen3", "lfm2", "gemma4", "gemma3n")
NEW = 24
PROMPTS = (
    "A small stone bridge crosses the river behind our school.",
    "What do you see from there? Two boats",
    "What do you see from there? A heron",  # of which the wheel has a prefix by then
)
Packages = Callable[[str, str, Dialect], Path]


@pytest.fixture(scope="module")
def packages(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Packages:
    made: dict[tuple[str, str, Dialect], Path] = {}
    base = tmp_path_factory.mktemp("metadata")

    def package(name: str, target: str, dialect: Dialect) -> Path:
        if (name, target, dialect) not in made:
            out = base / f"{name}-{target}-{dialect.value}"
            export(checkpoint(name), out, TARGETS[target], Options(metadata=dialect))
            made[name, target, dialect] = out
        return made[name, target, dialect]

    return package


def metadata(package: Path) -> dict[str, Any]:
    return yaml.safe_load((package / "inference_metadata.yaml").read_text(encoding="utf-8"))


def groups(package: Path) -> dict[str, Any]:
    return metadata(package)["pipeline"]["workflow"]["serving"]["state_service"]["groups"]


def owners(group: dict[str, Any], component: str = "decoder") -> list[int]:
    return sorted({alias["layer"] for alias in group["ports"][component].values()})


def record(package: Path) -> dict[str, Any]:
    return json.loads((package / "evidence" / "inference_metadata.json").read_text())


# What the released wheel does by it.


def test_the_wheel_generates_the_reference_tokens(
    packages: Packages, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Of every family here on every target, and a second time on a prefix that it has kept."""
    asked = [(name, target) for name in CASES for target in TARGETS]
    how = {"max_tokens": NEW, "temperature": 0.0}
    answers = wheel.generate([(packages(*each, Dialect.DEFAULT), PROMPTS, how) for each in asked], tmp_path)
    wanted = {name: [reference(checkpoint(name), prompt) for prompt in PROMPTS] for name in CASES}
    for (name, target), found in zip(asked, answers, strict=True):
        assert found == wanted[name], (name, target)


def reference(checkpoint: Path, prompt: str) -> list[int]:
    """transformers' greedy tokens, with the end token if it comes to one."""
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    found = model.generate(ids, max_new_tokens=NEW, do_sample=False, repetition_penalty=1.0)
    return found[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_the_linter_and_the_wheel_take_it(packages: Packages, name: str, target: str) -> None:
    found = lint(packages(name, target, Dialect.DEFAULT))
    assert found.findings == ()
    assert found.reader is not None
    assert found.reader.refusal is None
    assert (found.version, found.reader.version) == ("v1.2", released.WHEEL)


def test_a_drafter_beside_its_target(tmp_path: Path) -> None:
    """The loop of policies is the wheel's only way to drive two graphs; it gives what the target alone gives."""
    import pairs

    pairs.tiny_target(tmp_path / "target")
    pairs.tiny_drafter(tmp_path / "drafter")
    options = Options(drafter=tmp_path / "drafter", hidden_states=("last",))
    export(tmp_path / "target", tmp_path / "out", TARGETS["ort"], options)
    values = metadata(tmp_path / "out")
    given = values["speculative"]
    assert values["schema_version"] == "v1.6"
    assert given["rollback_state"] == [
        f"past_key_values.{layer}.{half}" for layer in range(4) for half in ("key", "value")
    ]
    assert given["proposal_execution"]["token_embedding"]["scale"] == pytest.approx(72**0.5)
    reads = {name: group["ports"]["assistant"] for name, group in groups(tmp_path / "out").items()}
    assert set(reads["sliding_attention"]) == {"past_key_values.2.key", "past_key_values.2.value"}
    assert set(reads["full_attention"]) == {"past_key_values.3.key", "past_key_values.3.value"}
    how = {"max_tokens": NEW, "temperature": 0.0}
    (answers,) = wheel.generate([(tmp_path / "out", PROMPTS[:2], how)], tmp_path)
    assert answers == [reference(tmp_path / "target", prompt) for prompt in PROMPTS[:2]]


# What it says.


def test_groups_are_the_kinds_of_layers(packages: Packages) -> None:
    found = groups(packages("gemma3", "ort", Dialect.DEFAULT))
    assert {name: owners(group) for name, group in found.items()} == {
        "full_attention": [2, 5],
        "sliding_attention": [0, 1, 3, 4, 6],
    }
    assert found["full_attention"]["reuse"] == {"prefix_reusable": True, "evictable_prefix": False}
    assert found["sliding_attention"]["reuse"] == {"prefix_reusable": True, "evictable_prefix": True}
    assert {group["aliasing"] for group in found.values()} == {"permitted"}
    plain = groups(packages("gemma3", "onnx", Dialect.DEFAULT))
    assert {group["aliasing"] for group in plain.values()} == {"forbidden"}


def test_convolutions_are_recurrent_states(packages: Packages) -> None:
    found = groups(packages("lfm2", "ort", Dialect.DEFAULT))
    conv = found["recurrent"]
    assert conv["update"] == {"kind": "replace"}
    assert "sequence_axis" not in conv
    assert "rollback_positions" not in conv["capabilities"]
    layers = {layer for group in found.values() for layer in owners(group)}
    assert layers == set(range(len(layers)))
    assert not any(group["reuse"]["prefix_reusable"] for group in found.values())


def test_e2b_geometry(tmp_path: Path) -> None:
    """35 layers, every fifth full, the last 20 without keys of their own: 3 full owners and 12 sliding ones."""
    import tiny_gemma4

    types = [tiny_gemma4.FULL if layer % 5 == 4 else tiny_gemma4.SLIDING for layer in range(35)]
    depth = {"num_hidden_layers": 35, "num_kv_shared_layers": 20, "layer_types": types}
    tiny_gemma4.tiny_gemma4(tmp_path / "model", **tiny_gemma4.E2B | depth)
    export(tmp_path / "model", tmp_path / "out", TARGETS["ort"])
    found = groups(tmp_path / "out")
    assert owners(found["full_attention"]) == [4, 9, 14]
    assert owners(found["sliding_attention"]) == [layer for layer in range(15) if layer not in (4, 9, 14)]
    inputs = metadata(tmp_path / "out")["pipeline"]["workflow"]["components"]["decoder"]["ports"]["inputs"]
    heads = {name: contract["shape"][3] for name, contract in inputs.items() if name.startswith("past")}
    assert {heads[f"past_key_values.{layer}.key"] for layer in (4, 9, 14)} == {2 * tiny_gemma4.HEAD_DIM}
    assert len(heads) == 30
    assert wheel.shows(tmp_path / "out") is None


def test_ports_are_those_of_the_saved_graph(packages: Packages) -> None:
    import onnx

    package = packages("gemma4", "onnx", Dialect.DEFAULT)
    graph = onnx.load(package / "model.onnx", load_external_data=False).graph
    ports = metadata(package)["pipeline"]["workflow"]["components"]["decoder"]["ports"]
    for side, values in (("inputs", graph.input), ("outputs", graph.output)):
        shapes = {v.name: [d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim] for v in values}
        assert {name: contract["shape"] for name, contract in ports[side].items()} == shapes


@pytest.mark.parametrize("dialect", [Dialect.DEFAULT, Dialect.CANONICAL])
def test_one_package_has_one_text_without_hashes(
    checkpoint: Callable[[str], Path], packages: Packages, dialect: Dialect, tmp_path: Path
) -> None:
    package = packages("llama", "ort", dialect)
    export(checkpoint("llama"), tmp_path / "again", TARGETS["ort"], Options(metadata=dialect))
    for path in package.rglob("*"):
        if path.name == text.FILE or path.parent.name == "policies":
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(package)).read_bytes()
    written = (package / text.FILE).read_text(encoding="utf-8")
    assert not any(word in written for word in ("sha256", "digest", "fingerprint", "&", "*"))
    assert json.loads(json.dumps(metadata(package))) == metadata(package)


def test_tokens_and_defaults_are_those_of_genai_config(packages: Packages) -> None:
    package = packages("llama", "ort", Dialect.DEFAULT)
    values, genai = metadata(package), json.loads((package / "genai_config.json").read_text())
    special = values["package"]["tokenizer"]["special_tokens"]
    assert special == {key: genai["model"][key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    assert values["generation"]["defaults"] == {"repetition_penalty": 1.1}
    assert values["model"] == {"max_sequence_length": 128, "vocab_size": 331}
    tokenizer = json.loads((package / "tokenizer.json").read_text())
    assert values["package"]["tokenizer"]["vocab_size"] == len(tokenizer["model"]["vocab"])
    assert values["package"]["tokenizer"]["algorithm"] == "bpe"


def test_the_evidence_says_what_has_no_effect(packages: Packages) -> None:
    found = record(packages("llama", "ort", Dialect.DEFAULT))
    assert (found["schema_version"], found["policies"], found["left_out"]) == ("v1.2", [], {})
    assert set(found["limits"]) == {"generation.defaults.repetition_penalty"}
    assert found["reader"] == f"onnx-genai {released.WHEEL}"


def test_without_a_tokenizer(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    export(checkpoint("llama"), tmp_path / "out", TARGETS["ort"], Options(tokenizer=False))
    values = metadata(tmp_path / "out")
    assert "artifacts" not in values["package"]["tokenizer"]
    assert {finding.code for finding in lint(tmp_path / "out").findings} == {"metadata-refused", "metadata-tokenizer"}


def test_none_writes_none(packages: Packages) -> None:
    package = packages("llama", "ort", Dialect.NONE)
    assert not (package / "inference_metadata.yaml").exists()
    assert [finding.code for finding in lint(package).findings] == ["metadata-missing"]


# The dialect of August, and the policies.


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_canonical_is_valid_and_its_policies_are_there(packages: Packages, name: str, target: str) -> None:
    package = packages(name, target, Dialect.CANONICAL)
    assert [error.message for error in validator(canonical=True).iter_errors(metadata(package))] == []
    found = lint(package)
    assert found.findings == ()
    assert found.version == "v1"
    assert sorted(path.name for path in (package / "policies").iterdir()) == sorted(
        Path(name).name for name in record(package)["policies"]
    )
    assert "inference_metadata.yaml" in record(package)["limits"]  # nothing that was released reads it


def test_the_steps_of_the_policies_generate_and_sample(
    checkpoint: Callable[[str], Path], packages: Packages, tmp_path: Path
) -> None:
    """The same steps in the wheel's dialect: it runs them, greedily and by the sampler's own random numbers."""
    cases = [(name, target) for name in ("gemma3", "lfm2") for target in TARGETS]
    folders = [
        stepwise(packages(*case, Dialect.CANONICAL), checkpoint(case[0]), tmp_path / "-".join(case)) for case in cases
    ]
    greedy = {"max_tokens": NEW, "temperature": 0.0}
    drawn = {"max_tokens": NEW, "temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 12}
    asked = [(folder, PROMPTS[:2], how) for folder in folders for how in (greedy, drawn)]
    answers = wheel.generate(asked, tmp_path)
    for place, (name, _) in enumerate(cases):
        assert answers[2 * place] == [reference(checkpoint(name), prompt) for prompt in PROMPTS[:2]], name
        found = answers[2 * place + 1]
        assert found == [
            stated(folders[place], prompt, drawn, len(f)) for prompt, f in zip(PROMPTS, found, strict=False)
        ]
        assert found != answers[2 * place]


def stepwise(package: Path, checkpoint: Path, out: Path) -> Path:
    """A package whose metadata has the steps of the canonical dialect in the words of the released one."""
    plan = prepare(open_checkpoint(checkpoint), TARGETS["ort"], Options())
    decoder = read_decoder(package / "model.onnx", plan.spec)
    ends = plan.runtime_config["model"]["eos_token_id"]
    sampling = {"temperature": 0.0, "top_k": 0.0, "top_p": 1.0, "min_p": 0.0}
    workflow = looped(decoder, plan.context, policies(decoder, ends), sampling)
    document = Document(workflow, decoder.vocab, plan.context, Tokens(2, tuple(ends), 0), None, {})
    shutil.copytree(package, out, copy_function=os.link)
    (out / "inference_metadata.yaml").unlink()
    (out / "inference_metadata.yaml").write_text(text.dump(released.document(document)), encoding="utf-8")
    assert [error.message for error in validator(canonical=False).iter_errors(metadata(out))] == []
    return out


def stated(package: Path, prompt: str, how: dict[str, Any], count: int) -> list[int]:
    """What the sampler's statement in numpy draws from the package's own logits."""
    from tokenizers import Tokenizer

    from paritas.runtime.package import open_package
    from paritas.runtime.session import RawSession

    ids = Tokenizer.from_file(str(package / "tokenizer.json")).encode(prompt).ids
    session, found = RawSession(open_package(package)), list[int]()
    while len(found) < count:
        logits = session.forward(np.array([[*ids, *found]]))[0][0, -1]
        row = {"logits": logits, "temperature": np.float32(how["temperature"]), "top_k": how["top_k"]}
        row |= {"top_p": np.float32(how["top_p"]), "min_p": 0.0, "seed": how["seed"], "counter": len(found)}
        found.append(sampled(row))
    return found


def test_schemas_are_schemas() -> None:
    for canonical in (True, False):
        jsonschema.Draft202012Validator.check_schema(validator(canonical).schema)
