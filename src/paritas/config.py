"""Reads config.json. Every key is asked for, or is listed as without effect and why; any other key is an error."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from paritas.errors import ParitasError, Unsupported
from paritas.scalings import KINDS_OF_LAYERS, ORIGINAL, PARTIAL, SCALINGS, Reader
from paritas.spec import Activation, Pairing, Rope

_LARGEST = 2**53  # what every reader of JSON holds exactly
_FLAT_THETAS = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
_ACTIVATIONS: Mapping[str, Activation] = {
    **{activation.value: activation for activation in Activation},
    "swish": Activation.SILU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
}
IGNORABLE: Mapping[str, str] = {
    "_name_or_path": "where somebody loaded it from",
    "architectures": "the class; model_type says the same",
    "attention_dropout": "training only",
    "auto_map": "remote code, which is never run",
    "bos_token_id": "read for the runtime, not for the graph",
    "cache_implementation": "how transformers stores its cache",
    "chunk_size_feed_forward": "how transformers splits a batch",
    "dtype": "the stored dtype is read from the tensors",
    "eos_token_id": "read for the runtime, not for the graph",
    "id2label": "classification only",
    "initializer_range": "training only",
    "label2id": "classification only",
    "model_type": "chooses the family",
    "output_attentions": "what transformers returns",
    "output_hidden_states": "what transformers returns",
    "pad_token_id": "read for the runtime, not for the graph",
    "problem_type": "classification only",
    "return_dict": "what transformers returns",
    "torch_dtype": "the stored dtype is read from the tensors",
    "transformers_version": "who wrote the file",
    "unsloth_fixed": "who wrote the file",
    "unsloth_version": "who wrote the file",
    "use_cache": "the graph always has a cache",
}


class Config:
    """The values of one configuration object, with a memory of what was asked for.

    Args:
        values: as stored.
        place: the file, and the key inside it, for messages.
    """

    def __init__(self, values: Mapping[str, Any], place: str = "config.json") -> None:
        self.values = values
        self.place = place
        self.accounted: dict[str, str] = {}

    def optional(self, key: str) -> Any:
        """The value of ``key``; None if it is absent or null."""
        self.accounted[key] = "read"
        return self.values.get(key)

    def integer(self, key: str, default: int | None, most: int = _LARGEST) -> int:
        """A positive integer up to ``most``. Without a default (``None``) the key has to be there."""
        return self._integer(key, self._value(key, default), most)

    def count(self, key: str, default: int) -> int:
        """An integer from 0."""
        value = self._value(key, default)
        return 0 if value == 0 and type(value) is int else self._integer(key, value)

    def optional_integer(self, key: str, default: int | None) -> int | None:
        """A positive integer. An explicit null is an answer, None; an absent key is the default."""
        return None if self._is_none(key, default) else self.integer(key, default)

    def optional_number(self, key: str, default: float | None) -> float | None:
        """A finite positive number, or None as for :meth:`optional_integer`."""
        return None if self._is_none(key, default) else self.number(key, default)

    def _is_none(self, key: str, default: Any) -> bool:
        return self.optional(key) is None and (key in self.values or default is None)

    def heads(self, default: int, default_kv: int | None = None) -> tuple[int, int]:
        """Query heads and key-value heads (null: as many); each of these serves equally many of those."""
        heads = self.integer("num_attention_heads", default)
        if "num_key_value_heads" in self.values and self.values["num_key_value_heads"] is None:
            default_kv = heads
        kv_heads = self.integer("num_key_value_heads", default_kv or heads)
        if heads % kv_heads:
            raise self.wrong("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads, which is {heads}")
        return heads, kv_heads

    def experts(self, default: int, default_chosen: int) -> tuple[int, int]:
        """Experts, by either of transformers' words for their number, and how many of them each token gets."""
        words = [key for key in ("num_experts", "num_local_experts") if self.optional(key) is not None]
        counts = {key: self.count(key, default) for key in words}
        if len(set(counts.values())) > 1:
            raise self.wrong("num_local_experts", counts["num_local_experts"], f"num_experts, {counts['num_experts']}")
        count = next(iter(counts.values()), default)
        chosen = self.integer("num_experts_per_tok", default_chosen)
        if 0 < count < chosen:
            raise self.wrong("num_experts_per_tok", chosen, f"at most the number of experts, which is {count}")
        return count, chosen

    def number(self, key: str, default: float | None) -> float:
        """A finite positive number."""
        return self._number(key, self._value(key, default))

    def needed(self, key: str) -> float:
        """A finite positive number that has to be there: an absent one is refused as a wrong one."""
        return self._number(key, self.optional(key))

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def choice(self, key: str, default: str, allowed: Sequence[str]) -> str:
        """One word out of a list; another one is refused by name."""
        value = self._value(key, default)
        if value not in allowed:
            raise Unsupported(
                "config-value-unsupported",
                f"{key} is {value!r}; supported here: {', '.join(allowed)}",
                place=self._at(key),
                hint="This computation is not implemented. Nothing was written.",
            )
        return str(value)

    def activation(self, key: str, default: str) -> Activation:
        """An activation, by any of transformers' words for it."""
        return _ACTIVATIONS[self.choice(key, default, list(_ACTIVATIONS))]

    def must_be(self, key: str, allowed: Sequence[Any], reason: str) -> None:
        """Refuse every value of ``key`` outside ``allowed`` (absent and null count as None)."""
        value = self.optional(key)
        if value not in allowed:
            raise Unsupported(
                "config-value-unsupported",
                f"{key} is {value!r}: {reason}",
                place=self._at(key),
                hint="This computation is not implemented. Nothing was written.",
            )

    def ignore(self, key: str, reason: str) -> None:
        """``key`` has no effect in this family, for ``reason``."""
        self.accounted[key] = reason

    def layer_kinds(
        self, depth: int, default: Sequence[str], allowed: Sequence[str] = ("full_attention", "sliding_attention")
    ) -> tuple[str, ...]:
        """``layer_types``, one word a layer, checked against ``num_hidden_layers``."""
        kinds = self.optional("layer_types")
        if kinds is None:
            return tuple(default)
        words = [str(kind) for kind in cast(list[Any], kinds)] if isinstance(kinds, list) else []
        if len(words) != depth or set(words) - set(allowed):
            wanted = f"a list of {depth} words, {' or '.join(allowed)}, one for each hidden layer"
            raise self.wrong("layer_types", kinds, wanted)
        return tuple(words)

    def keys_of(self, kinds: Sequence[str], default: int) -> tuple[int | None, ...]:
        """For each layer the earlier one whose keys and values it takes; None where it has its own.

        ``num_kv_shared_layers`` last ones take those of the last other layer of their kind.
        """
        shared = self.count("num_kv_shared_layers", default)
        own = kinds[: max(len(kinds) - shared, 0)]
        if missing := sorted(set(kinds) - set(own)):
            wanted = f"so few that a layer of the kind {missing[0]} is left before them"
            raise self.wrong("num_kv_shared_layers", shared, wanted)
        last = {kind: index for index, kind in enumerate(own)}
        return tuple(None if index < len(own) else last[kind] for index, kind in enumerate(kinds))

    def rope(
        self,
        head_dim: int,
        default_theta: float,
        context: int,
        *,
        default_partial: float | None = None,
        original: int | None = None,
        pairing: Pairing = Pairing.HALVES,
        aliases: Mapping[str, str] | None = None,
        flat: tuple[str, str] = ("rope_theta", PARTIAL),
        default: Mapping[str, Any] | None = None,
    ) -> Rope:
        """The RoPE of a model whose layers share one.

        ``rope_parameters`` is transformers 5's spelling, ``rope_theta`` and ``rope_scaling`` are 4's. As transformers
        resolves it: ``rope_scaling`` before ``rope_parameters``, a theta inside either before one beside it.

        Args:
            head_dim: of queries and keys.
            default_theta: the class's.
            context: ``max_position_embeddings``.
            default_partial: the class's ``partial_rotary_factor``; None if its modeling code always turns whole heads.
            original: the class's own ``original_max_position_embeddings``, which goes before the RoPE's.
            pairing: the modeling code's.
            aliases: the class's old words for types.
            flat: the class's keys of theta and of the rotated part, outside of the two objects.
            default: the class's ``rope_parameters``, where there is neither object.
        """
        parameters = (default or {}) if self.optional("rope_parameters") is None else self._object("rope_parameters")
        values = dict(self._object("rope_scaling") or parameters)
        values.setdefault("rope_theta", self.number(flat[0], default_theta))
        if default_partial is not None:
            values.setdefault(PARTIAL, self.number(flat[1], default_partial))
            head_dim = int(head_dim * self._number(f"RoPE {PARTIAL}", values.pop(PARTIAL)))
        kind = values.get("rope_type") or values.get("type")
        if aliases is not None and isinstance(kind, str) and kind in aliases:
            kind = values["rope_type"] = aliases[kind]
        if original is not None and kind in ("llama3", "yarn", "longrope"):
            values[ORIGINAL] = original
        return self._rope(values, head_dim, context, pairing)

    def ropes_by_kind(
        self, dim: int, default_thetas: Mapping[str, float], context: int, flat: Mapping[str, str] = _FLAT_THETAS
    ) -> dict[str, Rope]:
        """A RoPE for each layer type: nested ``rope_parameters`` (transformers 5) or the flat keys of 4.

        In the flat spelling ``rope_scaling`` and ``rope_theta`` are the full-attention layers' alone; the sliding
        ones have no scaling, and a theta by the key in ``flat``, or the default one if that has no key for them.
        """
        nested: dict[str, dict[str, Any]] = {kind: {} for kind in default_thetas}
        given = self._object("rope_parameters")
        none: Mapping[str, Any] = {}
        one = none if any(isinstance(values, dict) for values in given.values()) else given
        for kind, values in (none if one else given).items():
            if kind not in nested or not isinstance(values, dict):
                raise self.wrong("rope_parameters", kind, f"one object for each of {', '.join(nested)}")
            nested[kind] = dict(cast(dict[str, Any], values))
        scaling = self._object("rope_scaling")
        if "type" in scaling and "rope_type" not in scaling:
            raise ParitasError(
                "config-rope-ambiguous",
                "rope_scaling has the old key 'type' and no 'rope_type': transformers 4 scales by it, 5 does not",
                place=self._at("rope_scaling"),
                hint="Write rope_type, with the value that the model was trained with.",
            )
        nested["full_attention"].update(scaling)
        if any(values.get("truncate") is False for values in nested.values()):
            raise ParitasError(
                "config-rope-ambiguous",
                "truncate is false in the RoPE of one layer type, where transformers does not look for it",
                place=self._at("rope_parameters"),
                hint="Leave truncate out, or set it to true, which is what transformers computes.",
            )
        for kind, values in nested.items():
            theta = self.number(flat[kind], default_thetas[kind]) if kind in flat else default_thetas[kind]
            values.setdefault("rope_theta", theta)
            if any(value != values.get(key, "default") for key, value in one.items()):
                raise ParitasError(
                    "config-rope-ambiguous",
                    f"rope_parameters is one object, which transformers passes over: {kind} has {values}",
                    place=self._at("rope_parameters"),
                    hint=f"Write an object for each of {', '.join(nested)}, with the values that it was trained with.",
                )
        return {kind: self._rope(values, dim, context) for kind, values in nested.items()}

    def ropes_of_kinds(
        self, dims: Mapping[str, int], context: int, default: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Rope]:
        """A RoPE for each layer type, of heads that differ between them: nested ``rope_parameters``, or the default.

        Args:
            dims: layer type -> head_dim.
            context: ``max_position_embeddings``.
            default: the class's ``rope_parameters``.
        """
        given = default if self.optional("rope_parameters") is None else self._object("rope_parameters")
        unknown = set(given) - set(default)
        if unknown or not all(isinstance(given.get(kind), dict) for kind in dims):
            raise self.wrong("rope_parameters", given, f"one object for each of {', '.join(dims)}")
        return {kind: self._rope(given[kind], dim, context, scalings=KINDS_OF_LAYERS) for kind, dim in dims.items()}

    def overrides(self, key: str, depth: int, allowed: Sequence[str]) -> dict[int, dict[str, int]] | None:
        """``per_layer_config``, transformers' spelling of what differs between layers: layer -> key -> integer.

        None if the configuration does not say; an explicit null says that nothing differs.
        """
        value = self.optional(key)
        if key not in self.values:
            return None
        if not isinstance(value, dict | None):
            raise self.wrong(key, value, "an object")
        found: dict[int, dict[str, int]] = {}
        for layer, changes in cast(dict[str, Any], value or {}).items():
            if not layer.isdecimal() or int(layer) >= depth or not isinstance(changes, dict):
                raise self.wrong(key, layer, f"an object for the number of a layer, under {depth}")
            if set(cast(dict[str, Any], changes)) - set(allowed):
                raise self.wrong(key, changes, f"{' and '.join(allowed)} of a layer")
            inner = Config(cast(dict[str, Any], changes), f"{self._at(key)}, layer {layer}")
            found[int(layer)] = {name: inner.integer(name, None) for name in inner.values}
        return found

    def finish(self, ignored: Sequence[str] = ()) -> dict[str, str]:
        """Account for every key; returns key -> why it has no effect, of those that were not read.

        Args:
            ignored: keys that the person running the export declares without effect.

        Raises:
            ParitasError: ``config-key-unread``, with the keys that nobody accounts for; ``config-key-read``.
        """
        if effective := [key for key in ignored if key in self.values and self.accounted.get(key) == "read"]:
            raise ParitasError(
                "config-key-read",
                f"{effective[0]} is declared without effect (--ignore-key), but the export reads it",
                place=self._at(effective[0]),
                hint=f"Leave --ignore-key {effective[0]} out. A value is changed in the file alone.",
            )
        reasons = {
            **IGNORABLE,
            **self.accounted,
            **dict.fromkeys(ignored, "declared without effect (--ignore-key)"),
        }
        left = sorted(set(self.values) - set(reasons))
        if left:
            raise ParitasError(
                "config-key-unread",
                f"nothing reads {', '.join(left)}",
                place=self.place,
                hint="A key that is not understood may change the computation. If you know that it does not: "
                + " ".join(f"--ignore-key {key}" for key in left),
            )
        return {key: reasons[key] for key in sorted(self.values) if reasons[key] != "read"}

    def _rope(
        self,
        values: Mapping[str, Any],
        dim: int,
        context: int,
        pairing: Pairing = Pairing.HALVES,
        scalings: Mapping[str, Reader] = SCALINGS,
    ) -> Rope:
        inner = Config(values, f"{self.place}, RoPE")
        words = (inner.optional("rope_type"), inner.optional("type"))
        kind = words[0] or words[1] or "default"
        if not isinstance(kind, str) or kind not in scalings:
            raise Unsupported(
                "rope-type-unsupported",
                f"rope_type {kind!r}; supported here: {', '.join(scalings)}",
                place=self.place,
                hint="This RoPE scaling is not implemented. Nothing was written.",
            )
        theta = inner.number("rope_theta", None)
        scaling = scalings[kind](inner, dim, context)
        if left := sorted(set(values) - set(inner.accounted)):
            raise ParitasError(
                "config-key-unread",
                f"nothing reads {', '.join(left)} of a RoPE of type {kind}",
                place=self.place,
                hint="A RoPE parameter that is not understood may change the computation.",
            )
        if dim < 2 or dim % 2:
            raise self.wrong("RoPE dim", dim, "an even number of a head's elements")
        return Rope(theta=theta, dim=dim, scaling=scaling, pairing=pairing)

    def marks(self, key: str, default: Sequence[bool]) -> tuple[bool, ...]:
        """A list of at least as many 0, 1, true or false as ``default`` has; as many are taken."""
        value = self._value(key, list(default))
        if (
            not isinstance(value, list)
            or len(cast(list[Any], value)) < len(default)
            or any(each not in (0, 1) for each in cast(list[Any], value))
        ):
            raise self.wrong(key, value, f"a list of {len(default)} times 0 or 1")
        return tuple(bool(each) for each in cast(list[Any], value)[: len(default)])

    def layer_numbers(self, key: str) -> frozenset[int] | None:
        """A list of layers, counted from 0; None if there is none."""
        value = self.optional(key)
        if value is None:
            return None
        numbers: list[Any] = cast(list[Any], value) if isinstance(value, list) else [None]
        if any(type(each) is not int or each < 0 for each in numbers):
            raise self.wrong(key, value, "a list of layer numbers")
        return frozenset(numbers)

    def integers(self, key: str, count: int, default: int) -> tuple[int, ...]:
        """A list of ``count`` positive integers, or one for all."""
        value = self._value(key, default)
        each = cast(list[Any], value) if isinstance(value, list) else [value] * count
        if len(each) != count:
            raise self.wrong(key, value, f"a positive integer, or a list of {count} of them")
        return tuple(self._integer(key, one) for one in each)

    def shares(self, key: str, default: Sequence[float]) -> tuple[float, ...]:
        """A list of as many numbers from 0 to below 1 as ``default`` has."""
        value = self._value(key, list(default))
        each = cast(list[Any], value) if isinstance(value, list) else []
        if len(each) != len(default) or not all(_is_number(one) and 0 <= one < 1 for one in each):
            raise self.wrong(key, value, f"a list of {len(default)} numbers from 0 to below 1")
        return tuple(map(float, each))

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of ``count`` positive numbers."""
        value = self._value(key, None)
        if not isinstance(value, list) or len(cast(list[Any], value)) != count:
            raise self.wrong(key, value, f"a list of {count} numbers")
        return tuple(self._number(key, each) for each in cast(list[Any], value))

    def _integer(self, key: str, value: Any, most: int = _LARGEST) -> int:
        if not _is_number(value) or not 1 <= value <= most or value != int(value):
            limit = f" up to {most:,}" if _is_number(value) and value > most else ""
            raise self.wrong(key, value, f"a positive integer{limit}")
        return int(value)

    def _number(self, key: str, value: Any) -> float:
        if not _is_number(value) or not 0 < value <= sys.float_info.max:
            raise self.wrong(key, value, "a positive number")
        return float(value)

    def _object(self, key: str) -> Mapping[str, Any]:
        value = self.optional(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        return cast(dict[str, Any], value)

    def _value(self, key: str, default: Any) -> Any:
        value = self.optional(key)
        if value is None and default is None:
            raise ParitasError(
                "config-key-missing",
                f"{key} is missing",
                place=self._at(key),
                hint="Is this a transformers checkpoint?",
            )
        return default if value is None else value

    def wrong(self, key: str, value: Any, wanted: str) -> ParitasError:
        """An error about the value of ``key``: what it is, and what it has to be."""
        return ParitasError(
            "config-value-wrong",
            f"{key} is {value!r}; it has to be {wanted}",
            place=self._at(key),
            hint="Repair the file.",
        )

    def _at(self, key: str) -> str:
        return f"{self.place}, key {key}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
