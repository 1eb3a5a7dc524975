"""The two real GGUF files, against transformers' loader, the published tokenizers and the runtime's tokenizer.

Needs a folder as ``tools/fetch_models.py`` makes it, named by PARITAS_MODELS (``.models`` otherwise).
"""

import json
import os
import random
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from paritas.checkpoint import Checkpoint
from paritas.checkpoint.gguf import open_gguf

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]

FILES = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}
FOLDERS = {"smollm2": "smollm2-135m-instruct", "gemma3": "gemma3-270m"}
# ONNX Runtime's own tokenizer splits some strings otherwise, with the original files as well.
RUNTIME_DIFFERENCES = {"smollm2": 13, "gemma3": 18}

TEXTS = [
    *("", " ", "a", "Hello, world!", "I'm you're HE'LL they'Ve it's", "naïve café coöperate ﬁ", "e\u0301\u0323"),
    "antidisestablishmentarianism floccinaucinihilipilification honorificabilitudinitatibus",
    *("سلام دنیا! حال شما چطور است؟", "می‌خواهم کتاب‌ها را بخوانم.", "قیمت: ۱۲۳٬۴۵۶ ریال", "العَرَبِيَّةُ", "שלום"),
    *(
        "你好，世界！今天天气怎么样？",
        "混合 English 和中文 text 123",
        "日本語のテキスト",
        "한국어 문장",
        "ภาษาไทย",
        "हिन्दी में",
    ),
    *(
        "😀😃 👨‍👩‍👧‍👦 🏳️‍🌈 🇮🇷 👍🏽",
        "\U0001f9ff\U0001fae0",
        "𝔘𝔫𝔦",
        "\x00",
        "\x01\x7f",
        "\ufffd\ufeff",
        "\u200b\u200c\u200d",
    ),
    *(
        "\u00a0\u2003\u3000x",
        "𐎠𐎡 𒀀 𓀀",
        "\ue000\uf8ff",
        "0",
        "12",
        "1234567890123",
        "3.14e-10",
        "1,234.5",
        "٠١٢",
        "½ ² Ⅷ",
    ),
    "<html><body><table><tr><td>x</td></tr></table></body></html>",
    *("<b>bold</b> </h1><strong>x</strong>", "<br/><p>a</p>\n<ul><li>1</li></ul>"),
    "def f(x):\n    return x + 1\n\n\nclass A:\n\tdef g(self):\n\t\tpass\n",
    *("for(int i=0;i<10;++i){a[i]=b[i]<<2;}", '{"k": [1, {"x": null}]}', "a\r\nb\r\n\r\nc\rd", "\r\r\n\n\r", " \n \n "),
    *("\t \t \n", "x  \n  y", "  leading", "trailing  ", "▁", "▁▁a▁b", "Ġ Ċ ĉ", "http://example.org/a?b=c&d=%20#e"),
    "<bos>x<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n<eos><pad><unk>",
    *("<unused0>a<unused99> <unused6241>", "<mask> [multimodal]", "<start_of_image>x<end_of_image>", "<0x41><0x0A>"),
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|endoftext|><repo_name>x<file_sep> <|im_start",
    *(
        "<s></s>[INST] x [/INST]",
        "!!!??...,,,;;;",
        "--- === *** ###",
        "€5 £3 ¥7",
        "A" * 50,
        "ha" * 33,
        "🙂" * 7,
        "中" * 9,
    ),
]


def corpus() -> Iterator[str]:
    """Some 850 strings: those above, every short run of whitespace and digits, and random mixtures."""
    yield from TEXTS
    for n in range(1, 41):
        yield from (" " * n, "\n" * n, "\t" * n, "a" + " " * n + "b", "1" * n)
    rng = random.Random(7)
    pool = "aAbz 019\n\t'\"<>/.,_-é中سگ😀\u200c\u00a0▁\r"
    for _ in range(300):
        yield "".join(rng.choice(pool) for _ in range(rng.randrange(1, 40)))
    spans = (32, 0x2000), (0x3000, 0xD000), (0x10000, 0x1FFFF)
    for _ in range(300):
        yield "".join(chr(rng.randrange(*rng.choice(spans))) for _ in range(rng.randrange(1, 12)))


def models() -> Path:
    return Path(os.environ.get("PARITAS_MODELS", ".models"))


@cache
def checkpoint(name: str) -> Checkpoint:
    path = models() / FILES[name]
    assert path.exists(), f"{path} is missing: python tools/fetch_models.py {models()}"
    return open_gguf(path)


