"""The reference of a checkpoint with an adapter: PEFT's own merge into transformers' class, in fp32."""

import importlib
import warnings
from pathlib import Path
from typing import Any

from paritas.errors import Invalid, ParitasError


def merge_adapter(model: Any, folder: Path) -> Any:
    """transformers' ``model`` with the adapter merged into its weights by PEFT.

    Raises:
        ParitasError: ``verify-needs-peft``.
        Invalid: ``reference-unloadable``; ``reference-incomplete`` if PEFT does not find every weight in its place,
            since it would go on with those that it draws.
    """
    peft = _require_peft()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = peft.PeftConfig.from_pretrained(str(folder))
            config.inference_mode = True
            wrapped = peft.PeftModel(model, config)
            found = wrapped.load_adapter(str(folder), "default", local_files_only=True)
            wrapped.set_adapter("default", inference_mode=True)
            merged = wrapped.merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError, OSError) as error:
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise Invalid(
            "reference-unloadable",
            f"PEFT cannot merge the adapter: {told[0][:200]}",
            place=folder.name,
            hint="Merge it with PEFT's merge_and_unload to see its own report.",
        ) from error
    if wrong := [*found.missing_keys, *found.unexpected_keys]:
        raise Invalid(
            "reference-incomplete",
            f"PEFT did not find {len(wrong)} of the adapter's weights in their place: {wrong[0]}",
            place=folder.name,
            hint="A reference with random weights proves nothing: fetch the adapter again.",
        )
    return merged


def _require_peft() -> Any:
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise ParitasError(
            "verify-needs-peft",
            f"the reference of a checkpoint with an adapter is PEFT's own merge: {error}",
            hint="Install it: pip install peft. Without a proof: --no-verify",
        ) from error
