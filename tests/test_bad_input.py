# ruff: noqa: E501 - the tables have a line a case
"""Whatever is wrong with a checkpoint ends in one screen: code, fact, place, next step. Nothing is written or left."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import (
    CONTEXT,
    HIDDEN,
    LLAMA,
    VOCAB,
    Arrays,
    edit_json,
    export,
    listing,
    llama_tensors,
    paritas,
    refused,
    save_gemma3,
    save_llama,
    save_sharded,
    write_json,
    write_safetensors,
)

Damage = Callable[[Path], Any]


def check_refused(tmp_path: Path, model: Path, words: tuple[str, ...], code: str, fragments: tuple[str, ...]) -> None:
    before = listing(tmp_path)
    refused(export(model, tmp_path / "some" / "where" / "out", *words), code, *fragments)
    assert listing(tmp_path) == before


def cut(name: str, keep: float | int) -> Damage:
    """Cut a file: to a number of bytes, or to a part of it."""

    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: keep if isinstance(keep, int) else int(len(content) * keep)])

    return damage


def write(name: str, content: str | bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def append(name: str) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + b"x")


def remove(*names: str) -> Damage:
    return lambda folder: [(folder / name).unlink() for name in names]


def edit(name: str, **values: Any) -> Damage:
    return lambda folder: edit_json(folder / name, **values)


def tensors(change: Callable[[Arrays], Any]) -> Damage:
    def damage(folder: Path) -> None:
        arrays = llama_tensors()
        change(arrays)
        write_safetensors(folder / "model.safetensors", arrays)

    return damage


def header(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Rewrite the header of the weights, and leave the data as it is."""

    def damage(folder: Path) -> None:
        file = folder / "model.safetensors"
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        values = json.loads(content[8 : 8 + length])
        change(values)
        text = json.dumps(values).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])

    return damage


def poison(name: str, value: float, count: int = 1) -> Damage:
    def change(arrays: Arrays) -> None:
        arrays[name].reshape(-1)[:count] = value

    return tensors(change)