def written(name: str, folder: Path) -> Path:
    for file, content in checkpoint(name).tokenizer_files.items():
        (folder / file).write_bytes(content)
    return folder


def truth(name: str) -> Tokenizer:
    """The published tokenizer; for SmolLM2 that of the file, as transformers converts it, with its digits rule."""
    if name == "gemma3":
        return Tokenizer.from_file(str(models() / "tokenizer-gemma3" / "tokenizer.json"))
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    converted = AutoTokenizer.from_pretrained(models(), gguf_file=FILES[name]).backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    converted.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return converted


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_weights_equal_those_of_transformers_own_loader(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    monkeypatch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))  # built 397 times otherwise
    ours = checkpoint(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**ours.config))
    theirs = load_gguf_checkpoint(ours.path, return_tensors=True, model_to_load=model)["tensors"]
    assert set(theirs) == set(ours.tensors)
    for parameter, tensor in ours.tensors.items():
        np.testing.assert_array_equal(tensor.read(), theirs[parameter].numpy(), err_msg=parameter)


@pytest.mark.parametrize("name", FILES)
def test_ids_and_text_equal_the_original_tokenizer(name: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    original = truth(name)
    loaded = AutoTokenizer.from_pretrained(written(name, tmp_path))
    ours = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in corpus():
        ids = original.encode(text).ids
        assert ours.encode(text).ids == ids, repr(text)
        assert loaded(text)["input_ids"] == ids, repr(text)
        assert ours.decode(ids, skip_special_tokens=False) == original.decode(ids, skip_special_tokens=False)
        bare = original.encode(text, add_special_tokens=False).ids
        assert loaded(text, add_special_tokens=False)["input_ids"] == bare, repr(text)


def test_gemma_merges_are_the_published_list() -> None:
    ours = json.loads(checkpoint("gemma3").tokenizer_files["tokenizer.json"])["model"]
    published = json.loads(truth("gemma3").to_str())["model"]
    assert ours["vocab"] == published["vocab"]
    assert ours["merges"] == published["merges"]


@pytest.mark.parametrize("name", FILES)
def test_the_runtime_tokenizes_as_with_the_original_files(name: str, tmp_path: Path) -> None:
    og = pytest.importorskip("onnxruntime_genai")
    (tmp_path / "ours").mkdir()
    written(name, tmp_path / "ours")
    (tmp_path / "theirs").mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(models() / FOLDERS[name] / file, tmp_path / "theirs")
    for folder in ("ours", "theirs"):
        write_genai_config(checkpoint(name), tmp_path / folder)
    ours, theirs = og.Tokenizer(str(tmp_path / "ours")), og.Tokenizer(str(tmp_path / "theirs"))
    exact = Tokenizer.from_file(str(tmp_path / "ours" / "tokenizer.json"))
    wrong = 0
    for text in corpus():
        if "\x00" in text:
            continue
        ids = list(ours.encode(text))
        assert ids == list(theirs.encode(text)), repr(text)
        wrong += ids != exact.encode(text, add_special_tokens=False).ids
    assert wrong <= RUNTIME_DIFFERENCES[name]


def write_genai_config(source: Checkpoint, folder: Path) -> None:
    """As little as the runtime wants to see before it loads a tokenizer."""
    decoder = {
        "filename": "model.onnx",
        "head_size": source.config["head_dim"],
        "hidden_size": source.config["hidden_size"],
        "num_attention_heads": source.config["num_attention_heads"],
        "num_key_value_heads": source.config["num_key_value_heads"],
        "num_hidden_layers": source.config["num_hidden_layers"],
        "inputs": {"input_ids": "input_ids"},
        "outputs": {"logits": "logits"},
    }
    model = {"type": "llama", "context_length": 2048, "vocab_size": source.config["vocab_size"], "decoder": decoder}
    values = {"model": model | source.generation, "search": {"max_length": 2048}}
    (folder / "genai_config.json").write_text(json.dumps(values))


def test_smollm2_chat_template(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(written("smollm2", tmp_path))
    text = loaded.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_generation_and_configuration() -> None:
    smollm2, gemma3 = checkpoint("smollm2"), checkpoint("gemma3")
    assert smollm2.generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    assert gemma3.generation == {"bos_token_id": 2, "eos_token_id": [1, 106], "pad_token_id": 0}
    assert (smollm2.config["rms_norm_eps"], gemma3.config["rms_norm_eps"]) == (1e-05, 1e-06)
    assert [i for i, kind in enumerate(gemma3.config["layer_types"]) if kind == "full_attention"] == [5, 11, 17]
    assert gemma3.config["query_pre_attn_scalar"] == 256
