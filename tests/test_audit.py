"""The audit of right packages finds nothing; of damaged ones, what was damaged."""

import json
import runpy
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import tiny
from paritas.audit.run import Audit, audit
from paritas.checkpoint import open_checkpoint
from paritas.cli import app
from paritas.errors import ParitasError
from paritas.export import export
from paritas.plan import Options
from paritas.targets import TARGETS

ROOT = Path(__file__).resolve().parent.parent
Change = Callable[[Path], None]


def made(checkpoint: Path, out: Path, target: str = "ort") -> Path:
    options = Options(text_only="multimodal" in checkpoint.name)
    export(checkpoint, out, TARGETS[target], options)
    return out


@pytest.fixture(scope="module")
def package(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(checkpoint("gemma3"), tmp_path_factory.mktemp("audit") / "package")


@pytest.fixture
def damaged(package: Path, checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[[Change], Audit]:
    """The audit of a copy with one thing changed."""

    def run(change: Change) -> Audit:
        copy = tmp_path / "copy"
        shutil.copytree(package, copy)
        change(copy)
        return audit(copy, checkpoint("gemma3"))

    return run


def codes(found: Audit, severity: str = "error") -> set[str]:
    return {finding.code for finding in found.findings if finding.severity == severity}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", tiny.CHECKPOINTS)
def test_a_right_package_has_no_finding(
    name: str, target: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    found = audit(made(checkpoint(name), tmp_path / "package", target), checkpoint(name))
    assert found.findings == ()
    assert found.exit_code == 0


def test_the_census_counts_initializers_by_what_was_done_to_them(
    package: Path, checkpoint: Callable[[str], Path]
) -> None:
    found = audit(package, checkpoint("gemma3"))
    assert found.identity.census == {"identity": 50, "1+w": 43}
    assert found.identity.unused == ()
    table = next(r for r in found.identity.initializers if r.name == "model.embed_tokens.weight")
    assert table.tensors == ("model.embed_tokens.weight",)
    transposed = {r.transposed for r in found.identity.initializers if ".mlp." in r.name}
    assert transposed == {True}


# genai_config.json and the tokenizer, damaged by hand.


def config(**changes: Any) -> Change:
    """``model__decoder__head_size=1`` sets ``model.decoder.head_size``; None removes a key."""

    def change(folder: Path) -> None:
        file = folder / "genai_config.json"
        values = json.loads(file.read_text())
        for path, value in changes.items():
            *way, last = path.split("__")
            inner = values
            for word in way:
                inner = inner[word]
            inner.pop(last)
            if value is not None:
                inner[last] = value
        file.write_text(json.dumps(values))

    return change


def tokenizer(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        file = folder / "tokenizer.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def template(text: str | None) -> Change:
    def change(folder: Path) -> None:
        (folder / "chat_template.jinja").unlink()
        if text is not None:
            (folder / "chat_template.jinja").write_text(text)
        file = folder / "tokenizer_config.json"
        values = json.loads(file.read_text())
        values.pop("chat_template", None)
        file.write_text(json.dumps(values))

    return change


DAMAGES: Mapping[str, tuple[Change, str, str]] = {
    "a name": (config(model__decoder__outputs__logits="scores"), "genai-name-missing", "logits 'scores'"),
    "an input": (config(model__decoder__inputs__attention_mask=None), "genai-input-unfed", "attention_mask"),
    "layers": (config(model__decoder__num_hidden_layers=6), "genai-layers-wrong", "6 layers are told"),
    "head size": (config(model__decoder__head_size=24), "genai-cache-wrong", "caches of the graph have 16"),
    "kv heads": (config(model__decoder__num_key_value_heads=6), "genai-cache-wrong", "have 2"),
    "heads": (config(model__decoder__num_attention_heads=4), "genai-heads-wrong", "attends with 6"),
    "vocabulary": (config(model__vocab_size=330), "genai-vocabulary-wrong", "the graph gives 331"),
    "context": (config(model__context_length=4096), "context-beyond-tables", "has 128"),
    "length": (config(search__max_length=129), "genai-length-wrong", "129 is more than"),
    "eos": (config(model__eos_token_id=1), "eos-missing", "6 (<end_of_turn>)"),
    "null": (config(model__pad_token_id=[0]), "genai-type-wrong", "model.pad_token_id is a list"),
    "tokenizer": (
        tokenizer(normalizer={"type": "Lowercase"}),
        "tokenizer-differs",
        "encodings differ; 'Hello, world!'",
    ),
    "broken tokenizer": (tokenizer(model={"type": "none"}), "tokenizer-unreadable", ""),
    "template": (template("{{ messages[0]['content'] }}"), "chat-template-differs", "becomes 'How are you?'"),
    "no template": (template(None), "chat-template-lost", "no chat template"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_beside_the_graph_is_found(name: str, damaged: Callable[[Change], Audit]) -> None:
    change, code, message = DAMAGES[name]
    found = damaged(change)
    assert codes(found) == {code}
    (finding,) = (each for each in found.findings if each.severity == "error")
    assert message in finding.message
    assert finding.remedy


LESSER: Mapping[str, tuple[Change, str]] = {
    "bos": (config(model__bos_token_id=1), "bos-wrong"),
    "pad": (config(model__pad_token_id=1), "pad-wrong"),
    "penalty": (config(search__repetition_penalty=1.0), "generation-default-lost"),
    "composed": (tokenizer(normalizer={"type": "NFC"}), "tokenizer-normalizes"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer-lost"),
}


@pytest.mark.parametrize("name", LESSER)
def test_what_only_may_matter_is_a_warning(name: str, damaged: Callable[[Change], Audit]) -> None:
    change, code = LESSER[name]
    found = damaged(change)
    assert codes(found) == set()
    assert codes(found, "warning") == {code}
    assert found.exit_code == 0


# Weights, damaged by hand.


def rewritten(name: str, change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Change:
    """One initializer, changed and put inside of the graph."""

    def write(folder: Path) -> None:
        model = onnx.load(folder / "model.onnx")
        (tensor,) = (t for t in model.graph.initializer if t.name == name)
        tensor.CopyFrom(onnx.numpy_helper.from_array(change(onnx.numpy_helper.to_array(tensor)), name))
        onnx.save(model, folder / "model.onnx")
        (folder / "model.onnx.data").unlink()

    return write


def exchanged(one: str, other: str) -> Change:
    def write(folder: Path) -> None:
        model = onnx.load(folder / "model.onnx")
        by_name = {t.name: t for t in model.graph.initializer}
        by_name[one].raw_data, by_name[other].raw_data = by_name[other].raw_data, by_name[one].raw_data
        onnx.save(model, folder / "model.onnx")

    return write


UP = "model.layers.1.mlp.up_proj.weight"


def test_two_tensors_exchanged_between_layers(damaged: Callable[[Change], Audit]) -> None:
    found = damaged(exchanged(UP, UP.replace("1", "4")))
    assert codes(found) == {"weight-swapped"}
    assert {finding.where for finding in found.findings} == {UP, UP.replace("1", "4")}


def test_a_tensor_of_another_checkpoint(damaged: Callable[[Change], Audit]) -> None:
    noise = np.random.default_rng(0)
    found = damaged(rewritten(UP, lambda values: (values + 0.01 * noise.normal(size=values.shape)).astype("f")))
    assert codes(found) == {"weight-differs"}
    assert f"nearest to {UP}" in found.findings[0].message


def test_a_tensor_of_random_numbers(damaged: Callable[[Change], Audit]) -> None:
    found = damaged(rewritten(UP, lambda values: np.random.default_rng(0).normal(size=values.shape).astype("f")))
    assert codes(found) == {"weight-unexplained", "weight-unused"}
    assert f"{UP}, of the same shape, is used nowhere" in str(found.findings)


def test_a_scaled_tensor_is_a_warning(damaged: Callable[[Change], Audit]) -> None:
    found = damaged(rewritten(UP, lambda values: values * np.float32(0.3)))
    assert codes(found) == set()
    assert codes(found, "warning") == {"weight-scaled"}
    assert "times 0.3" in found.findings[0].message


def test_a_row_that_is_not_the_checkpoints(damaged: Callable[[Change], Audit]) -> None:
    def change(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        changed = values.copy()
        changed[:, 7] += 1
        return changed

    found = damaged(rewritten(UP, change))
    assert codes(found) == {"weight-row-differs"}
    assert "row 7 of 104" in found.findings[0].message


# What is hostile or is no package.


def test_data_outside_of_the_folder_is_refused_before_it_is_opened(damaged: Callable[[Change], Audit]) -> None:
    def change(folder: Path) -> None:
        model = onnx.load(folder / "model.onnx", load_external_data=False)
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = "../../etc/passwd"
        onnx.save(model, folder / "model.onnx")

    with pytest.raises(ParitasError, match="package-data-hostile"):
        damaged(change)


def test_a_family_without_a_spec_is_audited_all_the_same(
    package: Path, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    found = audit(package, of_another_family(checkpoint("gemma3"), tmp_path / "checkpoint"))
    assert codes(found) == set()
    assert "spec-missing" in codes(found, "note")
    assert found.identity.unused == ()


CLAIMS: Mapping[str, tuple[dict[str, Any], str, str]] = {
    "epsilon": ({"rms_norm_eps": 1e-5}, "norm-epsilon-wrong", "29 norms have epsilon 3e-05"),
    "window": ({"sliding_window": 9}, "window-wrong", "layers 0-1, 3-4, 6: a query sees 8 keys"),
    "activation": ({"hidden_activation": "silu"}, "activation-wrong", "is gelu_pytorch_tanh, the configuration"),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_and_against_what_its_configuration_says_in_words_that_all_share(
    name: str, package: Path, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    changes, code, message = CLAIMS[name]
    found = audit(package, of_another_family(checkpoint("gemma3"), tmp_path / "checkpoint", **changes))
    assert codes(found) == {code}
    assert message in found.findings[0].message


def of_another_family(checkpoint: Path, folder: Path, **changes: Any) -> Path:
    shutil.copytree(checkpoint, folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"model_type": "another"} | changes))
    return folder


# Quantised weights.


def quantize(folder: Path) -> None:
    """Every projection in 4 bits, blocks of 8, as MatMulNBits stores them."""
    model = onnx.load(folder / "model.onnx")
    by_name = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in by_name:
            continue
        weight = onnx.numpy_helper.to_array(by_name[node.input[1]]).T
        rows, columns = weight.shape
        blocks = weight.reshape(rows, columns // 8, 8)
        scales = np.abs(blocks).max(axis=2, keepdims=True) / 7
        integers = (np.rint(blocks / scales) + 8).astype(np.uint8)
        packed = integers[..., 0::2] | integers[..., 1::2] << 4
        name = node.input[1]
        for suffix, values in (("_q", packed), ("_s", scales.reshape(-1))):
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, name + suffix))
        node.op_type, node.domain = "MatMulNBits", "com.microsoft"
        del node.input[:], node.attribute[:]
        node.input.extend([node_input(node, name), f"{name}_q", f"{name}_s"])
        for key, value in {"K": columns, "N": rows, "bits": 4, "block_size": 8}.items():
            node.attribute.append(onnx.helper.make_attribute(key, value))
        model.graph.initializer.remove(by_name[name])
    onnx.save(model, folder / "model.onnx")


def node_input(node: onnx.NodeProto, weight: str) -> str:
    return f"{weight}.x"


def test_integers_are_dequantised_and_matched_to_the_nearest(damaged: Callable[[Change], Audit]) -> None:
    found = damaged(quantize)
    packed = [r for r in found.identity.initializers if r.quantized]
    assert len(packed) == 7 * 7
    assert all(r.tensors == (r.name.removesuffix("_q"),) for r in packed)
    assert all(0 < r.near[0].error < 0.15 for r in packed)
    assert found.identity.unused == ()


@pytest.mark.parametrize("suffix", ["_s", "_q"])
def test_a_block_of_integers_that_is_no_rounding_is_found(suffix: str, damaged: Callable[[Change], Audit]) -> None:
    name = "model.layers.2.mlp.gate_proj.weight"

    def change(folder: Path) -> None:
        quantize(folder)
        model = onnx.load(folder / "model.onnx")
        (tensor,) = (t for t in model.graph.initializer if t.name == name + suffix)
        values = onnx.numpy_helper.to_array(tensor).copy()
        if suffix == "_s":
            values[5 * 9 + 3] *= 3  # 72 columns are 9 blocks of 8
        else:
            values[5, 3] ^= 0x88
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        onnx.save(model, folder / "model.onnx")

    found = damaged(change)
    assert codes(found) == {"weight-quantised-wrong"}
    (finding,) = (each for each in found.findings if each.severity == "error")
    assert "1 blocks" in finding.message
    assert "row 5, column 24" in finding.message


def anonymous(graph: onnx.GraphProto) -> None:
    """Initializers without names that say anything, as torch.onnx writes them; an input's default keeps its own."""
    inputs = {value.name for value in graph.input}
    unnamed = [tensor for tensor in graph.initializer if tensor.name not in inputs]
    called = {tensor.name: f"val_{number}" for number, tensor in enumerate(unnamed)}
    for tensor in unnamed:
        tensor.name = called[tensor.name]
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = called.get(name, name)


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ("1.self_attn.k_proj", "1.self_attn.v_proj", "takes model.layers.1.self_attn.v_proj.weight for k"),
        ("1.self_attn.q_proj", "4.self_attn.q_proj", "attention of layer 1 takes model.layers.4.self_attn.q_proj"),
    ],
)
def test_projections_exchanged_behind_names_that_say_nothing(
    one: str, other: str, message: str, damaged: Callable[[Change], Audit]
) -> None:
    def change(folder: Path) -> None:
        exchanged(f"model.layers.{one}.weight", f"model.layers.{other}.weight")(folder)
        model = onnx.load(folder / "model.onnx")
        anonymous(model.graph)
        onnx.save(model, folder / "model.onnx")

    found = damaged(change)
    assert codes(found) == {"weight-swapped"}
    assert any(message in finding.message for finding in found.findings), found.findings


# The head.


def test_a_head_that_is_the_embedding_of_an_untied_model(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    tiny.tiny_llama(tmp_path / "untied", tie_word_embeddings=False)
    package = made(tmp_path / "untied", tmp_path / "package")
    assert audit(package, tmp_path / "untied").findings == ()
    tables = "lm_head.weight", "model.embed_tokens.weight"
    model = onnx.load(package / "model.onnx")
    by_name = {tensor.name: tensor for tensor in model.graph.initializer}
    by_name[tables[0]].raw_data = by_name[tables[1]].raw_data
    onnx.save(model, package / "model.onnx")
    found = audit(package, tmp_path / "untied")
    assert codes(found) == {"head-tied", "weight-unused", "weight-swapped"}


# The command, and its documents.


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["audit", *words])


def test_the_command(package: Path, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    model = str(checkpoint("gemma3"))
    told = run(str(package), "--against", model)
    assert (told.exit_code, "43 1+w" in told.output) == (0, True)
    assert run(str(package), "--against", model, "--quiet").output == ""
    values = json.loads(run(str(package), "-a", model, "--json").stdout)
    assert (values["errors"], values["findings"], values["census"]["1+w"]) == (0, [], 43)
    assert run(str(tmp_path / "nothing"), "-a", model).exit_code == 2
    other = json.loads(run(str(package), "-a", str(checkpoint("llama")), "--json").stdout)
    assert other["errors"] > 0
    assert {"code", "severity", "where", "message", "remedy"} == set(other["findings"][0])


def test_every_finding_is_in_the_reference() -> None:
    text = (ROOT / "docs/reference/audit.md").read_text(encoding="utf-8")
    assert {code for code in sources() if f"| `{code}` |" not in text} == set()


def sources() -> Iterator[str]:
    tool = runpy.run_path(str(ROOT / "tools/list_errors.py"))
    for code, kinds in tool["errors"](ROOT / "src/paritas/audit").items():
        if "finding" in kinds:
            yield code


def test_tensors_of_the_checkpoint_are_read_as_they_are(checkpoint: Callable[[str], Path]) -> None:
    from paritas.audit.sources import Source

    opened = open_checkpoint(checkpoint("llama"))
    tensor = opened.tensors["model.layers.0.mlp.up_proj.weight"]
    source = Source(tensor.name, tensor)
    assert np.array_equal(np.concatenate(list(source.blocks())), tensor.read())
    assert source.hashes("fp32").shape == (source.rows,)


def test_columns_of_a_tensor_are_recognised(checkpoint: Callable[[str], Path]) -> None:
    from paritas.audit.match import match_columns
    from paritas.audit.sources import Source

    tensor = open_checkpoint(checkpoint("llama")).tensors["model.layers.0.mlp.up_proj.weight"]
    whole = tensor.read()
    (part,) = match_columns(whole[:, 7:20].copy(), "fp32", [Source(tensor.name, tensor)])
    assert (part.tensor, part.transform, part.source) == (tensor.name, "columns", 7)
    assert match_columns(whole[:, 7:20] + 1, "fp32", [Source(tensor.name, tensor)]) == ()
