"""Tensors of a graph lie in :mod:`paritas.runtime.stored`."""

from paritas.runtime.stored import BLOCK, Stored, tensors

__all__ = ["BLOCK", "Stored", "tensors"]
