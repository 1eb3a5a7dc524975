"""The sizes of a model that can be smaller, and what each of them may be, the smallest first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any

from paritas.checkpoint import Checkpoint
from paritas.errors import Unsupported
from paritas.verify.loading import first_line, require_torch

Sizes = Mapping[str, int]
"""Name of a size -> rung of its ladder."""

_BYTES = {"BF16": "bfloat16", "F16": "float16"}
_NO_LAYERS = ("architectures", "eos_token_id", "bos_token_id", "pad_token_id")
NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
INDICES = "mlp_only_layers"
"""A key that lists the numbers of layers, rather than a value for each."""


@dataclass(frozen=True)
class Source:
    """The model that is made smaller.

    Attributes:
        raw: config.json, in its own spelling; what it leaves out is not filled in.
        config: transformers' object of it, which has every default.
    """

    raw: Mapping[str, Any]
    config: Any

    def get(self, name: str) -> Any:
        """The value of a key in transformers' common spelling; None if this architecture does not have it."""
        return getattr(self.config, name, None)

    def key(self, name: str) -> str:
        """The architecture's own spelling of a key."""
        return dict(self.config.attribute_map).get(name, name)

    @property
    def by_layer(self) -> Mapping[str, list[Any]]:
        """Every key that has a value for each layer."""
        layers = self.get("num_hidden_layers")
        values: dict[str, Any] = self.config.to_dict()
        listed: dict[str, list[Any]] = {
            key: list(value)  # pyright: ignore[reportUnknownArgumentType]
            for key, value in values.items()
            if isinstance(value, list | tuple) and key not in _NO_LAYERS
        }
        return {key: value for key, value in listed.items() if len(value) == layers}

    @property
    def sharing(self) -> int:
        """How many layers, the last ones, take keys and values of others."""
        return int(self.get("num_kv_shared_layers") or 0)

    @property
    def overrides(self) -> Mapping[int, Mapping[str, Any]]:
        """What the configuration says of single layers, where it does (``per_layer_config``)."""
        given: dict[str, dict[str, Any]] = self.raw.get("per_layer_config") or {}
        return {int(layer): values for layer, values in given.items()}

    @property
    def has_free_heads(self) -> bool:
        """Whether the heads' width is given for itself, rather than by the hidden size."""
        return self.raw.get("head_dim") is not None

    @property
    def head_dim(self) -> int:
        """Of a query head."""
        return self.get("head_dim") or self.get("hidden_size") // self.get("num_attention_heads")

    @property
    def rotated(self) -> float:
        """The part of a head that RoPE turns."""
        ropes: dict[str, Any] = self.get("rope_parameters") or {}
        by_kind: list[dict[str, Any]] = [each for each in ropes.values() if isinstance(each, dict)]
        part = (by_kind or [ropes])[0].get("partial_rotary_factor") or self.get("partial_rotary_factor")
        return float(part or 1)


def open_source(checkpoint: Checkpoint) -> Source:
    """The configuration of a checkpoint, as transformers understands it.

    Raises:
        ParitasError: ``verify-needs-torch``.
        Unsupported: ``shrink-architecture-unknown`` if transformers does not know it, or it is no decoder.
    """
    _, transformers = require_torch()
    dropped = ("quantization_config", "auto_map", "transformers_version")
    raw = {key: value for key, value in checkpoint.config.items() if key not in dropped}
    if "dtype" not in raw and "torch_dtype" not in raw:
        dtypes = {tensor.dtype for tensor in checkpoint.tensors.values()}
        raw["dtype"] = next((_BYTES[dtype] for dtype in sorted(dtypes) if dtype in _BYTES), "float32")
    try:
        source = Source(raw, transformers.CONFIG_MAPPING[raw["model_type"]].from_dict(dict(raw)))
    except Exception as error:  # its classes check values each in its own way
        raise _unknown(f"transformers refuses its configuration: {first_line(error)}", checkpoint) from error
    source.config.allow_global_per_layer_attribute_access = True  # what differs between layers is changed with it
    if missing := [name for name in NEEDED if not isinstance(source.get(name), int)]:
        raise _unknown(f"its configuration has no {', '.join(missing)}", checkpoint)
    return source


