"""Drafters that can be exported beside their targets, and whether a drafter belongs to a target.

Source: transformers models/gemma4_assistant/{configuration,modeling}_gemma4_assistant.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from paritas.config import Config
from paritas.errors import ParitasError, Unsupported
from paritas.families import gemma4_unified
from paritas.spec import Attention, Clusters, Decoder, Drafter, Layer

MODEL_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
RENAMES = (("masked_embedding.", "masked_embedding."),)
_KINDS = ("sliding_attention", "full_attention")
_NONE_OF = (
    "hidden_size_per_layer_input",
    "vocab_size_per_layer_input",
    "enable_moe_block",
    "use_double_wide_mlp",
)
_OF_ALL_PARTS = ("audio_token_id", "boa_token_id", "boi_token_id", "eoa_token_id", "eoi_token_id", "image_token_id")


def read_drafter(config: Config) -> Drafter:
    """The spec of a drafter's configuration.

    Raises:
        Unsupported: ``drafter-unsupported`` for another kind of model.
        ParitasError: a value that is wrong, or that nobody accounts for.
    """
    if (found := config.optional("model_type")) not in MODEL_TYPES:
        raise Unsupported(
            "drafter-unsupported",
            f"no drafter is made of a checkpoint of model_type {found!r}; supported: {', '.join(MODEL_TYPES)}",
            place=config.place,
            hint="A drafter is a model of its own kind, trained for its target. "
            "Without one, paritas generate drafts from the text itself.",
        )
    inner = config.optional("text_config")
    values = cast(Mapping[str, object], inner if isinstance(inner, dict) else {})
    decoder = _decoder(config, values)
    ordered = config.flag("use_ordered_embeddings", False)
    clusters = Clusters(config.integer("num_centroids", 2048), config.integer("centroid_intermediate_top_k", 32))
    if ordered and decoder.vocab % clusters.count:
        raise config.wrong("num_centroids", clusters.count, f"a divisor of vocab_size, which is {decoder.vocab}")
    borrowed = tuple(kind for kind in _KINDS if any(layer.kind == kind for layer in decoder.layers))
    hidden = config.integer("backbone_hidden_size", 1536)
    for key in (*_OF_ALL_PARTS, "video_token_id", "eos_token_id", "bos_token_id", "pad_token_id"):
        config.ignore(key, "a drafter is given no ids")
    config.finish()
    return Drafter(hidden, _borrowing(decoder, borrowed), borrowed, clusters if ordered else None)


def _decoder(config: Config, values: Mapping[str, object]) -> Decoder:
    """Its layers as if they owned their keys: transformers makes all of them shared, whatever else is said."""
    depth = values.get("num_hidden_layers")
    if values.get("num_kv_shared_layers") not in (None, 0, depth):
        raise config.wrong("text_config.num_kv_shared_layers", values.get("num_kv_shared_layers"), f"{depth}: all")
    tied = config.flag("tie_word_embeddings", True)
    text = Config({**values, "num_kv_shared_layers": 0, "tie_word_embeddings": tied}, f"{config.place}, text_config")
    for key in _NONE_OF:
        text.must_be(key, (None, False, 0), "a drafter has none")
    for key in ("num_experts", "top_k_experts", "moe_intermediate_size"):
        text.ignore(key, "a drafter has no experts")
    spec = gemma4_unified.decoder(text, context=131_072, window=512)
    text.finish()
    return replace(spec, softcap=None)  # its class applies none


def _borrowing(decoder: Decoder, borrowed: tuple[str, ...]) -> Decoder:
    def layer(own: Layer) -> Layer:
        reads = replace(own.attention, keys_of=borrowed.index(own.kind), v_norm=None, values_are_keys=False)
        return replace(own, mixer=reads)

    return replace(decoder, layers=tuple(map(layer, decoder.layers)))


def owners(drafter: Drafter, target: Decoder) -> dict[str, int]:
    """Kind of layer -> the target's layer whose keys and values the drafter reads: the last of it that has its own.

    Raises:
        ParitasError: ``drafter-mismatch`` if the two were not made for each other.
    """
    if drafter.target_hidden != target.hidden:
        raise _mismatch(f"it is made for a hidden size of {drafter.target_hidden}, the target has {target.hidden}")
    if drafter.decoder.vocab != target.vocab:
        raise _mismatch(f"it has a vocabulary of {drafter.decoder.vocab:,}, the target one of {target.vocab:,}")
    found: dict[str, int] = {}
    for index, layer in enumerate(target.layers):
        if isinstance(layer.mixer, Attention) and layer.mixer.keys_of is None:
            found[layer.kind] = index
    for place, kind in enumerate(drafter.borrowed):
        if kind not in found:
            raise _mismatch(f"it reads keys of a layer of {kind}; the target has none with its own")
        reader = next(x.attention for x in drafter.decoder.layers if x.attention.keys_of == place)
        owner = target.layers[found[kind]].attention
        if (reader.kv_heads, reader.head_dim) != (owner.kv_heads, owner.head_dim):
            raise _mismatch(
                f"it reads {reader.kv_heads} heads of {reader.head_dim} of {kind}; "
                f"the target has {owner.kv_heads} of {owner.head_dim}"
            )
    return {kind: found[kind] for kind in drafter.borrowed}


def _mismatch(fact: str) -> ParitasError:
    return ParitasError(
        "drafter-mismatch",
        f"the drafter does not belong to the target: {fact}",
        hint="Give the drafter that was trained for this very checkpoint.",
    )
