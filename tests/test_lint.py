"""Wrong metadata is refused with the right code, right metadata is not; the table says what the wheel does with it."""

import copy
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from checkpoints import paritas
from paritas.export import export
from paritas.lint import reader
from paritas.lint.run import lint
from paritas.metadata.dialect import Dialect
from paritas.plan import Options
from paritas.targets import TARGETS

Values = dict[str, Any]
Change = Callable[[Values], object]


@pytest.fixture(scope="module")
def base(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A right package of each kind: a decoder, a drafter beside its target, a decoder in the dialect of August."""
    import pairs

    folder = tmp_path_factory.mktemp("lint")
    pairs.tiny_target(folder / "target")
    pairs.tiny_drafter(folder / "drafter")
    export(checkpoint("gemma3"), folder / "decoder", TARGETS["onnx"], Options(hidden_states=("last",)))
    export(checkpoint("gemma3"), folder / "canonical", TARGETS["onnx"], Options(metadata=Dialect.CANONICAL))
    beside = Options(drafter=folder / "drafter", hidden_states=("last",))
    export(folder / "target", folder / "pair", TARGETS["onnx"], beside)
    return {name: folder / name for name in ("decoder", "pair", "canonical")}


@dataclass(frozen=True)
class Wrong:
    """A wrong document.

    Attributes:
        change: what is done to a right one.
        code: of the finding that it has to give.
        taken: whether the wheel takes it.
        kind: of the package.
    """

    change: Change
    code: str
    taken: bool
    kind: str = "decoder"


def flow(values: Values) -> Values:
    return values["pipeline"]["workflow"]


def group(values: Values, name: str = "sliding_attention") -> Values:
    return flow(values)["serving"]["state_service"]["groups"][name]


def alias(values: Values, cell: str = "past_key_values.0.key", name: str = "sliding_attention") -> Values:
    return group(values, name)["ports"]["decoder"][cell]


def loop(values: Values) -> Values:
    return flow(values)["steps"][0]


def ports(values: Values) -> Values:
    return flow(values)["components"]["decoder"]["ports"]


def spec(values: Values) -> Values:
    return values["speculative"]


def swap_layers(values: Values) -> None:
    """Keys alone, and both halves of the document agree with each other."""
    first, second = alias(values), alias(values, "past_key_values.1.key")
    first["layer"], second["layer"] = second["layer"], first["layer"]


def move(values: Values, cell: str, source: str, to: str) -> None:
    """A cell to the group of the other kind, everywhere."""
    for half in ("key", "value"):
        name = f"{cell}.{half}"
        group(values, to)["ports"]["decoder"][name] = group(values, source)["ports"]["decoder"].pop(name)
        flow(values)["state"][name]["service_group"] = to


def forget(values: Values) -> None:
    """A layer whose states go from call to call, and that no group knows of."""
    for half in ("key", "value"):
        del group(values)["ports"]["decoder"][f"past_key_values.6.{half}"]


def scale(values: Values) -> Values:
    return spec(values)["proposal_execution"]["token_embedding"]


def put(part: Values, key: str, value: Any) -> None:
    part[key] = value


WRONG: dict[str, Wrong] = {
    # What both refuse.
    "unknown field": Wrong(lambda v: put(flow(v), "frobnicate", 1), "metadata-schema", False),
    "retired rank": Wrong(lambda v: put(ports(v)["inputs"]["input_ids"], "rank", 2), "metadata-retired", False),
    "retired capabilities": Wrong(
        lambda v: put(flow(v)["manifest"], "capabilities", ["workflow_ssa"]), "metadata-retired", False
    ),
    "no shape": Wrong(lambda v: ports(v)["inputs"]["input_ids"].pop("shape"), "metadata-schema", False),
    "unknown kind of state": Wrong(lambda v: put(group(v), "kind", "local_attention"), "metadata-schema", False),
    "ids before their version": Wrong(lambda v: put(v, "schema_version", "v1.1"), "metadata-version", False),
    "a version that asks for more": Wrong(lambda v: put(v, "schema_version", "v1.8"), "metadata-version", False),
    "a graph that is not there": Wrong(
        lambda v: put(flow(v)["components"]["decoder"]["implementation"], "artifact", "other.onnx"),
        "metadata-artifact",
        False,
    ),
    "a graph outside of the package": Wrong(
        lambda v: put(flow(v)["components"]["decoder"]["implementation"], "artifact", "../decoder/model.onnx"),
        "metadata-artifact",
        False,
    ),
    "a port that the graph lacks": Wrong(
        lambda v: put(ports(v)["inputs"], "token_type_ids", ports(v)["inputs"]["input_ids"]),
        "metadata-port-missing",
        False,
    ),
    "a port of another type": Wrong(
        lambda v: put(ports(v)["inputs"]["attention_mask"], "dtype", "int32"), "metadata-port-differs", False
    ),
    "other heads than the graph's": Wrong(
        lambda v: put(ports(v)["inputs"]["past_key_values.0.key"], "shape", ["batch", 3, "past", 16]),
        "metadata-port-differs",
        False,
    ),
    "an input that nobody feeds": Wrong(
        lambda v: loop(v)["steps"][0]["inputs"].pop("past_key_values.3.value"), "metadata-port-unbound", False
    ),
    "a value from nowhere": Wrong(
        lambda v: put(loop(v)["steps"][1]["inputs"], "logits", "step.scores"), "metadata-value-undefined", False
    ),
    "a value twice": Wrong(
        lambda v: put(loop(v)["steps"][1]["outputs"], "active", "step.done"), "metadata-value-redefined", False
    ),
    "a component from nowhere": Wrong(
        lambda v: put(loop(v)["steps"][1], "component", "sampler"), "metadata-name-unknown", False
    ),
    "a cell from nowhere": Wrong(
        lambda v: put(loop(v)["carried"][0], "cell", "memory"), "metadata-name-unknown", False
    ),
    "a loop of nothing": Wrong(lambda v: put(loop(v), "steps", []), "metadata-empty", False),
    "tokens of another type": Wrong(
        lambda v: put(flow(v)["outputs"]["tokens"]["contract"], "dtype", "float32"), "metadata-contract", False
    ),
    "a group from nowhere": Wrong(
        lambda v: put(flow(v)["state"]["past_key_values.0.key"], "service_group", "memory"), "metadata-state", False
    ),
    "a state that the runtime does not keep": Wrong(
        lambda v: flow(v)["state"]["past_key_values.0.key"].pop("release_boundary"), "metadata-state", False
    ),
    "two keys of one layer": Wrong(
        lambda v: put(alias(v, "past_key_values.1.key"), "layer", 0), "metadata-layer-wrong", False
    ),
    "no token ids": Wrong(lambda v: ports(v)["roles"].pop("input_ids"), "metadata-role-missing", False),
    "an optional input without a default": Wrong(
        lambda v: flow(v)["inputs"]["request.max_iterations"].pop("default"), "metadata-input", False
    ),
    "no end tokens for a loop that ends at them": Wrong(
        lambda v: v["package"]["tokenizer"]["special_tokens"].pop("eos_token_id"), "metadata-tokens", False
    ),
    "a tokenizer that is not there": Wrong(
        lambda v: put(v["package"]["tokenizer"], "artifacts", [{"location": "vocab.bpe"}]), "metadata-tokenizer", False
    ),
    "a cache that is not carried": Wrong(lambda v: loop(v)["carried"].pop(0), "metadata-state-lost", False),
    "a flag that is not carried": Wrong(lambda v: loop(v)["carried"].pop(-4), "metadata-state-lost", False),
    # What the wheel takes.
    "a default of another type": Wrong(
        lambda v: put(flow(v)["inputs"]["package.done"], "default", 0.5), "metadata-input", True
    ),
    "a batch at an axis that there is not": Wrong(
        lambda v: put(ports(v)["inputs"]["input_ids"]["batch_layout"], "axis", 2), "metadata-contract", True
    ),
    "layers swapped on keys alone": Wrong(swap_layers, "metadata-layer-wrong", True),
    "an output of another layer": Wrong(
        lambda v: put(alias(v), "output", "present.1.key"), "metadata-layer-wrong", True
    ),
    "the values as keys": Wrong(
        lambda v: alias(v).update(input="past_key_values.0.value", output="present.0.value"),
        "metadata-role-wrong",
        True,
    ),
    "a sliding group that may not forget": Wrong(
        lambda v: put(group(v)["reuse"], "evictable_prefix", False), "metadata-eviction", True
    ),
    "a full group that may forget": Wrong(
        lambda v: put(group(v, "full_attention")["reuse"], "evictable_prefix", True), "metadata-eviction", True
    ),
    "a full layer among the sliding ones": Wrong(
        lambda v: move(v, "past_key_values.2", "full_attention", "sliding_attention"), "metadata-state-kind", True
    ),
    "a sliding layer among the full ones": Wrong(
        lambda v: move(v, "past_key_values.0", "sliding_attention", "full_attention"), "metadata-state-kind", True
    ),
    "one tensor for past and present where the graph makes two": Wrong(
        lambda v: put(group(v), "aliasing", "permitted"), "metadata-aliasing", True
    ),
    "tokens at another axis than the layout's": Wrong(
        lambda v: put(group(v), "layout", "bsnh"), "metadata-layout", True
    ),
    "a layer in no group": Wrong(forget, "metadata-state-unowned", True),
    "no mask": Wrong(lambda v: ports(v)["roles"].pop("attention_mask"), "metadata-role-missing", True),
    "one symbol for two lengths": Wrong(
        lambda v: put(ports(v)["inputs"]["past_key_values.0.key"], "shape", ["batch", 2, "sequence", 16]),
        "metadata-symbols",
        True,
    ),
    "hidden states without their role": Wrong(
        lambda v: ports(v)["roles"].pop("hidden_states.6"), "metadata-output-unexplained", True
    ),
    "another end token than genai_config's": Wrong(
        lambda v: put(v["package"]["tokenizer"]["special_tokens"], "eos_token_id", [1]), "metadata-tokens", True
    ),
    "another vocabulary than the graph's": Wrong(
        lambda v: put(v["model"], "vocab_size", 330), "metadata-vocabulary", True
    ),
    "more positions than the graph": Wrong(
        lambda v: put(v["model"], "max_sequence_length", 256), "metadata-context", True
    ),
    "a hash": Wrong(lambda v: put(v["model"], "sha256", "00"), "metadata-hash", True),
    # A drafter beside its target.
    "a state that a rejected guess stays in": Wrong(
        lambda v: spec(v)["rollback_state"].pop(), "metadata-rollback-missing", True, "pair"
    ),
    "no guesses": Wrong(lambda v: put(spec(v), "max_proposal_width", 0), "metadata-proposal-width", True, "pair"),
    "no embedding scale": Wrong(lambda v: scale(v).pop("scale"), "metadata-embedding-scale", True, "pair"),
    "another embedding scale": Wrong(lambda v: put(scale(v), "scale", 8.0), "metadata-embedding-scale", True, "pair"),
    "accepted by nobody": Wrong(
        lambda v: put(spec(v)["verification"]["accepted_path"], "binding", "accepted"),
        "metadata-accepted-path",
        True,
        "pair",
    ),
    "a subset of more": Wrong(
        lambda v: put(spec(v), "vocabulary", {"kind": "subset", "proposer_vocab_size": 999}),
        "metadata-vocabulary",
        True,
        "pair",
    ),
    "guesses held against hidden states": Wrong(
        lambda v: put(spec(v)["verification"]["target_output"], "output", "hidden_states.6"),
        "metadata-speculative",
        True,
        "pair",
    ),
    "a drafter that borrows nothing": Wrong(
        lambda v: group(v)["ports"].pop("assistant"), "metadata-speculative", True, "pair"
    ),
    "a table that the target lacks": Wrong(
        lambda v: put(scale(v), "table", "lm_head.weight"), "metadata-table-missing", False, "pair"
    ),
    "less taken back than guessed": Wrong(
        lambda v: put(group(v)["capabilities"], "rollback_positions", 2), "metadata-rollback-short", False, "pair"
    ),
    "a carry into nowhere": Wrong(
        lambda v: put(spec(v)["port_bindings"], "target_hidden_context", "position_ids"),
        "metadata-speculative",
        False,
        "pair",
    ),
    "a seed that the target does not give": Wrong(
        lambda v: put(spec(v)["proposal_execution"]["folded_carry_seed"], "output", "hidden_states.5"),
        "metadata-speculative",
        False,
        "pair",
    ),
    "a pair before its version": Wrong(lambda v: put(v, "schema_version", "v1.5"), "metadata-version", False, "pair"),
    # The dialect of August, which no release reads.
    "a capability that is not told": Wrong(
        lambda v: flow(v)["manifest"]["capabilities"].remove("loop_induction_values"),
        "metadata-capability",
        False,
        "canonical",
    ),
    "another rank than sizes": Wrong(
        lambda v: put(ports(v)["inputs"]["input_ids"], "rank", 3), "metadata-contract", False, "canonical"
    ),
    "no rank": Wrong(lambda v: ports(v)["inputs"]["input_ids"].pop("rank"), "metadata-schema", False, "canonical"),
    "a token without its text": Wrong(
        lambda v: v["package"]["tokenizer"]["special_tokens"]["eos"].pop("content"),
        "metadata-schema",
        False,
        "canonical",
    ),
    "canonical layers swapped": Wrong(swap_layers, "metadata-layer-wrong", False, "canonical"),
    "a mask that does not grow": Wrong(
        lambda v: put(loop(v)["carried"][-1], "next", "mask"), "metadata-contract", False, "canonical"
    ),
}


def changed(base: Path, folder: Path, change: Change) -> Path:
    """The same package with another document."""
    shutil.copytree(base, folder, copy_function=os.link)
    file = folder / "inference_metadata.yaml"
    values = copy.deepcopy(yaml.safe_load(file.read_text(encoding="utf-8")))
    change(values)
    file.unlink()
    file.write_text(yaml.dump(values, sort_keys=False, Dumper=Plain), encoding="utf-8")
    return folder


class Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


@pytest.mark.parametrize("kind", ["decoder", "pair", "canonical"])
def test_right_packages_have_no_findings(base: dict[str, Path], kind: str) -> None:
    found = lint(base[kind])
    assert found.findings == ()
    assert found.exit_code == 0


@pytest.mark.parametrize("name", WRONG)
def test_wrong_documents(name: str, base: dict[str, Path], tmp_path: Path, alone: None) -> None:
    """All of them are refused, without the wheel's help."""
    wrong = WRONG[name]
    found = lint(changed(base[wrong.kind], tmp_path / "package", wrong.change))
    codes = {finding.code for finding in found.findings}
    assert wrong.code in codes, found.findings
    assert codes <= {wrong.code, *ALSO.get(name, ())}, found.findings
    assert found.reader is None
    assert found.exit_code == (0 if name == "a hash" else 1)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the wheel were not installed."""
    monkeypatch.setattr(reader, "DISTRIBUTION", "onnx-genai-of-nobody")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong.kind != "canonical"])
def test_what_the_wheel_takes(name: str, base: dict[str, Path], tmp_path: Path) -> None:
    """The other half of the table; where the wheel refuses, the linter says so too."""
    wrong = WRONG[name]
    found = lint(changed(base[wrong.kind], tmp_path / "package", wrong.change))
    assert found.reader is not None
    assert (found.reader.refusal is None) == wrong.taken, found.reader.refusal
    assert ("metadata-refused" in {finding.code for finding in found.findings}) == (not wrong.taken)


# What else one change makes wrong.
ALSO: dict[str, tuple[str, ...]] = {
    "a port that the graph lacks": ("metadata-port-unbound",),
    "a port of another type": ("metadata-contract",),
    "other heads than the graph's": ("metadata-alias", "metadata-contract"),
    "a value twice": ("metadata-value-undefined",),
    "a cell from nowhere": ("metadata-state-lost",),
    "a loop of nothing": ("metadata-value-undefined",),
    "a group from nowhere": ("metadata-alias",),
    "an output of another layer": ("metadata-alias-crossed",),
    "the values as keys": ("metadata-state-unowned",),
}


def test_at_least_twenty_are_taken_by_the_wheel() -> None:
    assert sum(wrong.taken for wrong in WRONG.values()) >= 20


# Documents that cannot be read.

UNREADABLE = {
    "not YAML": "a: [1",
    "a list": "- 1",
    "a key twice": "schema_version: v1\nschema_version: v1.2\n",
    "an alias": "a: &x {b: 1}\nc: *x\n",
    "a tag": "a: !!python/object/apply:os.system ['true']\n",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable(content: str, base: dict[str, Path], tmp_path: Path) -> None:
    package = changed(base["decoder"], tmp_path / "package", lambda values: None)
    (package / "inference_metadata.yaml").write_text(content, encoding="utf-8")
    assert [finding.code for finding in lint(package).findings] == ["metadata-unreadable"]


def test_json_is_read_where_there_is_no_yaml(base: dict[str, Path], tmp_path: Path) -> None:
    package = changed(base["decoder"], tmp_path / "package", lambda values: None)
    file = package / "inference_metadata.yaml"
    (package / "inference_metadata.json").write_text(json.dumps(yaml.safe_load(file.read_text())))
    file.unlink()
    found = lint(package)
    assert (found.file, found.findings) == ("inference_metadata.json", ())


def test_no_workflow(base: dict[str, Path], tmp_path: Path) -> None:
    package = changed(base["decoder"], tmp_path / "package", lambda values: values.pop("pipeline"))
    assert "metadata-no-workflow" in {finding.code for finding in lint(package).findings}


def test_genai_config_is_looked_at_too(base: dict[str, Path], tmp_path: Path) -> None:
    package = changed(base["decoder"], tmp_path / "package", lambda values: None)
    genai = json.loads((package / "genai_config.json").read_text())
    genai["model"]["decoder"]["num_hidden_layers"] = 5
    (package / "genai_config.json").unlink()
    (package / "genai_config.json").write_text(json.dumps(genai))
    assert [finding.code for finding in lint(package).findings] == ["genai-layers-wrong"]


# Documents of other kinds: a cache of a fixed length, a decoder without a loop. Their graphs are elsewhere.


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent / "data" / "metadata").glob("*.yaml")), ids=lambda p: p.stem
)
def test_right_documents_of_other_kinds(path: Path, base: dict[str, Path], tmp_path: Path, alone: None) -> None:
    package = changed(base["decoder"], tmp_path / "package", lambda values: None)
    (package / "inference_metadata.yaml").write_bytes(path.read_bytes())
    (package / "model.onnx").unlink()
    (package / "genai_config.json").unlink()
    assert [finding.code for finding in lint(package).findings] == ["metadata-artifact"]


# The command.


def test_command(base: dict[str, Path], tmp_path: Path) -> None:
    assert paritas("lint", base["decoder"]).exit_code == 0
    package = changed(base["decoder"], tmp_path / "package", swap_layers)
    done = paritas("lint", package)
    assert done.exit_code == 1
    assert "metadata-layer-wrong" in done.stdout
    values = json.loads(paritas("lint", package, "--json").stdout)
    assert (values["schema_version"], values["dialect"]) == ("v1.2", "onnx-genai 0.1.0.dev6")
    assert {finding["code"] for finding in values["findings"]} == {"metadata-layer-wrong"}
    assert paritas("lint", tmp_path / "nowhere").exit_code == 2


def test_without_the_wheel_it_says_the_same(base: dict[str, Path], alone: None) -> None:
    found = lint(base["decoder"])
    assert (found.reader, found.findings) == (None, ())
