"""A checkpoint as transformers loads it: configuration, lazily read tensors, tokenizer, generation defaults."""

from paritas.checkpoint.base import Checkpoint, Extent, Tensor
from paritas.checkpoint.opening import open_checkpoint

__all__ = ["Checkpoint", "Extent", "Tensor", "open_checkpoint"]
