"""What a layout is: how one GGUF architecture names, orders and shifts what transformers stores plainly."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.checkpoint.gguf_file import GgufFile
from paritas.checkpoint.gguf_metadata import Metadata
from paritas.checkpoint.gguf_quants import widen
from paritas.errors import ParitasError, Unsupported


@dataclass(frozen=True)
class Layout:
    """One file, read as its architecture means it.

    Attributes:
        config: in the words of transformers' config.json.
        outer: GGUF name -> transformers' name, for tensors outside the blocks.
        block: the same inside a block: what follows ``blk.N.`` -> what follows ``model.layers.N.``.
        consumed: tensors that became values of the config.
        heads_of: inside a block: name -> number of heads, if the rows of each head are interleaved.
        shifted: whether the tensor with this transformers name is stored with 1 added to it.
    """

    config: dict[str, Any]
    outer: Mapping[str, str]
    block: Mapping[str, str]
    consumed: frozenset[str] = frozenset()
    heads_of: Mapping[str, int] | None = None
    shifted: Callable[[str], bool] = lambda name: False


OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def sizes(file: GgufFile, meta: Metadata, arch: str) -> dict[str, Any]:
    """The part of the configuration that all decoders share. Silent keys take llama.cpp's defaults."""
    heads = meta.need(f"{arch}.attention.head_count", int)
    hidden = meta.need(f"{arch}.embedding_length", int)
    if heads < 1:
        raise ParitasError("gguf-key-value", f"{arch}.attention.head_count is {heads}", place=str(meta.path))
    head_dim = meta.find(f"{arch}.attention.key_length", int) or hidden // heads
    _same(meta, f"{arch}.attention.value_length", head_dim, "values as wide as keys")
    _same(meta, f"{arch}.rope.dimension_count", head_dim, "RoPE on the whole head")
    return {
        "vocab_size": _vocabulary(file, meta, arch),
        "hidden_size": hidden,
        "intermediate_size": meta.need(f"{arch}.feed_forward_length", int),
        "num_hidden_layers": meta.need(f"{arch}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.find(f"{arch}.attention.head_count_kv", int) or heads,
        "head_dim": head_dim,
        "max_position_embeddings": meta.need(f"{arch}.context_length", int),
        "rms_norm_eps": meta.need(f"{arch}.attention.layer_norm_rms_epsilon", float),
        "tie_word_embeddings": "output.weight" not in file.entries,
    }


def linear_scaling(meta: Metadata, arch: str) -> dict[str, Any] | None:
    """``rope_scaling`` from the metadata: none, or linear. Everything else is refused."""
    kind = meta.find(f"{arch}.rope.scaling.type", str)
    factor = meta.find(f"{arch}.rope.scaling.factor", float)
    if kind in (None, "none"):
        if factor not in (None, 0.0, 1.0):
            raise Unsupported(
                "gguf-rope-scaling",
                f"{arch}.rope.scaling.factor is {factor}, but no type of scaling is named",
                place=str(meta.path),
            )
        return None
    if kind != "linear" or not factor:
        raise Unsupported(
            "gguf-rope-scaling",
            f"RoPE scaling of type {kind!r} with factor {factor}; linear scaling with a factor is read",
            place=str(meta.path),
            hint="Export from the original Hugging Face checkpoint.",
        )
    return {"rope_type": "linear", "factor": factor}


def interleaved_rows(rows: int, heads: int) -> NDArray[np.intp]:
    """Where each row of transformers' q or k lies in a GGUF of the ``llama`` architecture.

    llama.cpp rotates neighbouring pairs (2i, 2i + 1), transformers rotates halves (i, i + d/2): its converter
    stores row i of a head at 2i and row i + d/2 at 2i + 1.
    """
    half = rows // heads // 2
    head, side, pair = np.meshgrid(np.arange(heads), np.arange(2), np.arange(half), indexing="ij")
    return (head * 2 * half + 2 * pair + side).reshape(-1)


def small_tensor(file: GgufFile, name: str) -> NDArray[np.float32]:
    """A tensor that is read to configure the model."""
    entry = file.entries[name]
    return widen(file.bytes_of(entry), entry.type)


def _same(meta: Metadata, key: str, wanted: int, meaning: str) -> None:
    value = meta.find(key, int)
    if value is not None and value != wanted:
        raise Unsupported(
            "gguf-head-size",
            f"{key} is {value}, the head has {wanted}; only {meaning} is supported",
            place=str(meta.path),
        )


def _vocabulary(file: GgufFile, meta: Metadata, arch: str) -> int:
    if "token_embd.weight" not in file.entries:
        raise ParitasError("gguf-tensor-missing", "tensor 'token_embd.weight' is missing", place=str(meta.path))
    rows = file.entries["token_embd.weight"].shape[0]
    stated = meta.find(f"{arch}.vocab_size", int)
    if stated is not None and stated != rows:
        raise ParitasError(
            "gguf-vocabulary",
            f"{arch}.vocab_size is {stated}, but the embedding has {rows} rows",
            place=str(meta.path),
        )
    return rows
