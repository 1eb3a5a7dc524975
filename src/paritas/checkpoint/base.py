"""What a checkpoint is, wherever it lies: the two types that every source of weights provides."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Extent:
    """Bytes ``[offset, offset + length)`` of a file, which are numbers of ``dtype`` in a row."""

    path: Path
    offset: int
    length: int
    dtype: str


class Tensor(ABC):
    """A tensor of a checkpoint. Nothing is read before :meth:`rows` is called, and only those rows then.

    Attributes:
        name: as transformers names the parameter (``model.layers.0.self_attn.q_proj.weight``).
        shape: as transformers shapes the parameter.
        dtype: as stored, in the source's own spelling (``BF16``, ``Q4_K``).
        place: the file that holds it, for messages.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    place: str

    @abstractmethod
    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows ``[start, stop)`` along the first axis, widened to fp32. Exact for every stored float type."""

    def extent(self, start: int, stop: int) -> Extent | None:
        """Where rows ``[start, stop)`` lie as they are; None where they are made of something else."""
        del start, stop
        return None

    def read(self) -> NDArray[np.float32]:
        """The whole tensor in fp32."""
        return self.rows(0, self.shape[0])

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, opened: headers have been read, weights have not.

    Attributes:
        path: the folder or the GGUF file.
        name: what people call it: the folder's or the file's name, or the Hub id.
        config: the values of config.json (a GGUF's metadata, written in the same words).
        config_place: what to call the configuration in a message.
        tensors: by transformers' parameter name.
        generation: the values of generation_config.json; empty if there is none.
        tokenizer_files: name -> content of each tokenizer file of the package (tokenizer.json, tokenizer_config.json,
            chat_template.jinja, ...); empty if the checkpoint has no tokenizer.
        adapter: folder of the PEFT adapter that is merged into the tensors; None if there is none.
        quantised: transformers' word for how the weights are stored (``gptq``) that the tensors are dequantised from;
            None if they are stored as they are.
    """

    path: Path
    name: str
    config: Mapping[str, Any]
    config_place: str
    tensors: Mapping[str, Tensor]
    generation: Mapping[str, Any]
    tokenizer_files: Mapping[str, bytes]
    adapter: Path | None = None
    quantised: str | None = None
