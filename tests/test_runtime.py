"""The runtimes, on small decoders written here, held against the same decoder in numpy."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from test_chat import CHATML, byte_level, save
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from paritas.errors import Invalid, ParitasError, Unsupported
from paritas.runtime.chat import ChatTokenizer
from paritas.runtime.decoder import Decoder
from paritas.runtime.generate import generate
from paritas.runtime.genai import GenAISession
from paritas.runtime.package import Package, open_package
from paritas.runtime.padding import left_padding_obstacle
from paritas.runtime.ports import read_ports
from paritas.runtime.proto import operators
from paritas.runtime.sampling import Greedy, Multinomial, of_package
from paritas.runtime.session import RawSession

HEADS, WIDTH, CONTEXT = 2, 16, 96
FLOOR = 1e-5  # logits here are of size 1; fp32 sums of 16 terms


class Tables:
    """The weights of one attention layer over embedded tokens and positions; every one of them random."""

    def __init__(self, vocab: int) -> None:
        random = np.random.default_rng(0)
        make = lambda *shape: random.normal(0, 0.7, shape).astype(np.float32)  # noqa: E731
        self.query, self.key, self.value = (make(vocab, HEADS * WIDTH) for _ in range(3))
        self.position, self.head = make(CONTEXT, HEADS * WIDTH), make(HEADS * WIDTH, vocab)

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """``[length, vocab]`` of ``ids`` ``[length]``."""
        query, key, value = (
            (table[ids].astype(np.float64) + self.position[: len(ids)]).reshape(-1, HEADS, WIDTH)
            for table in (self.query, self.key, self.value)
        )
        scores = np.einsum("qhd,khd->hqk", query, key) / WIDTH**0.5
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, value).reshape(len(ids), -1) @ self.head


NAMES = ("past_key_values.{}.key", "past_key_values.{}.value", "present.{}.key", "present.{}.value")
SPELLINGS = [
    NAMES,
    ("past_key_{}", "past_value_{}", "present_key_{}", "present_value_{}"),
    ("past.{}.key", "past.{}.value", "present.{}.key", "present.{}.value"),
    ("past_key_values_key_cache_{}", "past_key_values_value_cache_{}", "key_cache_{}_out", "value_cache_{}_out"),
    ("cache.{}.k", "cache.{}.v", "new_cache.{}.k", "new_cache.{}.v"),
    ("past_key_values.{}.decoder.key", "past_key_values.{}.decoder.value", "present.{}.decoder.key", "present.{}.decoder.value"),
]


def decoder(
    file: Path,
    vocab: int = 40,
    *,
    names: tuple[str, str, str, str] = NAMES,
    layer: int = 0,
    integer: int = TensorProto.INT64,
    cache: int = TensorProto.FLOAT,
    logits: int = TensorProto.FLOAT,
    positions: str = "derived",
    typed: bool = True,
) -> Tables:
    """Write that decoder to ``file``, its weights outside; ``positions`` is an input, derived from the mask, or a count."""
    tables = Tables(vocab)
    past_key, past_value, present_key, present_value = (name.format(layer) for name in names)
    body = f"""
        new = Shape<start = 1, end = 2>(input_ids)
        {_positions(positions)}
        seen = Gather(position, places)
        """
    for half in ("query", "key", "value"):
        body += f"""
        {half}_flat = Gather({half}, input_ids)
        {half}_placed = Add({half}_flat, seen)
        {half}_heads = Reshape({half}_placed, split)
        {half}_new = Transpose<perm = [0, 2, 1, 3]>({half}_heads)
        """
    body += f"""
        keep = Cast<to = {TensorProto.BOOL}>(attention_mask)
        keep_heads = Unsqueeze(keep, one_two)
        key_before = Cast<to = 1>("{past_key}")
        value_before = Cast<to = 1>("{past_value}")
        mixed, key_after, value_after = Attention<is_causal = 1>(query_new, key_new, value_new, keep_heads, key_before, value_before)
        "{present_key}" = Cast<to = {cache}>(key_after)
        "{present_value}" = Cast<to = {cache}>(value_after)
        mixed_tokens = Transpose<perm = [0, 2, 1, 3]>(mixed)
        mixed_flat = Reshape(mixed_tokens, join)
        logits_wide = MatMul(mixed_flat, head)
        logits = Cast<to = {logits}>(logits_wide)
        """
    return tables
