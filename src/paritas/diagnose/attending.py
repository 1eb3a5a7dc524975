"""What the reference's attention is called with, heard through transformers' own registry of attention functions."""

import importlib
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
_NAME = "paritas_capture"  # under which the attention function is registered as long as it is used


@dataclass(frozen=True)
class Attending:
    """One call of the attention function, exactly as transformers makes it.

    Attributes:
        query: ``[heads, tokens, head_dim]``, after norms and RoPE.
        key, value: ``[kv_heads, tokens seen, head_dim]``, those of the cache among them.
        mask: added to the scores, ``[tokens, tokens seen]``; None if there is none.
        scaling: of the scores; None where the function's own default is left.
        softcap: of the scores; None if there is none.
    """

    query: Array
    key: Array
    value: Array
    mask: Array | None
    scaling: float | None
    softcap: float | None


def joined(heads: Array) -> Array:
    """``[heads, tokens, width]`` as ``[tokens, features]``."""
    return heads.swapaxes(0, 1).reshape(heads.shape[1], -1)


@contextmanager
def attention_told(model: Any, tell: Callable[[Any, Attending], None]) -> Generator[None]:
    """Within, ``tell`` hears of every call of the class's own eager attention; nothing if it cannot be heard."""
    masking = importlib.import_module("transformers.masking_utils")
    modeling = importlib.import_module("transformers.modeling_utils")
    eager = getattr(sys.modules[type(model).__module__], "eager_attention_forward", None)
    if eager is None or model.config._attn_implementation != "eager":
        yield
        return

    def told(module: Any, query: Any, key: Any, value: Any, mask: Any, **given: Any) -> Any:
        own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", eager)
        tell(module, _attending(query, key, value, mask, given))
        return own(module, query, key, value, mask, **given)

    modeling.AttentionInterface.register(_NAME, told)
    masking.AttentionMaskInterface.register(_NAME, masking.eager_mask)
    try:
        model.set_attn_implementation(_NAME)
        yield
    finally:
        model.set_attn_implementation("eager")
        modeling.AttentionInterface._global_mapping.pop(_NAME)
        masking.AttentionMaskInterface._global_mapping.pop(_NAME)


def _attending(query: Any, key: Any, value: Any, mask: Any, given: Mapping[str, Any]) -> Attending:
    each = [tensor.detach()[0].numpy() for tensor in (query, key, value)]
    added = None if mask is None else mask.detach()[0, 0, :, : key.shape[2]].numpy()
    return Attending(each[0], each[1], each[2], added, given.get("scaling"), given.get("softcap"))
