"""RoPE tables of published configurations beside transformers' own rotary modules, at every position.

    python benchmarks/rope_bits.py tests/configs/gemma-3-*

For each config.json alone: bits of the inverse frequencies that differ, and how far cos and sin are apart.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from paritas.config import Config
from paritas.families import family_of
from paritas.graph.rope import inverse_frequencies, tables
from paritas.spec import Rope

BLOCK = 8192


def reference(folder: Path) -> tuple[Any, Any]:
    """transformers' text configuration and its rotary module."""
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    module = Gemma3RotaryEmbedding if config.model_type == "gemma3_text" else LlamaRotaryEmbedding
    return config, module(config)


def compare(name: str, kind: str, rope: Rope, config: Any, rotary: Any) -> None:
    """Print one line for one layer kind."""
    keyed = hasattr(rotary, f"{kind}_inv_freq")
    theirs = getattr(rotary, f"{kind}_inv_freq") if keyed else rotary.inv_freq
    frequencies = int((inverse_frequencies(rope) != theirs.numpy()).sum())
    worst, differing, total = 0.0, 0, 0
    for start in range(0, config.max_position_embeddings, BLOCK):
        stop = min(start + BLOCK, config.max_position_embeddings)
        positions = torch.arange(start, stop)[None]
        with torch.inference_mode():
            wanted = rotary(torch.zeros(1), positions, kind) if keyed else rotary(torch.zeros(1), positions)
        for ours, full in zip(tables(rope, start, stop), wanted, strict=True):
            gap = np.abs(ours - full[0, :, : rope.dim // 2].numpy())
            worst, differing, total = max(worst, float(gap.max())), differing + int((gap > 0).sum()), total + gap.size
    print(
        f"{name:24s} {kind:18s} positions {config.max_position_embeddings:7,}  inverse frequencies that differ "
        f"{frequencies:2d} of {rope.dim // 2}  cos/sin: max {worst:.2g}, in {100 * differing / total:.1f} %"
    )


def main() -> None:
    """Compare every folder given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    for folder in parser.parse_args().folders:
        values = json.loads((folder / "config.json").read_text())
        config = Config(values.get("text_config", values))
        spec = family_of(config).read(config)
        theirs, rotary = reference(folder)
        for kind, rope in dict.fromkeys((layer.kind, layer.attention.rope) for layer in spec.layers):
            compare(folder.name, kind, rope, theirs, rotary)


if __name__ == "__main__":
    main()
