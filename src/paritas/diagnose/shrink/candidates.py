"""config.json of a smaller model: what the sizes say, and whatever hangs on them."""

from collections.abc import Mapping, Sequence
from typing import Any

from paritas.diagnose.shrink.sizes import EXPERTS, INDICES, Source, width_keys

SHORTEST_WINDOW, SHORTEST_ORIGINAL = 4, 32
"""Tokens. Below the latter, RoPE scaling has no dimension left that it does not scale."""


def smaller(source: Source, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """config.json with other sizes, in the source's own spelling.

    Args:
        source: the model that is made smaller.
        sizes: name of a size, as in :func:`paritas.diagnose.shrink.sizes.ladders` -> its value; the others stay.
    """
    raw = dict(source.raw)
    if "layers" in sizes:
        raw |= _layers(source, sizes["layers"])
    heads, groups = sizes.get("heads", (source.get("num_attention_heads"), source.get("num_key_value_heads")))
    width: int = sizes.get("head width", source.head_dim)
    raw |= _heads(source, heads, groups, width) | _of_some_layers(source, raw, heads, groups, width)
    hidden = sizes.get("hidden") if source.has_free_heads else heads * width
    if hidden is not None:
        raw[source.key("hidden_size")] = hidden
    if "intermediate" in sizes:
        raw |= _widths(source, sizes["intermediate"])
    if "experts" in sizes:
        raw |= _experts(source, sizes["experts"])
    if "vocabulary" in sizes:
        raw |= _vocabulary(source, sizes["vocabulary"])
    if "context" in sizes:
        raw |= _context(source, raw, sizes["context"])
    return _factors(raw, source, width)


def _layers(source: Source, kept: Sequence[int]) -> dict[str, Any]:
    changed: dict[str, Any] = {source.key("num_hidden_layers"): len(kept)}
    for key, values in source.by_layer.items():
        changed[key] = [values[layer] for layer in kept]
    if (listed := source.get(INDICES)) is not None:
        changed[INDICES] = [number for number, layer in enumerate(kept) if layer in listed]
    if source.sharing:
        first = source.get("num_hidden_layers") - source.sharing
        changed["num_kv_shared_layers"] = sum(layer >= first for layer in kept)
    if source.overrides:
        own = source.overrides
        changed["per_layer_config"] = {str(number): own[layer] for number, layer in enumerate(kept) if layer in own}
    return changed


def _heads(source: Source, heads: int, groups: int | None, width: int) -> dict[str, Any]:
    """Heads, groups and widths, and the scale if it is the width's."""
    changed: dict[str, Any] = {source.key("num_attention_heads"): heads}
    if groups is not None:
        changed[source.key("num_key_value_heads")] = groups
    if source.has_free_heads:
        changed["head_dim"] = width
    if (scalar := source.get("query_pre_attn_scalar")) is not None:
        changed["query_pre_attn_scalar"] = _in_proportion(scalar, width, source.head_dim)
    if (rotated := source.raw.get("rotary_dim")) is not None:
        changed["rotary_dim"] = _in_proportion(rotated, width, source.head_dim)
    return changed


def _of_some_layers(
    source: Source, raw: Mapping[str, Any], heads: int, groups: int | None, width: int
) -> dict[str, Any]:
    """Heads that single layers have, or one kind of layers: in proportion, and other groups where they were others."""

    def changed(key: str, value: Any) -> Any:
        if not isinstance(value, int):
            return value
        if key.endswith("head_dim"):
            return _in_proportion(value, width, source.head_dim)
        if not key.endswith("key_value_heads") or value == source.get("num_key_value_heads"):
            return groups if key.endswith("key_value_heads") else value
        return max((n for n in range(1, value + 1) if heads % n == 0 and n != groups), default=groups)

    own: dict[str, dict[str, Any]] = raw.get("per_layer_config") or {}
    found: dict[str, Any] = {
        key: changed(key, raw[key]) for key in ("global_head_dim", "num_global_key_value_heads") if key in raw
    }
    if own:
        layers = own.items()
        found["per_layer_config"] = {n: {key: changed(key, value) for key, value in of.items()} for n, of in layers}
    return found


def _in_proportion(value: float, new: int, old: int) -> float:
    return value if new == old else max(1, round(value * new / old))


def _widths(source: Source, width: int) -> dict[str, Any]:
    """Every width of an MLP, no two alike if they were not."""
    named = {key: source.get(key) for key in width_keys(source)}
    order = sorted(set(named.values()), reverse=True)
    return {source.key(key): min(own, width - 8 * order.index(own)) for key, own in named.items()}


def _experts(source: Source, number: int) -> dict[str, Any]:
    changed = {source.key(name): number for name in EXPERTS if isinstance(source.get(name), int)}
    for name in ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"):
        if isinstance(chosen := source.get(name), int):
            changed[source.key(name)] = min(chosen, max(1, number // 2))
    return changed


def _vocabulary(source: Source, size: int) -> dict[str, Any]:
    """The vocabulary; ids of special tokens are those of the small tokenizer."""
    changed: dict[str, Any] = {source.key("vocab_size"): size}
    if isinstance(rows := source.get("vocab_size_per_layer_input"), int):
        changed["vocab_size_per_layer_input"] = max(1, size - source.get("vocab_size") + rows)
    for number, key in enumerate(("pad_token_id", "eos_token_id", "bos_token_id")):
        if source.raw.get(key) is not None:
            changed[key] = number
    return changed


def _context(source: Source, raw: Mapping[str, Any], context: int) -> dict[str, Any]:
    """The context; windows and RoPE's original context keep their part of it."""
    own: int = source.get("max_position_embeddings")
    if context == own:
        return {}
    changed: dict[str, Any] = {source.key("max_position_embeddings"): context}
    for key in ("sliding_window", "attention_chunk_size"):
        if isinstance(window := source.get(key), int):
            changed[key] = context if window >= own else min(window, max(SHORTEST_WINDOW, context // 16))
    for key, rope in _ropes(raw).items():
        changed[key] = _rope(rope, context, own)
    if isinstance(original := source.raw.get("original_max_position_embeddings"), int):
        changed["original_max_position_embeddings"] = _original(original, context, own)
    return changed


def _rope(rope: Mapping[str, Any], context: int, own: int) -> dict[str, Any]:
    """One RoPE, or one for each kind of layer."""
    scaled = dict(rope)
    for key, value in rope.items():
        if isinstance(value, dict):
            scaled[key] = _rope(value, context, own)  # pyright: ignore[reportUnknownArgumentType]
        elif key == "original_max_position_embeddings":
            scaled[key] = _original(value, context, own)
    return scaled


def _original(original: int, context: int, own: int) -> int:
    if original >= own:
        return context
    return min(original, context // 2, max(SHORTEST_ORIGINAL, original * context // own))


def _ropes(raw: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """RoPE as the configuration spells it, of transformers 4 or 5."""
    return {key: raw[key] for key in ("rope_parameters", "rope_scaling") if isinstance(raw.get(key), dict)}


def _factors(raw: dict[str, Any], source: Source, width: int) -> dict[str, Any]:
    """LongRoPE's factors, as many as half the rotated part of a head has numbers."""
    number = int(width * source.rotated) // 2
    for key, rope in _ropes(raw).items():
        raw[key] = {name: _thinned(value, number) for name, value in rope.items()}
    return raw


def _thinned(value: Any, number: int) -> Any:
    if not isinstance(value, list):
        return value
    values: list[Any] = [*value]
    return [values[each * len(values) // number] for each in range(number)] if len(values) > number else values