NORM = "model.norm.weight"
UP = "model.layers.1.mlp.up_proj.weight"
TABLE = "model.embed_tokens.weight"
WEIGHTS: list[tuple[str, Damage, str, tuple[str, ...]]] = [
    ("half", cut("model.safetensors", 0.5), "shard-truncated", ("model.safetensors", "bytes; its header says")),
    ("last byte gone", cut("model.safetensors", -1), "shard-truncated", ("its header says",)),
    ("cut in its header", cut("model.safetensors", 200), "shard-truncated", ("200 bytes; its header alone says",)),
    ("cut in its length", cut("model.safetensors", 5), "shard-truncated", ("5 bytes, less than a header",)),
    ("empty", cut("model.safetensors", 0), "shard-truncated", ("0 bytes",)),
    ("one page of HTML", write("model.safetensors", "<html>Not found</html>"), "shard-corrupt", ("does not begin",)),
    ("a Git LFS pointer", write("model.safetensors", "version https://git-lfs"), "shard-corrupt", ("does not begin",)),
    ("bytes after the end", append("model.safetensors"), "shard-corrupt", ("says",)),
    ("header is no JSON", write("model.safetensors", b"\4\0\0\0\0\0\0\0{{{{"), "shard-corrupt", ("not JSON",)),
    ("header is a list", write("model.safetensors", b"\2\0\0\0\0\0\0\0[]"), "shard-corrupt", ("not a JSON object",)),
    ("header is no text", write("model.safetensors", b"\2\0\0\0\0\0\0\0\xff\xfe"), "shard-corrupt", ("not JSON",)),
    ("header nests deep", write("model.safetensors", b"\x40\x0d\3\0\0\0\0\0" + b"[" * 200_000), "shard-corrupt", ()),
    ("entry without a shape", header(lambda h: h[NORM].pop("shape")), "shard-corrupt", (NORM,)),
    ("entry of text", header(lambda h: h.update({NORM: "x"})), "shard-corrupt", (NORM,)),
    ("shape is a text", header(lambda h: h[NORM].update(shape="40")), "shard-corrupt", (NORM,)),
    ("shape is negative", header(lambda h: h[NORM].update(shape=[-4, -10])), "shard-corrupt", (NORM,)),
    ("shape overflows", header(lambda h: h[NORM].update(shape=[2**62, 4, HIDDEN])), "shard-corrupt", (NORM,)),
    ("shape is another", header(lambda h: h[NORM].update(shape=[41])), "shard-corrupt", (NORM, "instead of 164")),
    ("offsets overlap", header(lambda h: h[NORM].update(data_offsets=[0, 160])), "shard-corrupt", ()),
    ("offsets are negative", header(lambda h: h[NORM].update(data_offsets=[-160, 0])), "shard-corrupt", (NORM,)),
    ("weights missing", remove("model.safetensors"), "weights-missing", ("model.safetensors.index.json",)),
    ("pickled weights alone", lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "weights-missing", ("pytorch_model.bin", "could run code")),
    ("an adapter alone", lambda f: (f / "model.safetensors").rename(f / "adapter_model.safetensors"), "weights-missing", ("adapter", "--adapter")),
    ("weights of another name", lambda f: (f / "model.safetensors").rename(f / "weights.safetensors"), "weights-missing", ("weights.safetensors",)),
    ("a shard without an index", lambda f: (f / "model.safetensors").rename(f / "model-00001-of-00001.safetensors"), "weights-missing", ("index",)),
    ("tensor missing", tensors(lambda t: t.pop(UP)), "tensor-missing", (UP,)),
    ("head missing, untied", tensors(lambda t: t.pop("lm_head.weight")), "tensor-missing", ("lm_head.weight",)),
    ("tensor extra", tensors(lambda t: t.update({"mtp.fc.weight": t[NORM]})), "tensor-unused", ("mtp.fc.weight", "--drop", "model.safetensors")),
    ("shape wrong", tensors(lambda t: t.update({UP: t[UP].T.copy()})), "tensor-shape-wrong", (UP, "[40, 56]", "[56, 40]")),
    ("integers", tensors(lambda t: t.update({NORM: np.ones(HIDDEN, np.int64)})), "tensor-dtype-unsupported", (NORM, "I64")),
    ("NaN", poison(UP, np.nan), "weight-not-finite", (UP, "1 NaN or Inf value in")),
    ("many NaN", poison(TABLE, np.nan, VOCAB), "weight-not-finite", (TABLE, f"{VOCAB} NaN or Inf values in")),
    ("Inf", poison(NORM, -np.inf), "weight-not-finite", (NORM,)),
    ("NaN in the head", poison("lm_head.weight", np.nan), "weight-not-finite", ("lm_head.weight",)),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "code", "fragments"), [case[1:] for case in WEIGHTS], ids=[c[0] for c in WEIGHTS])
def test_weights(tmp_path: Path, damage: Damage, code: str, fragments: tuple[str, ...]) -> None:
    model = save_llama(tmp_path / "model")
    damage(model)
    check_refused(tmp_path, model, (), code, fragments)


INDEX = "model.safetensors.index.json"
SHARD = "model-00002-of-00003.safetensors"


def index(change: Callable[[dict[str, str]], Any]) -> Damage:
    def damage(folder: Path) -> None:
        values = json.loads((folder / INDEX).read_text())
        change(values["weight_map"])
        write_json(folder / INDEX, values)

    return damage


def duplicate(folder: Path) -> None:
    """One tensor in a second shard too."""
    first = folder / "model-00001-of-00003.safetensors"
    arrays = llama_tensors()
    where = json.loads((folder / INDEX).read_text())["weight_map"]
    held = {name: array for name, array in arrays.items() if where[name] == first.name}
    write_safetensors(first, held | {next(n for n in arrays if where[n] == SHARD): np.ones(3, np.float32)})


