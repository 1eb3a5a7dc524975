"""adapter_config.json of PEFT: every key is read, or is known to be without effect on what a merged model computes."""

import re
from collections.abc import Mapping
from typing import Any, cast

from paritas.errors import ParitasError, Unsupported

IGNORABLE: Mapping[str, str] = {
    "auto_mapping": "PEFT's class",
    "base_model_name_or_path": "the base is given by hand",
    "ensure_weight_tying": "training only: which tensors there are is seen in the file",
    "eva_config": "initial values of what was trained",
    "exclude_modules": "which tensors there are is seen in the file",
    "inference_mode": "training only",
    "layers_pattern": "which tensors there are is seen in the file",
    "layers_to_transform": "which tensors there are is seen in the file",
    "lora_dropout": "training only",
    "megatron_core": "how it was trained",
    "modules_to_save": "which tensors there are is seen in the file",
    "peft_version": "who wrote the file",
    "qalora_group_size": "only use_qalora computes with it, and that is refused",
    "revision": "of the base, which is given by hand",
    "runtime_config": "how PEFT computes",
    "target_modules": "which tensors there are is seen in the file",
    "task_type": "PEFT's class",
    "bias": "the tensors of trained biases are in the file",
    "fan_in_fan_out": "a Linear, which every projection here is, has it false whatever is written",
}
_INITIAL = (None, True, False, "gaussian", "eva", "orthogonal")
"""``init_lora_weights`` that leave the base as it is; the others (PiSSA, OLoRA, ...) train what is left of it."""
_OFF: tuple[Any, ...] = (None, False, {}, [])
ADVICE = "Merge the adapter with PEFT (merge_and_unload), and export the merged checkpoint."
"""The next step for what is not merged here."""


class AdapterConfig:
    """What a LoRA adapter multiplies its product by.

    Args:
        values: of adapter_config.json.
        place: the file, for messages.

    Attributes:
        dora: whether each row gets a length of its own.

    Raises:
        ParitasError: ``adapter-value-wrong``, ``adapter-key-unread``.
        Unsupported: ``adapter-unsupported``: another method than LoRA, or one of its variants.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self._values, self._place = values, place
        if (kind := values.get("peft_type")) != "LORA":
            raise Unsupported(
                "adapter-unsupported", f"peft_type is {kind!r}; LORA is merged here", place=place, hint=ADVICE
            )
        initial = values.get("init_lora_weights", True)
        if initial not in _INITIAL:
            raise Unsupported(
                "adapter-unsupported",
                f"init_lora_weights is {initial!r}: the adapter belongs to what is left of the base beside it",
                place=place,
                hint=f"Save it as plain LoRA (path_initial_model_for_weight_conversion). {ADVICE}",
            )
        self.dora = self._flag("use_dora")
        self._rslora = self._flag("use_rslora")
        self._rank, self._alpha = (
            self._number("r", values.get("r", 8)),
            self._number("lora_alpha", values.get("lora_alpha", 8)),
        )
        self._ranks, self._alphas = self._pattern("rank_pattern"), self._pattern("alpha_pattern")
        self._account()

    def scale(self, module: str, rank: int) -> float:
        """alpha / r of a module, or alpha / sqrt(r) (rank-stabilised LoRA).

        Args:
            module: its name in the model.
            rank: rows of its A.
        """
        wanted = _of(self._ranks, module, self._rank)
        if rank != wanted:
            raise ParitasError(
                "adapter-value-wrong",
                f"the rank of {module} is {wanted:g} in the configuration, and its A has {rank} rows",
                place=self._place,
                hint="Fetch the adapter again: configuration and weights are of two adapters.",
            )
        return _of(self._alphas, module, self._alpha) / (rank**0.5 if self._rslora else rank)

    def _account(self) -> None:
        read = {"peft_type", "init_lora_weights", "use_dora", "use_rslora", "r", "lora_alpha"}
        read |= {"rank_pattern", "alpha_pattern", *IGNORABLE}
        if left := sorted(key for key, value in self._values.items() if key not in read and value not in _OFF):
            raise ParitasError(
                "adapter-key-unread",
                f"nothing reads {', '.join(f'{key} ({self._values[key]!r})' for key in left)}",
                place=self._place,
                hint=f"What is not understood may change the result. {ADVICE}",
            )

    def _flag(self, key: str) -> bool:
        value = self._values.get(key) or False
        return value if isinstance(value, bool) else self._wrong(key, value)

    def _pattern(self, key: str) -> dict[str, float]:
        values: object = self._values.get(key) or {}
        if not isinstance(values, dict):
            return self._wrong(key, values)
        return {name: self._number(key, value) for name, value in cast(dict[str, Any], values).items()}

    def _number(self, key: str, value: Any) -> float:
        right = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
        return value if right else self._wrong(key, value)

    def _wrong(self, key: str, value: Any) -> Any:
        raise ParitasError(
            "adapter-value-wrong", f"{key} is {value!r}", place=self._place, hint="Repair the file, or fetch it again."
        )


def _of(patterns: Mapping[str, float], module: str, default: float) -> float:
    """As PEFT's ``get_pattern_key``: the first pattern that the module's name ends in."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)
