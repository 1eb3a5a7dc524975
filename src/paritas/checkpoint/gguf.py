"""A GGUF file as a checkpoint: what transformers would have, had the file never been converted."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.base import Checkpoint, Tensor
from paritas.checkpoint.gguf_file import Entry, GgufFile, read_gguf
from paritas.checkpoint.gguf_gemma3 import gemma3
from paritas.checkpoint.gguf_layout import Layout, interleaved_rows
from paritas.checkpoint.gguf_llama import llama
from paritas.checkpoint.gguf_metadata import IGNORABLE, IGNORABLE_TOKENIZER, Metadata
from paritas.checkpoint.gguf_quants import widen
from paritas.checkpoint.gguf_tokenizer import open_tokenizer
from paritas.errors import ParitasError, Unsupported

_LAYOUTS: Mapping[str, Callable[[GgufFile, Metadata], Layout]] = {"llama": llama, "gemma3": gemma3}


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file: its header is read and accounted for; weights and tokenizer wait until asked for.

    Raises:
        ParitasError: ``gguf-unreadable``, ``gguf-key-unread``, ``gguf-tensor-unknown``, ...
        Unsupported: ``gguf-architecture``, ``gguf-type``, ``gguf-rope-factors``, ``gguf-tokenizer``, ...
    """
    file = read_gguf(path)
    meta = Metadata(file.metadata, path)
    architecture = meta.need("general.architecture", str)
    if architecture not in _LAYOUTS:
        raise Unsupported(
            "gguf-architecture",
            f"architecture {architecture!r} is not supported; supported are {', '.join(_LAYOUTS)}",
            place=str(path),
            hint="Export from the original Hugging Face checkpoint.",
        )
    layout = _LAYOUTS[architecture](file, meta)
    tensors = _tensors(file, layout)
    tokenizer = open_tokenizer(meta, layout.config)
    meta.account(f"{architecture}.", IGNORABLE)
    meta.account("tokenizer.ggml.", IGNORABLE_TOKENIZER)
    return Checkpoint(
        path=path,
        name=path.name,
        config=layout.config | tokenizer.ids | {"torch_dtype": "float32"},
        config_place=f"{path} (metadata)",
        tensors=tensors,
        generation=tokenizer.generation,
        tokenizer_files=tokenizer.files,
    )


@dataclass(frozen=True)
class GgufTensor(Tensor):
    """A tensor of a GGUF file, in transformers' name, row order and values.

    Attributes:
        order: where each row lies in the file; None if rows lie in order.
        shift: what is subtracted in fp32.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    place: str
    file: GgufFile = field(repr=False)
    entry: Entry = field(repr=False)
    order: NDArray[np.intp] | None = field(default=None, repr=False)
    shift: int = 0

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Dequantise rows ``[start, stop)``, and only these: quantised blocks run along the last axis."""
        if len(self.shape) == 1:
            values = self._widened(slice(None))
            values = (values if self.order is None else values[self.order])[start:stop]
        else:
            values = self._widened(slice(start, stop) if self.order is None else self.order[start:stop])
            values = values.reshape(-1, *self.shape[1:])
        return values - np.float32(self.shift) if self.shift else values

    def _widened(self, rows: slice | NDArray[np.intp]) -> NDArray[np.float32]:
        return widen(self.file.bytes_of(self.entry)[rows], self.dtype)


def _tensors(file: GgufFile, layout: Layout) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    unknown: list[str] = []
    for entry in file.entries.values():
        name = _transformers_name(entry.name, layout)
        if name is not None:
            found[name] = _tensor(file, layout, entry, name)
        elif entry.name not in layout.consumed:
            unknown.append(entry.name)
    if unknown:
        raise ParitasError(
            "gguf-tensor-unknown",
            f"{len(unknown)} tensors have no place in this architecture: {', '.join(unknown[:8])}",
            place=str(file.path),
            hint="Export from the original Hugging Face checkpoint.",
        )
    return found


def _transformers_name(name: str, layout: Layout) -> str | None:
    block = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    if block is None:
        return layout.outer.get(name)
    inside = layout.block.get(block[2])
    if inside is None or int(block[1]) >= layout.config["num_hidden_layers"]:
        return None
    return f"model.layers.{int(block[1])}.{inside}"


def _tensor(file: GgufFile, layout: Layout, entry: Entry, name: str) -> GgufTensor:
    heads = (layout.heads_of or {}).get(entry.name.split(".", 2)[-1])
    if heads is not None and entry.shape[0] % (2 * heads):
        raise ParitasError(
            "gguf-tensor-shape",
            f"tensor {entry.name!r} has {entry.shape[0]} rows, which {heads} heads do not divide evenly",
            place=str(file.path),
        )
    return GgufTensor(
        name=name,
        shape=entry.shape,
        dtype=entry.type,
        place=str(file.path),
        file=file,
        entry=entry,
        order=interleaved_rows(entry.shape[0], heads) if heads is not None else None,
        shift=1 if layout.shifted(name) else 0,
    )