SHARDS: list[tuple[str, Damage, str, tuple[str, ...]]] = [
    ("shard missing", remove(SHARD), "shard-missing", (SHARD, "1 of 3", INDEX)),
    ("shard cut", cut(SHARD, 0.5), "shard-truncated", (SHARD,)),
    ("shard is a dangling link", lambda f: [(f / SHARD).unlink(), (f / SHARD).symlink_to("../blobs/x")], "shard-missing", (SHARD,)),
    ("index cut", cut(INDEX, 0.5), "json-corrupt", (INDEX, "line 1")),
    ("index empty", cut(INDEX, 0), "json-corrupt", (INDEX,)),
    ("index without a map", write(INDEX, "{}"), "index-corrupt", ("weight_map",)),
    ("index names nowhere", index(lambda m: m.update({NORM: None})), "index-corrupt", (NORM,)),
    ("index leaves the folder", index(lambda m: m.update({NORM: "../../secret.safetensors"})), "index-corrupt", ("outside",)),
    ("index is absolute", index(lambda m: m.update({NORM: "/etc/passwd"})), "index-corrupt", ("outside",)),
    ("index promises a tensor", index(lambda m: m.update({"model.ghost": SHARD})), "tensor-missing", ("model.ghost", SHARD)),
    ("index forgets a tensor", index(lambda m: m.pop(NORM)), "index-incomplete", (NORM,)),
    ("stray shard", lambda f: (f / "model-00004-of-00009.safetensors").write_bytes(b""), "index-incomplete", ("model-00004-of-00009",)),
    ("tensor in two shards", duplicate, "tensor-duplicated", ("model-00001-of-00003", SHARD)),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "code", "fragments"), [case[1:] for case in SHARDS], ids=[c[0] for c in SHARDS])
def test_shards(tmp_path: Path, damage: Damage, code: str, fragments: tuple[str, ...]) -> None:
    model = save_sharded(tmp_path / "model")
    damage(model)
    check_refused(tmp_path, model, (), code, fragments)


def config(**values: Any) -> Damage:
    return edit("config.json", **values)


def without(key: str) -> Damage:
    def damage(folder: Path) -> None:
        write_json(folder / "config.json", {name: value for name, value in LLAMA.items() if name != key})

    return damage


PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 1e4}
CONFIGS: list[tuple[str, Damage, str, tuple[str, ...]]] = [
    ("config missing", remove("config.json"), "config-missing", ("config.json",)),
    ("config cut", cut("config.json", 0.5), "json-corrupt", ("config.json", "line 1")),
    ("config empty", write("config.json", ""), "json-corrupt", ("config.json",)),
    ("config is a list", write("config.json", "[1]"), "json-corrupt", ("not a JSON object",)),
    ("config is not UTF-8", write("config.json", '{"a": "ü"}'.encode("latin-1")), "json-corrupt", ("config.json",)),
    ("config nests deep", write("config.json", "[" * 200_000), "json-corrupt", ("config.json",)),
    ("generation config cut", cut("generation_config.json", 0.5), "json-corrupt", ("generation_config.json",)),
    ("generation config is a list", write("generation_config.json", "[]"), "json-corrupt", ("generation_config",)),
    ("model_type missing", without("model_type"), "model-type-missing", ("config.json",)),
    ("model_type null", config(model_type=None), "model-type-missing", ()),
    ("model_type a number", config(model_type=7), "model-type-missing", ()),
    ("model_type misspelt", config(model_type="lama"), "model-type-unsupported", ("'lama'", "'llama'", "add-a-model.md")),
    ("model_type close", config(model_type="gemma5_text"), "model-type-unsupported", ("'gemma4_text'",)),
    ("model_type far", config(model_type="zzz"), "model-type-unsupported", ("gemma3_text, gemma3n_text",)),
    ("key unread", config(frobnication=1), "config-key-unread", ("frobnication", "--ignore-key")),
    ("keys unread", config(frob=1, nication=None), "config-key-unread", ("frob, nication", "--ignore-key frob --ignore-key nication")),
    ("RoPE key unread", config(rope_scaling={"rope_type": "linear", "factor": 2.0, "beta": 1}), "config-key-unread", ("beta",)),
    ("RoPE type unsupported", config(rope_scaling=PROPORTIONAL), "rope-type-unsupported", ("'proportional'", "llama3")),
    ("RoPE factor missing", config(rope_scaling={"rope_type": "linear"}), "config-value-wrong", ("factor",)),
    ("RoPE factor a text", config(rope_scaling={"rope_type": "linear", "factor": "8"}), "config-value-wrong", ("'8'",)),
    ("RoPE a text", config(rope_scaling="linear"), "config-value-wrong", ("rope_scaling", "'linear'")),
    ("RoPE a list", config(rope_parameters=[1]), "config-value-wrong", ("rope_parameters",)),
    ("theta a text", config(rope_theta="big"), "config-value-wrong", ("rope_theta", "'big'")),
    ("quantized in a way that is not read", config(quantization_config={"quant_method": "hqq"}), "quantisation-unsupported", ("hqq", "gptq", "dequantize")),
    ("activation unknown", config(hidden_act="mish"), "config-value-unsupported", ("hidden_act", "'mish'", "silu")),
    ("activation a list", config(hidden_act=["silu"]), "config-value-unsupported", ("hidden_act",)),
    ("hidden a text", config(hidden_size="40"), "config-value-wrong", ("hidden_size is '40'", "a positive integer", "config.json")),
    ("hidden a bool", config(hidden_size=True), "config-value-wrong", ("hidden_size is True",)),
    ("hidden negative", config(hidden_size=-40), "config-value-wrong", ("hidden_size is -40",)),
    ("hidden zero", config(hidden_size=0), "config-value-wrong", ("hidden_size is 0",)),
    ("hidden broken", config(hidden_size=40.5), "config-value-wrong", ("hidden_size is 40.5",)),
    ("hidden an object", config(hidden_size={}), "config-value-wrong", ("hidden_size is {}",)),
    ("RoPE factor infinite", config(rope_scaling={"rope_type": "linear", "factor": float("inf")}), "config-value-wrong", ("factor",)),
    ("RoPE context a text", config(rope_scaling={"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": "many"}), "config-value-wrong", ("many",)),
    ("hidden infinite", config(hidden_size=float("inf")), "config-value-wrong", ("hidden_size is inf",)),
    ("hidden not a number", config(hidden_size=float("nan")), "config-value-wrong", ("hidden_size is nan",)),
    ("hidden huge", config(hidden_size=10**30), "config-value-wrong", ("hidden_size",)),
    ("layers huge", config(num_hidden_layers=10**9), "config-value-wrong", ("num_hidden_layers",)),
    ("theta zero", config(rope_theta=0), "config-value-wrong", ("rope_theta is 0",)),
    ("heads do not divide", config(num_attention_heads=3), "config-value-wrong", ("num_key_value_heads is 2", "which is 3")),
    ("layers too many", config(num_hidden_layers=3), "tensor-missing", ("model.layers.2.",)),
    ("layers too few", config(num_hidden_layers=1), "tensor-unused", ("model.layers.1.",)),
    ("heads of another width", config(num_attention_heads=8), "tensor-shape-wrong", ("q_proj",)),
    ("context huge", config(max_position_embeddings=10**30), "config-value-wrong", ("max_position_embeddings",)),
    ("epsilon a text", config(rms_norm_eps="1e-5"), "config-value-wrong", ("rms_norm_eps",)),
    ("epsilon negative", config(rms_norm_eps=-1e-5), "config-value-wrong", ("rms_norm_eps",)),
    ("tied a text", config(tie_word_embeddings="false"), "config-value-wrong", ("tie_word_embeddings", "true or false")),
    ("head tied and different", config(tie_word_embeddings=True), "tied-head-differs", ("lm_head.weight", "model.safetensors")),
    ("bias without tensors", config(attention_bias=True), "tensor-missing", ("q_proj.bias",)),
    ("eos a text", edit("generation_config.json", eos_token_id="</s>"), "token-id-wrong", ("eos_token_id", "generation_config.json")),
    ("eos a bool", config(pad_token_id=True), "token-id-wrong", ("pad_token_id", "config.json")),
    ("eos nested", edit("generation_config.json", eos_token_id=[[1]]), "token-id-wrong", ("eos_token_id",)),
    ("temperature a text", edit("generation_config.json", temperature="hot"), "generation-value-wrong", ("temperature", "'hot'", "generation_config.json")),
    ("do_sample a number", edit("generation_config.json", do_sample=1), "generation-value-wrong", ("do_sample",)),
    ("tokenizer missing", remove("tokenizer.json"), "tokenizer-missing", ("--no-tokenizer",)),
    ("tokenizer cut", cut("tokenizer.json", 0.5), "tokenizer-corrupt", ("tokenizer.json",)),
    ("tokenizer is another object", write("tokenizer.json", "{}"), "tokenizer-corrupt", ("tokenizer.json",)),
    ("tokenizer is not UTF-8", write("tokenizer.json", b"\xff\xfe"), "tokenizer-corrupt", ("tokenizer.json",)),
    ("tokenizer config cut", cut("tokenizer_config.json", 0.5), "tokenizer-corrupt", ("tokenizer_config.json",)),
    ("tokenizer config is a list", write("tokenizer_config.json", "[]"), "tokenizer-corrupt", ("tokenizer_config.json",)),
    ("special tokens cut", write("special_tokens_map.json", "{"), "tokenizer-corrupt", ("special_tokens_map.json",)),
    ("template is not UTF-8", write("chat_template.jinja", b"\xff\xfe"), "tokenizer-corrupt", ("chat_template.jinja",)),
    ("template is no template", edit("tokenizer_config.json", chat_template=7), "tokenizer-corrupt", ("chat_template",)),
    ("template without a name", edit("tokenizer_config.json", chat_template=[{"template": ""}]), "tokenizer-corrupt", ("chat_template",)),
    ("template file is a list", write("chat_template.json", "[]"), "tokenizer-corrupt", ("chat_template.json",)),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "code", "fragments"), [case[1:] for case in CONFIGS], ids=[c[0] for c in CONFIGS])
