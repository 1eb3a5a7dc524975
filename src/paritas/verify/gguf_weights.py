"""transformers' model of a GGUF file: the weights by transformers' own reader, into the class that the file describes.

``from_pretrained(gguf_file=...)`` would do it in one call, but its configuration leaves out what changes the numbers:
transformers 5.24 reads neither ``rope_freqs`` (Llama 3.x), nor RoPE scaling (Gemma 3 4B and up), nor biases, and goes
on without them. So the configuration is the checkpoint's, in transformers' words, and so are tensors that its reader
passes over; every other tensor is transformers' own reading of the file, independent of ours.
"""

import functools
import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from paritas.checkpoint import Checkpoint


def gguf_model(checkpoint: Checkpoint, torch: Any, transformers: Any) -> tuple[Any, dict[str, Any]]:
    """The model in fp32 with eager attention, and what from_pretrained would call its loading info."""
    config = transformers.AutoConfig.for_model(**checkpoint.config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
        )
    reader = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    with _named_once():
        read = reader.load_gguf_checkpoint(str(checkpoint.path), return_tensors=True, model_to_load=model)["tensors"]
    tensors = {
        name: read[name] if name in read else torch.from_numpy(tensor.read())
        for name, tensor in checkpoint.tensors.items()
    }
    filled = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
    )
    result = filled.load_state_dict(tensors, strict=False)
    tied = set(getattr(filled, "_tied_weights_keys", None) or ()) if config.tie_word_embeddings else set[str]()
    return filled, {
        "missing_keys": sorted(set(result.missing_keys) - tied),
        "unexpected_keys": sorted({*result.unexpected_keys, *(set(read) - set(tensors))}),
        "mismatched_keys": [],
        "error_msgs": [],
    }


@contextmanager
def _named_once() -> Generator[None]:
    """Within, gguf's table of names is made once. transformers asks for it once a tensor, which is half of its time."""
    gguf = importlib.import_module("gguf")
    original = gguf.get_tensor_name_map
    gguf.get_tensor_name_map = functools.cache(original)
    try:
        yield
    finally:
        gguf.get_tensor_name_map = original