def _unknown(fact: str, checkpoint: Checkpoint) -> Unsupported:
    return Unsupported(
        "shrink-architecture-unknown",
        fact,
        place=checkpoint.config_place,
        hint="Only decoders that transformers has a class for can be made smaller.",
    )


def kinds(source: Source) -> tuple[tuple[Any, ...], ...]:
    """What each layer is, as far as the configuration tells layers apart."""
    listed, depth = source.get(INDICES) or (), int(source.get("num_hidden_layers"))
    columns = list(source.by_layer.values())
    return tuple(
        (*(repr(column[layer]) for column in columns), layer in listed, layer >= depth - source.sharing)
        for layer in range(depth)
    )


def layer_choices(source: Source) -> tuple[tuple[int, ...], ...]:
    """One layer of each kind, then two, four, ..., all: numbers of the layers that stay."""
    found = kinds(source)
    choices: list[tuple[int, ...]] = []
    for most in (1, 2, 4, 8, 16, 32, 64, len(found)):
        seen: dict[tuple[Any, ...], int] = {}
        kept: list[int] = []
        for layer, kind in enumerate(found):
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] <= most:
                kept.append(layer)
        if tuple(kept) not in choices:
            choices.append(tuple(kept))
    return tuple(choices)


def ladders(source: Source) -> Mapping[str, Sequence[Any]]:
    """What each size may be, smallest first; the last is the model's own.

    No two dimensions are alike on the lowest rungs: two that are equal can be taken for each other.
    """
    heads = source.get("num_attention_heads")
    groups: int = source.get("num_key_value_heads") or heads
    width = 16 * -(-1 // source.rotated) if source.rotated < 1 else 16
    found: dict[str, Sequence[Any]] = {
        "layers": layer_choices(source),
        "heads": _heads(heads, groups),
        "head width": _rungs(lambda step: int(width) << step, source.head_dim),
        "hidden": _rungs(
            lambda step: (28, 72)[step] if step < 2 else (64 << (step - 1)) + 8, source.get("hidden_size")
        ),
        "intermediate": _rungs(
            lambda step: (40, 104)[step] if step < 2 else (96 << (step - 1)) + 8, _widest(source) or 1
        ),
        "experts": _rungs(lambda step: 4 << step, experts(source) or 1),
        "vocabulary": _rungs(
            lambda step: (269, 331)[step] if step < 2 else (320 << (step - 1)) + 11, source.get("vocab_size")
        ),
        "context": _rungs(lambda step: 64 << step, source.get("max_position_embeddings") or 1),
    }
    if not source.has_free_heads:
        del found["hidden"]
    if source.get("num_hidden_layers") == 1:
        del found["layers"]
    return {name: rungs for name, rungs in found.items() if len(rungs) > 1 or name == "layers"}


def _rungs(at: Callable[[int], int], own: int) -> tuple[int, ...]:
    return (*takewhile(lambda value: value < own, map(at, count())), own)


def _heads(heads: int, groups: int) -> tuple[tuple[int, int], ...]:
    """Heads and their groups: as many as heads, or one, or some, as the model has it."""
    steps: list[tuple[int, int]] = []
    for number in takewhile(lambda number: number < heads, (2, *(6 << step for step in range(10)))):
        shared = number if groups == heads else 1 if groups == 1 else max(1, number // 3)
        if shared <= groups:
            steps.append((number, shared))
    return (*steps, (heads, groups))


def _widest(source: Source) -> int | None:
    found = [value for key in width_keys(source) if isinstance(value := source.get(key), int)]
    return max(found, default=None)


def width_keys(source: Source) -> tuple[str, ...]:
    """Keys of the widths of MLPs, the plain one first."""
    names = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "n_inner")
    more = ("ffn_hidden_size", "block_ff_dim", "intermediate_size_mlp")
    return tuple(name for name in (*names, *more) if isinstance(source.get(name), int))


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def experts(source: Source) -> int | None:
    """How many there are; None if the architecture has none."""
    return next((value for name in EXPERTS if isinstance(value := source.get(name), int)), None)
