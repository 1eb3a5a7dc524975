"""The first layers of a checkpoint as a checkpoint of its own: the same weights in the same types."""

import json
import re
from pathlib import Path
from typing import Any

from paritas.checkpoint import Checkpoint, Tensor
from paritas.diagnose.shrink.candidates import smaller
from paritas.diagnose.shrink.sizes import Source
from paritas.verify.loading import require_torch

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_KINDS = {"BF16": "bfloat16", "F16": "float16"}
"""Types that are kept; every other one is widened to fp32, as the checkpoint itself is read."""


def write_beginning(checkpoint: Checkpoint, source: Source, layers: int, folder: Path) -> None:
    """Write the first ``layers`` layers, with all that stands before and behind them, as a folder of transformers.

    Args:
        checkpoint: a decoder.
        source: its configuration (:func:`paritas.diagnose.shrink.sizes.open_source`).
        layers: how many stay.
        folder: is made.
    """
    safetensors: Any = __import__("safetensors.torch").torch
    folder.mkdir(parents=True)
    config = smaller(source, {"layers": tuple(range(layers))})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(dict(checkpoint.generation)), encoding="utf-8")
    for name, content in checkpoint.tokenizer_files.items():
        (folder / name).write_bytes(content)
    kept = {name: _stored(tensor) for name, tensor in checkpoint.tensors.items() if _layer(name) < layers}
    safetensors.save_file(kept, folder / "model.safetensors", {"format": "pt"})


def _layer(name: str) -> int:
    """Number of the layer that a tensor is of; -1 for what is of none."""
    found = _LAYER.search(name)
    return -1 if found is None else int(found[1])


def _stored(tensor: Tensor) -> Any:
    torch, _ = require_torch()
    return torch.from_numpy(tensor.read()).to(getattr(torch, _KINDS.get(tensor.dtype, "float32"))).contiguous()