def test_configuration(tmp_path: Path, damage: Damage, code: str, fragments: tuple[str, ...]) -> None:
    model = save_llama(tmp_path / "model")
    damage(model)
    check_refused(tmp_path, model, (), code, fragments)


MODELS: list[tuple[str, Damage, str, str, tuple[str, ...]]] = [
    ("nowhere", lambda f: None, "nowhere", "checkpoint-missing", ("nowhere", "org/name")),
    ("an empty word", lambda f: None, "", "checkpoint-missing", ()),
    ("a GGUF that is not there", lambda f: None, "org/model.gguf", "checkpoint-missing", ("org/model.gguf",)),
    ("a user's home that is not there", lambda f: None, "~nobody/model", "checkpoint-missing", ("~nobody/model",)),
    ("an empty folder", lambda f: (f / "x").mkdir(), "x", "config-missing", ("config.json",)),
    ("an adapter", lambda f: [(f / "x").mkdir(), write_json(f / "x" / "adapter_config.json", {})], "x", "config-missing", ("adapter", "--adapter")),
    ("a folder of GGUF files", lambda f: [(f / "x").mkdir(), (f / "x" / "a.gguf").touch()], "x", "config-missing", ("a.gguf",)),
    ("the weights' file", lambda f: (f / "x.safetensors").touch(), "x.safetensors", "checkpoint-unknown", ("the checkpoint's folder",)),
    ("a device", lambda f: None, "/dev/null", "checkpoint-unknown", ("/dev/null",)),
    ("too long a name", lambda f: None, "x" * 300, "system-refused", ("File name too long",)),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "model", "code", "fragments"), [c[1:] for c in MODELS], ids=[c[0] for c in MODELS])
