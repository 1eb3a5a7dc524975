"""What a norm of the reference adds to its weight, seen by asking it, not by the name of its class."""

from typing import Any

from paritas.verify.loading import require_torch


def offset(module: Any) -> float:
    """1 for a norm that multiplies by ``1 + weight``, else 0; 0 too for a module that is no norm of vectors."""
    torch, _ = require_torch()
    weight = getattr(module, "weight", None)
    if weight is None or weight.ndim != 1:
        return 0.0
    given = torch.ones_like(weight.detach())
    given[::2] = -1  # no mean, so that a norm that subtracts it gives the same
    out = normed(module, given)
    return 0.0 if out is None else float(torch.allclose(out / given, 1 + weight, rtol=1e-2, atol=1e-3))


def normed(module: Any, given: Any) -> Any | None:
    """What a norm makes of a vector [width], its bias taken off; None if it is a norm of something else."""
    torch, _ = require_torch()
    bias = getattr(module, "bias", None)
    try:
        with torch.inference_mode():
            out = module(given[None, None])[0, 0]
    except (TypeError, ValueError, RuntimeError):
        return None
    return out if bias is None else out - bias
