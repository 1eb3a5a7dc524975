"""Execution providers: which precisions each has kernels for, and how a runtime configuration asks for it."""

from collections.abc import Mapping
from typing import Any

from paritas.errors import Unsupported

HERE = "cpu"
"""The one whose packages are verified as they are shipped."""

_ALL = ("fp32", "fp16", "bf16", "int8", "int4")
PRECISIONS: Mapping[str, tuple[str, ...]] = {
    # fp16 is widened before every product: the speed of fp32. bf16 has no product at all. (ONNX Runtime 1.32)
    "cpu": ("fp32", "int8", "int4"),
    "cuda": _ALL,
    "webgpu": ("fp32", "fp16", "int8", "int4"),
    "dml": ("fp32", "fp16", "int4"),
}
"""Provider -> precisions."""

_WHY = {
    ("cpu", "fp16"): "it would widen every fp16 weight to fp32 before each product",
    ("cpu", "bf16"): "it multiplies no bf16",
}


def check(provider: str, dtype: str) -> None:
    """Refuse a precision that the provider has no kernels for, before any work.

    Raises:
        Unsupported: ``precision-unsupported``, with what to choose instead.
    """
    if dtype in PRECISIONS[provider]:
        return
    why = _WHY.get((provider, dtype), f"it has {', '.join(PRECISIONS[provider])}")
    others = [name for name, known in PRECISIONS.items() if dtype in known]
    smaller = "int8" if "int8" in PRECISIONS[provider] else "fp16"
    raise Unsupported(
        "precision-unsupported",
        f"ONNX Runtime's {provider} provider does not run {dtype} well or at all: {why}",
        hint=f"For {provider}: --dtype {smaller}. For a device that runs {dtype}: --ep {' or --ep '.join(others)}.",
    )


def options(provider: str) -> list[dict[str, Any]]:
    """``provider_options`` of genai_config.json."""
    return [] if provider == HERE else [{provider: {}}]


def verdict(provider: str) -> str | None:
    """Of the device itself, where no verification runs on it; None if it does."""
    return None if provider == HERE else "not tested"
