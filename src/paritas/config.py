"""Reads config.json. Every key is asked for, or is listed as without effect and why; any other key is an error."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from paritas.errors import ParitasError, Unsupported
from paritas.spec import Linear, Llama3, Rope

_LARGEST = 2**53  # what every reader of JSON holds exactly
_ORIGINAL = "original_max_position_embeddings"
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
        self._accounted: dict[str, str] = {}

    def optional(self, key: str) -> Any:
        """The value of ``key``; None if it is absent or null."""
        self._accounted[key] = "read"
        return self.values.get(key)

    def integer(self, key: str, default: int | None, most: int = _LARGEST) -> int:
        """A positive integer up to ``most``. Without a default (``None``) the key has to be there."""
        return self._integer(key, self._value(key, default), most)

    def heads(self, default: int, default_kv: int | None = None) -> tuple[int, int]:
        """Query heads and key-value heads; each of these serves equally many of those."""
        heads = self.integer("num_attention_heads", default)
        kv_heads = self.integer("num_key_value_heads", default_kv or heads)
        if heads % kv_heads:
            raise self._wrong("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads, which is {heads}")
        return heads, kv_heads

    def number(self, key: str, default: float | None) -> float:
        """A finite positive number."""
        return self._number(key, self._value(key, default))

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
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
        self._accounted[key] = reason

    def layer_kinds(self, depth: int, default: Sequence[str]) -> tuple[str, ...]:
        """``layer_types``, one word a layer, checked against ``num_hidden_layers``."""
        kinds = self.optional("layer_types")
        if kinds is None:
            return tuple(default)
        words = [str(kind) for kind in cast(list[Any], kinds)] if isinstance(kinds, list) else []
        if len(words) != depth or set(words) - {"full_attention", "sliding_attention"}:
            wanted = f"a list of {depth} words, full_attention or sliding_attention, one for each hidden layer"
            raise self._wrong("layer_types", kinds, wanted)
        return tuple(words)

    def rope(self, dim: int, default_theta: float, context: int) -> Rope:
        """The RoPE of a model whose layers share one.

        ``rope_parameters`` is transformers 5's spelling, ``rope_theta`` and ``rope_scaling`` are 4's. As transformers
        resolves it: ``rope_scaling`` before ``rope_parameters``, a theta inside either before one beside it.
        """
        parameters = self._object("rope_parameters")
        values = dict(self._object("rope_scaling") or parameters)
        values.setdefault("rope_theta", self.number("rope_theta", default_theta))
        return self._rope(values, dim, context)

    def ropes_by_kind(self, dim: int, default_thetas: Mapping[str, float], context: int) -> dict[str, Rope]:
        """A RoPE for each layer type: nested ``rope_parameters`` (transformers 5) or the flat keys of 4.

        In the flat spelling ``rope_scaling`` and ``rope_theta`` are the full-attention layers' alone; the sliding
        ones have ``rope_local_base_freq`` and no scaling.
        """
        nested: dict[str, dict[str, Any]] = {kind: {} for kind in default_thetas}
        for kind, values in self._object("rope_parameters").items():
            if kind not in nested or not isinstance(values, dict):
                raise self._wrong("rope_parameters", kind, f"one object for each of {', '.join(nested)}")
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
        flat = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
        for kind, values in nested.items():
            values.setdefault("rope_theta", self.number(flat[kind], default_thetas[kind]))
        return {kind: self._rope(values, dim, context) for kind, values in nested.items()}

    def finish(self, ignored: Sequence[str] = ()) -> dict[str, str]:
        """Account for every key; returns key -> why it has no effect, of those that were not read.

        Args:
            ignored: keys that the person running the export declares without effect.

        Raises:
            ParitasError: ``config-key-unread``, with the keys that nobody accounts for; ``config-key-read``.
        """
        if effective := [key for key in ignored if key in self.values and self._accounted.get(key) == "read"]:
            raise ParitasError(
                "config-key-read",
                f"{effective[0]} is declared without effect (--ignore-key), but the export reads it",
                place=self._at(effective[0]),
                hint=f"Leave --ignore-key {effective[0]} out. A value is changed in the file alone.",
            )
        reasons = {
            **IGNORABLE,
            **self._accounted,
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

    def _rope(self, values: Mapping[str, Any], dim: int, context: int) -> Rope:
        kind = values.get("rope_type") or values.get("type") or "default"
        known = {"rope_theta", "rope_type", "type"}
        if kind == "default":
            scaling = None
        elif kind == "linear":
            known |= {"factor"}
            scaling = Linear(self._rope_number(values, "factor"))
        elif kind == "llama3":
            known |= {"factor", "low_freq_factor", "high_freq_factor", _ORIGINAL}
            scaling = Llama3(
                factor=self._rope_number(values, "factor"),
                low_freq_factor=self._rope_number(values, "low_freq_factor"),
                high_freq_factor=self._rope_number(values, "high_freq_factor"),
                original_context=self._integer(f"RoPE {_ORIGINAL}", values.get(_ORIGINAL) or context),
            )
        else:
            raise Unsupported(
                "rope-type-unsupported",
                f"rope_type {kind!r}; supported here: default, linear, llama3",
                place=self.place,
                hint="This RoPE scaling is not implemented. Nothing was written.",
            )
        if left := sorted(set(values) - known):
            raise ParitasError(
                "config-key-unread",
                f"nothing reads {', '.join(left)} of a RoPE of type {kind}",
                place=self.place,
                hint="A RoPE parameter that is not understood may change the computation.",
            )
        return Rope(theta=self._rope_number(values, "rope_theta"), dim=dim, scaling=scaling)

    def _rope_number(self, values: Mapping[str, Any], key: str) -> float:
        return self._number(f"RoPE {key}", values.get(key))

    def _integer(self, key: str, value: Any, most: int = _LARGEST) -> int:
        if not _is_number(value) or not 1 <= value <= most or value != int(value):
            limit = f" up to {most:,}" if _is_number(value) and value > most else ""
            raise self._wrong(key, value, f"a positive integer{limit}")
        return int(value)

    def _number(self, key: str, value: Any) -> float:
        if not _is_number(value) or not 0 < value <= sys.float_info.max:
            raise self._wrong(key, value, "a positive number")
        return float(value)

    def _object(self, key: str) -> Mapping[str, Any]:
        value = self.optional(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
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

    def _wrong(self, key: str, value: Any, wanted: str) -> ParitasError:
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
