"""Small checkpoints written by hand, without torch, every byte open to damage; and the commands they are given to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from typer.testing import CliRunner, Result

from paritas.cli import app

HIDDEN, HEADS, KV, HEAD_DIM, INTER, LAYERS, CONTEXT = 40, 4, 2, 16, 56, 2, 64
SPECIAL = ("<s>", "</s>", "<pad>")
VOCAB = 256 + len(SPECIAL)
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INTER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
Arrays = dict[str, NDArray[Any]]


def llama_tensors(*, head: bool = True) -> Arrays:
    """Every parameter, random; bf16 values are not needed to be refused."""
    random = np.random.default_rng(0)
    shapes = {"model.embed_tokens": (VOCAB, HIDDEN), "model.norm": (HIDDEN,)}
    for layer in (f"model.layers.{index}" for index in range(LAYERS)):
        shapes |= {
            f"{layer}.self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            f"{layer}.self_attn.k_proj": (KV * HEAD_DIM, HIDDEN),
            f"{layer}.self_attn.v_proj": (KV * HEAD_DIM, HIDDEN),
            f"{layer}.self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            f"{layer}.mlp.gate_proj": (INTER, HIDDEN),
            f"{layer}.mlp.up_proj": (INTER, HIDDEN),
            f"{layer}.mlp.down_proj": (HIDDEN, INTER),
            f"{layer}.input_layernorm": (HIDDEN,),
            f"{layer}.post_attention_layernorm": (HIDDEN,),
        }
    if head:
        shapes["lm_head"] = (VOCAB, HIDDEN)
    return {f"{name}.weight": random.normal(size=shape).astype("<f4") for name, shape in shapes.items()}


def save_llama(folder: Path, config: Mapping[str, Any] | None = None, tensors: Arrays | None = None) -> Path:
    """A whole and healthy checkpoint in one file; ``config`` is laid over the usual one."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {**LLAMA, **(config or {})})
    write_json(folder / "generation_config.json", {"eos_token_id": [257, 258], "do_sample": True, "temperature": 0.7})
    write_safetensors(folder / "model.safetensors", llama_tensors() if tensors is None else tensors)
    save_tokenizer(folder)
    return folder


def save_sharded(folder: Path) -> Path:
    """The same in three shards and an index."""
    save_llama(folder)
    (folder / "model.safetensors").unlink()
    tensors = llama_tensors()
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(3):
        file = f"model-{shard + 1:05}-of-00003.safetensors"
        write_safetensors(folder / file, {name: tensors[name] for name in names[shard::3]})
        weight_map |= dict.fromkeys(names[shard::3], file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return folder


def save_gemma3(folder: Path) -> Path:
    """A multimodal Gemma 3 as transformers 4 saved it; its text half has one layer of each kind."""
    text = {
        "model_type": "gemma3_text",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 24,
    }
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {}, "mm_tokens_per_image": 4}
    tensors = llama_tensors(head=False)
    random = np.random.default_rng(1)
    for index in range(LAYERS):
        for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
            tensors[f"model.layers.{index}.{name}.weight"] = random.normal(size=HIDDEN).astype("<f4")
        for name in ("q_norm", "k_norm"):
            tensors[f"model.layers.{index}.self_attn.{name}.weight"] = random.normal(size=HEAD_DIM).astype("<f4")
    tensors = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    tensors["vision_tower.patch.weight"] = random.normal(size=(3, 3)).astype("<f4")
    folder.mkdir()
    write_json(folder / "config.json", config)
    write_safetensors(folder / "model.safetensors", tensors)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """One token a byte, three special ones, and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL, strict=True))
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", **names, "chat_template": TEMPLATE},
    )


def write_safetensors(file: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """fp32 and int64 alone; one after the other, as the format wants them."""
    words = {"float32": "F32", "int64": "I64"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in tensors.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": words[str(array.dtype)], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in tensors.values()))


def write_json(file: Path, values: Any) -> None:
    file.write_text(json.dumps(values), encoding="utf-8")


def edit_json(file: Path, **values: Any) -> None:
    """Lay ``values`` over an object in a file."""
    write_json(file, {**json.loads(file.read_text(encoding="utf-8")), **values})


def paritas(*words: object, stdin: str | None = None) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin, env={"COLUMNS": "80"})


def export(model: Path, out: Path, *words: object) -> Result:
    """Export without a proof (which is tested elsewhere)."""
    return paritas("export", model, out, "--no-verify", *words)


def refused(result: Result, code: str, *fragments: str, exit_code: int = 2) -> None:
    """Hold a result against what every error is: one screen with code, fact, place and next step; nothing else."""
    told = " ".join(result.stderr.split())
    assert result.exit_code == exit_code, result.output
    assert f"error: {code} " in told, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) <= 20, result.stderr
    assert [fragment for fragment in fragments if fragment not in told] == [], result.stderr


def listing(folder: Path) -> dict[str, bytes]:
    """Everything under a folder, hidden files too: name -> content."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }
