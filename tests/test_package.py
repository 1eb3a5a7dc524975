# ruff: noqa: E501 - the tables have a line a case
"""What lies in a package: the runtime's configuration, the tokenizer, the card, the data file and its record."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import load_external_data_for_tensor
from onnx.numpy_helper import to_array

from checkpoints import (
    CONTEXT,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV,
    LAYERS,
    TEMPLATE,
    VOCAB,
    edit_json,
    export,
    llama_tensors,
    save_gemma3,
    save_llama,
    write_json,
)
from paritas.errors import ParitasError
from paritas.graph.rows import KEEP
from paritas.package.card import card
from paritas.package.genai_config import token_ids
from paritas.package.tokenizer import tokenizer_files

SEARCH = {
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "diversity_penalty": 0.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "num_return_sequences": 1,
    "min_length": 0,
    "early_stopping": False,
    "max_length": CONTEXT,
    "past_present_share_buffer": True,
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    assert export(save_llama(folder / "model"), folder / "out").exit_code == 0
    return folder / "out"


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def test_files(package: Path) -> None:
    found = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    assert found == {
        "README.md",
        "chat_template.jinja",
        "evidence/export.json",
        "evidence/inference_metadata.json",
        "genai_config.json",
        "inference_metadata.yaml",
        "model.onnx",
        "model.onnx.data",
        "tokenizer.json",
        "tokenizer_config.json",
    }


# genai_config.json


def test_runtime_configuration(package: Path) -> None:
    config = read(package / "genai_config.json")
    graph = onnx.load(package / "model.onnx", load_external_data=False).graph
    decoder = config["model"].pop("decoder")
    assert config["model"] == {
        "bos_token_id": 256,
        "eos_token_id": [257, 258],
        "pad_token_id": 257,
        "context_length": CONTEXT,
        "type": "llama",
        "vocab_size": VOCAB,
    }
    sizes = {key: value for key, value in decoder.items() if isinstance(value, int)}
    assert sizes == {
        "head_size": HEAD_DIM,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV,
    }
    for side, values in (("inputs", graph.input), ("outputs", graph.output)):
        told = {name % i if "%d" in name else name for name in decoder[side].values() for i in range(LAYERS)}
        # ORT GenAI has no name for the input that need not be given.
        assert told == {value.name for value in values} - {KEEP}
    assert config["search"] == {**SEARCH, "do_sample": True, "temperature": 0.7}


GENERATION: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("nothing said", {}, {}, {}),
    ("a penalty", {"repetition_penalty": 1.1, "no_repeat_ngram_size": 3}, {"repetition_penalty": 1.1, "no_repeat_ngram_size": 3}, {}),
    ("sampling", {"do_sample": True, "top_k": 64, "top_p": 0.95}, {"do_sample": True, "top_k": 64, "top_p": 0.95}, {}),
    ("integers for numbers", {"temperature": 1, "top_p": 1}, {"temperature": 1, "top_p": 1}, {}),
    ("nulls are transformers' defaults", {"top_k": None, "top_p": None, "temperature": None}, {}, {}),
    ("no top_k at all", {"top_k": 0}, {"top_k": 0}, {}),
    ("keys without a place", {"min_p": 0.1, "suppress_tokens": [1], "guidance_scale": None}, {}, {"min_p": 0.1, "suppress_tokens": [1]}),
    ("bookkeeping", {"transformers_version": "5", "_from_model_config": True, "max_length": 9, "cache_implementation": "hybrid"}, {}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("generation", "search", "lost"), [c[1:] for c in GENERATION], ids=[c[0] for c in GENERATION])
def test_generation_defaults(
    tmp_path: Path, generation: dict[str, Any], search: dict[str, Any], lost: dict[str, Any]
) -> None:
    model = save_llama(tmp_path / "model")
    write_json(model / "generation_config.json", generation)
    told = json.loads(export(model, tmp_path / "out", "--json").stdout)
    assert read(tmp_path / "out" / "genai_config.json")["search"] == {**SEARCH, **search}
    assert told["lost_defaults"] == lost
    assert read(tmp_path / "out" / "evidence" / "export.json")["generation_defaults_without_a_place"] == lost


CLASS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
IDS: list[tuple[str, Mapping[str, Any], Mapping[str, Any], dict[str, Any]]] = [
    ("the class's", {}, {}, CLASS),
    ("config.json's", {}, {"eos_token_id": 7}, {**CLASS, "eos_token_id": 7}),
    ("generation_config.json's first", {"eos_token_id": 8}, {"eos_token_id": 7}, {**CLASS, "eos_token_id": 8}),
    ("a list, whole", {"eos_token_id": [1, 106]}, {"eos_token_id": 1}, {**CLASS, "eos_token_id": [1, 106]}),
    ("null is an answer", {}, {"bos_token_id": None}, {"eos_token_id": 1, "pad_token_id": 0}),
    ("null there asks further", {"bos_token_id": None}, {"bos_token_id": 5}, {**CLASS, "bos_token_id": 5}),
    ("no pad: the first eos", {"eos_token_id": [9, 1]}, {"pad_token_id": None}, {**CLASS, "eos_token_id": [9, 1], "pad_token_id": 9}),
    ("pad -1: the first eos", {}, {"pad_token_id": -1}, {**CLASS, "pad_token_id": 1}),
    ("pad list: its first", {"pad_token_id": [4, 5]}, {}, {**CLASS, "pad_token_id": 4}),
    ("pad 0 is a pad", {"pad_token_id": 0}, {}, CLASS),
    ("empty lists", {"eos_token_id": [], "pad_token_id": []}, {}, {"bos_token_id": 2}),
    ("nothing", {}, dict.fromkeys(CLASS), {}),
]  # fmt: skip


@pytest.mark.parametrize(("generation", "config", "ids"), [case[1:] for case in IDS], ids=[case[0] for case in IDS])
def test_token_ids(generation: Mapping[str, Any], config: Mapping[str, Any], ids: dict[str, Any]) -> None:
    assert token_ids(generation, config, CLASS) == ids


@pytest.mark.parametrize("key", CLASS)
@pytest.mark.parametrize("value", ["2", True, 2.0, {}, [[2]], ["</s>"], -2])
def test_wrong_token_ids(key: str, value: Any) -> None:
    for place, sources in (("generation_config.json", ({key: value}, {})), ("config.json", ({}, {key: value}))):
        with pytest.raises(ParitasError, match=f"token-id-wrong: {key} is ") as raised:
            token_ids(*sources, CLASS)
        assert raised.value.place == f"{place}, key {key}"


def test_a_text_half_has_the_ids_of_the_whole(tmp_path: Path) -> None:
    """The outer configuration owns head and ids; the class knows the rest."""
    model = save_gemma3(tmp_path / "model")
    edit_json(model / "config.json", eos_token_id=[257, 258])
    assert export(model, tmp_path / "out", "--text-only").exit_code == 0
    config = read(tmp_path / "out" / "genai_config.json")["model"]
    assert (config["type"], config["eos_token_id"], config["bos_token_id"]) == ("gemma3_text", [257, 258], 2)


# Tokenizer

TEMPLATES: list[tuple[str, dict[str, Any], str | None]] = [
    ("in its own file", {"chat_template.jinja": "own", "tokenizer_config.json": {"chat_template": "old"}}, "own"),
    ("in a file of JSON", {"chat_template.json": {"chat_template": "own"}, "tokenizer_config.json": {"chat_template": "old"}}, "own"),
    ("in the configuration", {"tokenizer_config.json": {"chat_template": "{{ bos }}"}}, "{{ bos }}"),
    ("of several", {"tokenizer_config.json": {"chat_template": [{"name": "tool", "template": "a"}, {"name": "default", "template": "b"}]}}, "b"),
    ("of several, none the usual", {"tokenizer_config.json": {"chat_template": [{"name": "tool", "template": "a"}]}}, None),
    ("nowhere", {"tokenizer_config.json": {}}, None),
    ("no configuration", {}, None),
    ("null", {"tokenizer_config.json": {"chat_template": None}}, None),
]  # fmt: skip


@pytest.mark.parametrize(("files", "template"), [case[1:] for case in TEMPLATES], ids=[case[0] for case in TEMPLATES])
def test_chat_template(package: Path, files: dict[str, Any], template: str | None) -> None:
    given = {name: (each if isinstance(each, str) else json.dumps(each)).encode() for name, each in files.items()}
    given["tokenizer.json"] = (package / "tokenizer.json").read_bytes()
    taken = tokenizer_files(given, "model")
    assert taken.get("chat_template.jinja") == (None if template is None else template.encode())
    assert {name: taken[name] for name in given} == given


def test_the_tokenizer_is_the_checkpoints(package: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (package / name).read_bytes() == (package.with_name("model") / name).read_bytes()
    assert (package / "chat_template.jinja").read_text() == TEMPLATE


# Data, record, card


def test_every_weight_is_where_the_graph_says(package: Path) -> None:
    model = onnx.load(package / "model.onnx", load_external_data=False)
    stored = llama_tensors()
    external = [each for each in model.graph.initializer if each.data_location == onnx.TensorProto.EXTERNAL]
    for tensor in external:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        assert entries["location"] == "model.onnx.data"
        assert int(entries["offset"]) % 4096 == 0
        load_external_data_for_tensor(tensor, str(package))
        if tensor.name in stored:
            values, wanted = to_array(tensor), stored[tensor.name]  # transposed, where the graph multiplies by it
            np.testing.assert_array_equal(values if values.shape == wanted.shape else values.T, wanted)
    record = read(package / "evidence" / "export.json")
    sources = record["initializers"]
    assert set(sources) == {tensor.name for tensor in external}
    assert {name for each in sources.values() for name in each} == set(stored)
    assert record["data_sha256"] == hashlib.sha256((package / "model.onnx.data").read_bytes()).hexdigest()


def test_two_exports_are_equal(package: Path, tmp_path: Path) -> None:
    assert export(package.with_name("model"), tmp_path / "out").exit_code == 0
    for name in ("model.onnx", "model.onnx.data", "genai_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (package / name).read_bytes(), name


VERDICTS = {
    "proven": "noise floor",
    "not tested": "was not verified",
    "diverges": "do not ship it",
    "invalid": "do not ship it",
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_card(verdict: str) -> None:
    facts = {"name": "a {b}", "version": "1", "source": "s", "model_type": "llama", "target": "ort", "dtype": "fp32"}
    facts |= {"provider": "cpu", "recipe": "fp32", "stored": "fp32"}
    text = card({**facts, "bytes": 4_000_000, "verdict": verdict, "context": 131_072, "parameters": 1_000_000})
    assert text.startswith("---\n")
    wanted = (f"**{verdict}**", VERDICTS[verdict], "# a {b}, ONNX", "131,072", "1,000,000")
    assert [part for part in wanted if part not in text] == []
    assert ("do not ship it" in text) == (verdict not in ("proven", "not tested"))
