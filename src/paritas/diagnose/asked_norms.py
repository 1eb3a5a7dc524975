"""What a norm of the live reference does, seen by asking it: an offset, a mean taken away; and the other kind."""

from typing import Any

from paritas.verify.loading import require_torch

EPSILONS = ("eps", "variance_epsilon", "epsilon")


def offset(module: Any) -> float:
    """What a norm adds to its weight: 1, or nothing."""
    torch, _ = require_torch()
    weight = getattr(module, "weight", None)
    if weight is None or weight.ndim != 1:
        return 0.0
    given = torch.ones_like(weight.detach())
    given[::2] = -1  # no mean, so that a norm that subtracts it gives the same
    out = _normed(module, given)
    return 0.0 if out is None else float(torch.allclose(out / given, 1 + weight, rtol=1e-2, atol=1e-3))


def subtracts_mean(module: Any) -> bool:
    """Whether a norm takes the mean away first (LayerNorm), or not (RMSNorm)."""
    torch, _ = require_torch()
    weight = getattr(module, "weight", None)
    if weight is None or weight.ndim != 1:
        return False
    out = _normed(module, torch.ones_like(weight.detach()))
    return out is not None and bool(out.abs().max() < 1e-3)


def of_other_kind(module: Any, *, centred: bool) -> Any:
    """A norm with the weight, bias and epsilon of ``module`` that takes the mean away, or does not."""
    torch, _ = require_torch()
    added = offset(module)
    epsilon = next(getattr(module, name) for name in EPSILONS if hasattr(module, name))

    class Norm(torch.nn.Module):
        def forward(self, values: Any) -> Any:
            given = values - values.mean(-1, keepdim=True) if centred else values
            normed = given * torch.rsqrt(given.pow(2).mean(-1, keepdim=True) + epsilon) * (added + module.weight)
            bias = getattr(module, "bias", None)
            return normed if bias is None else normed + bias

    return Norm()


def _normed(module: Any, given: Any) -> Any | None:
    """What a norm makes of a vector, its bias taken off; None if it is a norm of something else."""
    torch, _ = require_torch()
    bias = getattr(module, "bias", None)
    try:
        with torch.inference_mode():
            out = module(given[None, None])[0, 0]
    except (TypeError, ValueError, RuntimeError):
        return None
    return out if bias is None else out - bias
