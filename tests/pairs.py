"""A tiny Gemma 4 that shares keys, and drafters for it: every parameter random."""

from pathlib import Path
from typing import Any

import torch
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig

from tiny import HIDDEN, randomize
from tiny_gemma4 import E2B, FULL, SLIDING, tiny_gemma4, values

VOCAB = 330  # clusters of equal size are wanted
CLUSTERS = {"use_ordered_embeddings": True, "num_centroids": 30, "centroid_intermediate_top_k": 5}


def tiny_target(folder: Path) -> None:
    """As E2B is."""
    tiny_gemma4(folder, **E2B | {"vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB})


def tiny_drafter(folder: Path, *, text: dict[str, Any] | None = None, **changes: Any) -> None:
    """A gemma4_assistant in bf16; its order of tokens is random, and its ids stay whole numbers."""
    inner = values(
        vocab_size=VOCAB,
        hidden_size=40,
        intermediate_size=56,
        num_hidden_layers=4,
        num_kv_shared_layers=4,
        layer_types=[SLIDING, FULL, SLIDING, FULL],
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        final_logit_softcapping=None,
    )
    config = Gemma4AssistantConfig(
        text_config=Gemma4TextConfig(**(inner | (text or {}))), backbone_hidden_size=HIDDEN, **changes
    )
    torch.manual_seed(11)
    model: Any = Gemma4AssistantForCausalLM(config)
    randomize(model)
    model.to(torch.bfloat16)
    if config.use_ordered_embeddings:
        model.masked_embedding.token_ordering = torch.randperm(VOCAB)
    model.save_pretrained(folder)