def test_what_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage, model: str, code: str, fragments: tuple[str, ...]
) -> None:
    damage(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = listing(tmp_path)
    for words in (("export", model, "out", "--no-verify"), ("inspect", model)):
        refused(paritas(*words), code, *fragments)
    assert listing(tmp_path) == before


def test_a_hub_id_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    refused(paritas("inspect", "nobody/nothing"), "checkpoint-missing", "nobody/nothing", "HF_HUB_OFFLINE")


def test_multimodal_wants_a_word(tmp_path: Path) -> None:
    model = save_gemma3(tmp_path / "model")
    check_refused(tmp_path, model, (), "checkpoint-multimodal", ("--text-only", "config.json"))
    result = export(model, tmp_path / "out", "--text-only", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out" / "evidence" / "export.json").read_text())
    assert record["dropped_tensors"] == {"vision_tower.patch.weight": "the image half of the checkpoint (--text-only)"}


def test_names_that_meet(tmp_path: Path) -> None:
    """Both spellings of one tensor of the text half: neither is taken in silence."""
    model = save_gemma3(tmp_path / "model")
    file = model / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    names = json.loads(content[8 : 8 + length])
    other = {name: np.zeros(entry["shape"], np.float32) for name, entry in names.items() if name != "__metadata__"}
    write_safetensors(file, {**other, f"model.language_model.{NORM.removeprefix('model.')}": np.zeros(HIDDEN, "f4")})
    check_refused(tmp_path, model, ("--text-only",), "tensor-duplicated", (f"the text model's {NORM}",))


ACCEPTED: list[tuple[str, Damage, tuple[str, ...]]] = [
    ("--text-only on a text model", lambda f: None, ("--text-only",)),
    ("an extra tensor, dropped", tensors(lambda t: t.update({"mtp.fc.weight": t[NORM]})), ("--drop", "mtp.*")),
    ("an unread key, ignored", config(frob=1), ("--ignore-key", "frob")),
    ("tied, its head is equal", lambda f: [config(tie_word_embeddings=True)(f), tensors(lambda t: t.update({"lm_head.weight": t[TABLE]}))(f)], ()),
    ("tied, without a head", lambda f: [config(tie_word_embeddings=True)(f), tensors(lambda t: t.pop("lm_head.weight"))(f)], ()),
    ("no tokenizer, none wanted", remove("tokenizer.json", "tokenizer_config.json"), ("--no-tokenizer",)),
    ("a corrupt tokenizer, none wanted", write("tokenizer.json", "{"), ("--no-tokenizer",)),
    ("nulls", config(rope_scaling=None, rope_parameters=None, tie_word_embeddings=None, mlp_bias=None, text_config=None), ("--ignore-key", "text_config")),
    ("no generation config", remove("generation_config.json"), ()),
    ("no ids at all", lambda f: [config(bos_token_id=None, eos_token_id=None)(f), remove("generation_config.json")(f)], ()),
    ("a scalar that nobody reads", tensors(lambda t: t.update({"step": np.array(3, np.int64)})), ("--drop", "step")),
    ("a pickled copy beside", write("pytorch_model.bin", b"cos\nsystem\n"), ()),
    ("a shorter context", lambda f: None, ("--context", str(CONTEXT // 2))),
    ("a spelling of GenAI's builder", lambda f: None, ("-p", "f32", "-e", "cpu")),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in ACCEPTED], ids=[case[0] for case in ACCEPTED])
def test_accepted(tmp_path: Path, change: Damage, words: tuple[str, ...]) -> None:
    model = save_llama(tmp_path / "model")
    change(model)
    result = export(model, tmp_path / "out", *words)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


def test_a_key_with_an_effect_cannot_be_ignored(tmp_path: Path) -> None:
    model = save_llama(tmp_path / "model")
    check_refused(tmp_path, model, ("--ignore-key", "rope_theta"), "config-key-read", ("rope_theta", "config.json"))


def test_what_was_let_pass_is_recorded(tmp_path: Path) -> None:
    model = save_llama(tmp_path / "model")
    tensors(lambda t: t.update({"mtp.fc.weight": t[NORM]}))(model)
    config(frob=1)(model)
    assert export(model, tmp_path / "out", "--drop", "mtp.*", "--ignore-key", "frob").exit_code == 0
    record = json.loads((tmp_path / "out" / "evidence" / "export.json").read_text())
    assert record["dropped_tensors"] == {"mtp.fc.weight": "declared without effect (--drop)"}
    assert record["ignored_config_keys"]["frob"] == "declared without effect (--ignore-key)"


def test_remote_code_never_runs(tmp_path: Path) -> None:
    model = save_llama(tmp_path / "model", {"auto_map": {"AutoModelForCausalLM": "evil.Model"}})
    marker = tmp_path / "marker"
    (model / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    for words in (
        ("export", model, tmp_path / "out", "--no-verify"),
        ("inspect", model),
        ("inspect", tmp_path / "out"),
    ):
        assert paritas(*words).exit_code == 0
    assert not marker.exists()


def test_a_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    model = save_llama(tmp_path / "model")
    tensors(lambda t: t.update({"a\x1b[2J[bold]\nb": t[NORM]}))(model)
    result = export(model, tmp_path / "out")
    refused(result, "tensor-unused", r"a\x1b[2J[bold]\nb")
    assert "\x1b" not in result.output


def test_a_value_without_end_is_cut(tmp_path: Path) -> None:
    model = save_llama(tmp_path / "model", {"hidden_size": list(range(9999))})
    check_refused(tmp_path, model, (), "config-value-wrong", ("hidden_size is [0, 1,", "..."))


def test_a_gguf_that_is_none(tmp_path: Path) -> None:
    for content in (b"", b"GGUF", b"not a model" * 99):
        (tmp_path / "model.GGUF").write_bytes(content)
        check_refused(tmp_path, tmp_path / "model.GGUF", (), "gguf-unreadable", ("model.GGUF",))


def test_a_fault_of_ours_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("seven")

    monkeypatch.setattr("paritas.export.open_checkpoint", broken)
    result = export(tmp_path, tmp_path / "out", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["error"]["code"] == "internal-error"
    assert "ZeroDivisionError: seven" in result.stderr
