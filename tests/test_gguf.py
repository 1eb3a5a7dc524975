"""GGUF files written here with the library's writer, read back, and compared with the formats' definitions and
with transformers' own GGUF loader."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer

from paritas.checkpoint.gguf import open_gguf
from paritas.errors import ParitasError, Unsupported
from test_gguf_quants import K_QUANTS, SIMPLE, Q, stored

RNG = np.random.default_rng(5)
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, WIDE, VOCAB, LAYERS = 4, 2, 48, 256, 512, 280, 7


class Model:
    """A tiny random model in a GGUF file; change ``keys`` and ``tensors`` before :meth:`write`."""

    def __init__(self, arch: str, biases: bool = False, tied: bool = True, family: int = 0) -> None:
        self.arch = arch
        gemma = arch == "gemma3"
        self.keys: dict[str, Any] = {
            f"{arch}.context_length": 4096,
            f"{arch}.embedding_length": HIDDEN,
            f"{arch}.block_count": LAYERS,
            f"{arch}.feed_forward_length": WIDE,
            f"{arch}.attention.head_count": HEADS,
            f"{arch}.attention.head_count_kv": KV_HEADS,
            f"{arch}.attention.layer_norm_rms_epsilon": 1e-6,
            f"{arch}.attention.key_length": HEAD_DIM,
            f"{arch}.attention.value_length": HEAD_DIM,
            f"{arch}.rope.freq_base": 1e6 if gemma else 5e5,
        }
        if gemma:
            self.keys["gemma3.attention.sliding_window"] = 512
        else:
            self.keys |= {"llama.rope.dimension_count": HEAD_DIM, "llama.vocab_size": VOCAB}
        self.keys |= TOKENIZERS["spm" if gemma else "bpe"]
        self.tensors: dict[str, tuple[np.ndarray, Q]] = {}
        self._fill(gemma, biases, tied, family)

    def _fill(self, gemma: bool, biases: bool, tied: bool, family: int) -> None:
        kinds = [*SIMPLE, *K_QUANTS]
        q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        shapes = {"attn_q": (q, HIDDEN), "attn_k": (kv, HIDDEN), "attn_v": (kv, HIDDEN), "attn_output": (HIDDEN, q)}
        shapes |= {"ffn_gate": (WIDE, HIDDEN), "ffn_up": (WIDE, HIDDEN), "ffn_down": (HIDDEN, WIDE)}
        norms = {"attn_norm": HIDDEN, "ffn_norm": HIDDEN}
        if gemma:
            norms |= {"attn_q_norm": HEAD_DIM, "attn_k_norm": HEAD_DIM}
            norms |= {"post_attention_norm": HIDDEN, "post_ffw_norm": HIDDEN}
        for layer in range(LAYERS):
            for n, (name, shape) in enumerate(shapes.items()):
                allowed = kinds if shape[1] % 256 == 0 else SIMPLE
                self.add(f"blk.{layer}.{name}.weight", shape, allowed[(layer + n + family) % len(allowed)])
                if biases:
                    self.add(f"blk.{layer}.{name}.bias", shape[:1], Q.F32)
            for name, width in norms.items():
                self.add(f"blk.{layer}.{name}.weight", (width,), Q.F32, shift=1.0)
        self.add("token_embd.weight", (VOCAB, HIDDEN), Q.Q6_K)
        self.add("output_norm.weight", (HIDDEN,), Q.F32, shift=1.0)
        if not tied:
            self.add("output.weight", (VOCAB, HIDDEN), Q.Q4_K)

    def add(self, name: str, shape: tuple[int, ...], kind: Q, shift: float = 0.0) -> None:
        self.tensors[name] = (stored(shape, kind, shift), kind)

    def write(self, folder: Path) -> Path:
        path = folder / "model.gguf"
        writer = GGUFWriter(path, self.arch)
        for key, value in self.keys.items():
            write_key(writer, key, value)
        for name, (data, kind) in self.tensors.items():
            writer.add_tensor(name, data, raw_dtype=kind if data.dtype == np.uint8 else None)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def write_key(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def byte_alphabet() -> list[str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]


def tokenizers_of_the_tests() -> dict[str, dict[str, Any]]:
    bpe = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "Ġa", "aa", "11", "Ġaa"]
    spm = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = ["▁", "a", "b", "ab", "▁a", "▁ab", "  ", "   ", "<end_of_turn>"]
    scores = [-3.0, -4.0, -5.0, -1.0, -2.0, -6.0, -1000.0, -1000.0, -1000.0]
    return {
        "bpe": {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": bpe,
            "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(bpe) - 3),
            "tokenizer.ggml.merges": ["Ġ a", "a a", "1 1", "Ġa a"],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 0,
            "tokenizer.ggml.padding_token_id": 2,
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}",
        },
        "spm": {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": spm + pieces,
            "tokenizer.ggml.scores": [0.0] * len(spm) + scores,
            "tokenizer.ggml.token_type": [3, 3, 3, 2] + [6] * 256 + [1] * 6 + [4, 4, 3],
            "tokenizer.ggml.bos_token_id": 2,
            "tokenizer.ggml.eos_token_id": 1,
            "tokenizer.ggml.unknown_token_id": 3,
            "tokenizer.ggml.padding_token_id": 0,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.add_space_prefix": False,
        },
    }


TOKENIZERS = tokenizers_of_the_tests()


def refused(model: Model, folder: Path) -> ParitasError:
    with pytest.raises(ParitasError) as caught:
        open_gguf(model.write(folder))
    return caught.value


@pytest.mark.parametrize(
    ("arch", "biases", "tied", "family"),
    [("llama", False, True, 0), ("llama", True, False, 3), ("gemma3", False, True, 6), ("gemma3", False, False, 9)],
)
@pytest.mark.filterwarnings("default")
def test_tensors_equal_those_of_transformers_own_loader(
    tmp_path: Path, arch: str, biases: bool, tied: bool, family: int
) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = Model(arch, biases, tied, family).write(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, gguf_file=path.name)
    if biases:
        config.attention_bias = config.mlp_bias = True  # its loader has no word for them
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    ours = open_gguf(path).tensors
    assert set(theirs) == set(ours)
    assert set(model.state_dict()) - set(ours) == ({"lm_head.weight"} if tied else set())
    for name, tensor in ours.items():
        assert tensor.shape == tuple(theirs[name].shape), name
        np.testing.assert_array_equal(tensor.read(), theirs[name].numpy(), err_msg=name)


@pytest.mark.parametrize(("arch", "biases"), [("llama", True), ("gemma3", False)])
def test_rows_are_those_of_the_whole_tensor(tmp_path: Path, arch: str, biases: bool) -> None:
    for name, tensor in open_gguf(Model(arch, biases).write(tmp_path)).tensors.items():
        whole, count = tensor.read(), tensor.shape[0]
        for start, stop in ((0, 1), (1, count), (count // 3, count // 2), (count - 1, count), (2, 2)):
            np.testing.assert_array_equal(tensor.rows(start, stop), whole[start:stop], err_msg=name)


def test_interleaved_rows_are_put_in_halves(tmp_path: Path) -> None:
    model = Model("llama")
    rows = np.arange(HEADS * HEAD_DIM * HIDDEN, dtype=np.float32).reshape(HEADS, HEAD_DIM, HIDDEN)
    mixed = np.empty_like(rows)
    mixed[:, 0::2], mixed[:, 1::2] = rows[:, : HEAD_DIM // 2], rows[:, HEAD_DIM // 2 :]
    model.tensors["blk.1.attn_q.weight"] = (mixed.reshape(-1, HIDDEN), Q.F32)
    tensor = open_gguf(model.write(tmp_path)).tensors["model.layers.1.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(tensor.read(), rows.reshape(-1, HIDDEN))


def test_llama_configuration(tmp_path: Path) -> None:
    checkpoint = open_gguf(Model("llama", biases=True, tied=False).write(tmp_path))
    expected = {
        "model_type": "llama",
        "vocab_size": VOCAB,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-06,
        "rope_theta": 500000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_bias": True,
        "eos_token_id": 0,
    }
    assert {key: checkpoint.config[key] for key in expected} == expected
    assert checkpoint.generation == {"bos_token_id": 1, "eos_token_id": [0, 2], "pad_token_id": 2}
    json.dumps(checkpoint.config)


def test_gemma3_configuration(tmp_path: Path) -> None:
    model = Model("gemma3")
    model.keys |= {
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
        "gemma3.rope.freq_base_swa": 12345.0,
        "gemma3.final_logit_softcapping": 30.0,
    }
    checkpoint = open_gguf(model.write(tmp_path))
    expected = {
        "model_type": "gemma3_text",
        "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rope_theta": 1e6,
        "rope_local_base_freq": 12345.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": HEAD_DIM,
        "sliding_window": 512,
    }
    assert {key: checkpoint.config[key] for key in expected} == expected
    assert checkpoint.generation["eos_token_id"] == [1, 268]
    from transformers import AutoConfig

    ropes = AutoConfig.for_model(**checkpoint.config).rope_parameters
    assert ropes["full_attention"] == {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    assert ropes["sliding_attention"] == {"rope_type": "default", "rope_theta": 12345.0}


def llama3_factors(theta: float, factor: float) -> np.ndarray:
    """As a converter writes them: in fp32, frequency by frequency."""
    import torch

    out = []
    for freq in 1.0 / (theta ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)):
        wave = 2 * torch.pi / freq
        blend = (8192 / wave - 1.0) / (4.0 - 1.0)
        out.append(1.0 if wave < 8192 / 4 else factor if wave > 8192 else 1 / ((1 - blend) / factor + blend))
    return np.array(out, dtype=np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_found_in_its_factors(tmp_path: Path, factor: float) -> None:
    model = Model("llama")
    factors = llama3_factors(5e5, factor)
    assert ((factors > 1) & (factors < factor)).any()
    model.tensors["rope_freqs.weight"] = (factors, Q.F32)
    checkpoint = open_gguf(model.write(tmp_path))
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert not [name for name in checkpoint.tensors if "rope" in name]


@pytest.mark.parametrize("index", range(HEAD_DIM // 2))
def test_other_factors_are_refused(tmp_path: Path, index: int) -> None:
    model = Model("llama")
    factors = llama3_factors(5e5, 8.0)
    factors[index] *= 1.0001
    model.tensors["rope_freqs.weight"] = (factors, Q.F32)
    assert refused(model, tmp_path).code == "gguf-rope-factors"


def test_bpe_ids(tmp_path: Path) -> None:
    checkpoint = open_gguf(Model("llama").write(tmp_path))
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_files["tokenizer.json"].decode())
    tokens = TOKENIZERS["bpe"]["tokenizer.ggml.tokens"]
    encoded = tokenizer.encode("aa aa11<|im_end|>\n")
    assert encoded.tokens == ["aa", "Ġaa", "1", "1", "<|im_end|>", "Ċ"]
    assert encoded.ids == [tokens.index(token) for token in encoded.tokens]
    assert set(checkpoint.tokenizer_files) == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


def test_sentencepiece_ids(tmp_path: Path) -> None:
    checkpoint = open_gguf(Model("gemma3").write(tmp_path))
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_files["tokenizer.json"].decode())
    assert tokenizer.encode("ab ab").tokens == ["<bos>", "ab", "▁ab"]
    assert tokenizer.encode("    a").tokens == ["<bos>", "▁▁▁", "▁a"]
    assert tokenizer.encode("é<end_of_turn>").tokens == ["<bos>", "<0xC3>", "<0xA9>", "<end_of_turn>"]
    assert tokenizer.decode(tokenizer.encode("  ab é   b").ids) == "  ab é   b"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_transformers_loads_the_tokenizer_files(tmp_path: Path, arch: str) -> None:
    from transformers import AutoTokenizer

    files = open_gguf(Model(arch).write(tmp_path)).tokenizer_files
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    raw = Tokenizer.from_str(files["tokenizer.json"].decode())
    for text in ("ab ab", "", "a   <|im_end|>b<end_of_turn>", "é\n\n1"):
        assert loaded(text)["input_ids"] == raw.encode(text).ids
    if arch == "llama":
        assert loaded.apply_chat_template([{"content": "a"}], tokenize=False) == "<|im_start|>a<|im_end|>"


def test_unknown_things_are_refused_by_name(tmp_path: Path) -> None:
    cases: list[tuple[str, str, Callable[[Model], None]]] = [
        ("gguf-key-unread", "llama.logit_scale", lambda m: m.keys.update({"llama.logit_scale": 0.5})),
        ("gguf-key-unread", "tokenizer.ggml.new", lambda m: m.keys.update({"tokenizer.ggml.new": 1})),
        ("gguf-key-missing", "llama.block_count", lambda m: m.keys.pop("llama.block_count")),
        ("gguf-key-type", "llama.block_count", lambda m: m.keys.update({"llama.block_count": "7"})),
        ("gguf-tokenizer", "'tekken'", lambda m: m.keys.update({"tokenizer.ggml.pre": "tekken"})),
        ("gguf-tokenizer", "'bert'", lambda m: m.keys.update({"tokenizer.ggml.model": "bert"})),
        ("gguf-vocabulary", "281 tokens", lambda m: m.keys["tokenizer.ggml.tokens"].extend("x" * 18)),
        ("gguf-rope-scaling", "'yarn'", lambda m: m.keys.update({"llama.rope.scaling.type": "yarn"})),
        ("gguf-head-size", "rope.dimension_count", lambda m: m.keys.update({"llama.rope.dimension_count": 16})),
        ("gguf-experts", "expert_count", lambda m: m.keys.update({"llama.expert_count": 8})),
        ("gguf-partial-biases", "1 of 28", lambda m: m.add("blk.0.attn_q.bias", (192,), Q.F32)),
        ("gguf-tensor-unknown", "blk.9.attn_q", lambda m: m.add("blk.9.attn_q.weight", (192, 256), Q.F32)),
        ("gguf-tensor-missing", "token_embd", lambda m: m.tensors.pop("token_embd.weight")),
        ("gguf-split", "3 GGUF files", lambda m: m.keys.update({"split.count": 3})),
    ]
    for code, said, change in cases:
        model = Model("llama")
        model.keys = json.loads(json.dumps(model.keys))
        change(model)
        error = refused(model, tmp_path)
        assert error.code == code, error
        assert said in error.fact, error


def test_unknown_architecture_and_type(tmp_path: Path) -> None:
    error = refused(Model("qwen99"), tmp_path)
    assert isinstance(error, Unsupported)
    assert error.code == "gguf-architecture"
    assert "llama, gemma3" in error.fact
    model = Model("llama")
    model.tensors["blk.0.attn_q.weight"] = (np.zeros((192, 256), dtype=np.int32), Q.I32)
    error = refused(model, tmp_path)
    assert error.code == "gguf-type"
    assert "blk.0.attn_q.weight" in error.fact
    assert "I32" in error.fact


def test_a_file_that_ends_early_says_so(tmp_path: Path) -> None:
    whole = Model("llama").write(tmp_path).read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [0, 3, 23, 24, 100, 3000, *range(4000, len(whole), len(whole) // 29), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(ParitasError, match="gguf-unreadable") as caught:
            open_gguf(path)
        assert str(path) in caught.value.place
        assert str(size) in caught.value.fact
    assert f"describes {len(whole)}" in caught.value.fact


def test_no_corrupt_header_escapes_as_a_traceback(tmp_path: Path) -> None:
    model = Model("llama")
    whole = bytearray(model.write(tmp_path).read_bytes())
    header = len(whole) - sum(data.nbytes for data, _ in model.tensors.values())
    path = tmp_path / "corrupt.gguf"
    seen = set()
    for _ in range(400):
        bad = bytearray(whole)
        for at in RNG.integers(0, header, RNG.integers(1, 3)):
            bad[at] = RNG.integers(0, 256)
        path.write_bytes(bad)
        try:
            bytes(open_gguf(path).tokenizer_files.get("tokenizer.json", b""))
        except ParitasError as error:
            seen.add(error.code)
    assert "gguf-unreadable" in seen


def test_unreadable_files(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for content in (
        b"PK\x03\x04" + bytes(60),
        b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    ):
        path.write_bytes(content)
        with pytest.raises(ParitasError, match="gguf-unreadable"):
            open_gguf(path)
    with pytest.raises(ParitasError, match="gguf-unreadable"):
        open_gguf(tmp_path / "nothing.gguf")
