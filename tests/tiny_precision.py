"""Tiny Llamas for packages of less than fp32: one whose blocks of 32 fill rows, one whose MLPs overflow fp16."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from safetensors.torch import load_file, save_file

from tiny import WEIGHTS, tiny_llama


def loud(folder: Path) -> None:
    """MLPs that give more than fp16 can hold; every weight fits into it."""
    tiny_llama(folder)
    tensors = load_file(folder / WEIGHTS)
    for name, tensor in tensors.items():
        if ".mlp." in name:
            tensors[name] = tensor * 256
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "llama-wide": partial(tiny_llama, hidden_size=128, intermediate_size=192, num_attention_heads=8),
    "llama-loud": loud,
}
