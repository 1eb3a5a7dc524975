"""tokenizer.json from a GGUF's vocabulary: byte-level BPE (``gpt2``) and SentencePiece BPE (``llama``).

A GGUF names the rule that splits text before BPE instead of carrying it. Only rules that were compared with the original
tokenizers, id for id, are in the table; an unknown name is refused, because a wrong rule gives plausible wrong ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from paritas.errors import ParitasError, Unsupported

if TYPE_CHECKING:
    from paritas.checkpoint.gguf_tokenizer import Vocabulary
