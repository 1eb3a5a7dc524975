"""What a norm of the live reference does, seen by asking it: a mean taken away, an epsilon; and the other kind."""

from typing import Any

from paritas.verify.loading import require_torch
from paritas.verify.offsets import normed, offset

EPSILONS = ("eps", "variance_epsilon", "epsilon")
_SMALL = 1e-4  # its square is well below any epsilon


def subtracts_mean(module: Any, width: int) -> bool:
    """Whether a norm of vectors of ``width`` takes the mean away first (LayerNorm), or not (RMSNorm)."""
    torch, _ = require_torch()
    out = normed(module, torch.ones(width))
    return out is not None and bool(out.abs().max() < 1e-3)


def epsilon_of(module: Any, width: int) -> float | None:
    """What a norm adds below its root: its own number, else what it does to a vector that is smaller than that."""
    named = [getattr(module, name, None) for name in EPSILONS]
    told = next((each for each in named if isinstance(each, float)), None)
    if told is not None or hasattr(module, "weight"):
        return told
    torch, _ = require_torch()
    given = torch.full((width,), _SMALL)
    given[::2] = -_SMALL
    out = normed(module, given)
    return None if out is None else float(f"{float((given[0] / out[0]).double() ** 2) - _SMALL**2:.3g}")


def like(module: Any, width: int, *, centred: bool | None = None, epsilon: float | None = None) -> Any:
    """A norm with the weight and bias of ``module`` that takes the mean away or not, with an epsilon of ours or its."""
    torch, _ = require_torch()
    added = offset(module)
    centred = subtracts_mean(module, width) if centred is None else centred
    epsilon = (epsilon_of(module, width) or 0.0) if epsilon is None else epsilon

    class Norm(torch.nn.Module):
        weight, bias, eps = getattr(module, "weight", None), getattr(module, "bias", None), epsilon

        def forward(self, values: Any) -> Any:
            given = values - values.mean(-1, keepdim=True) if centred else values
            normed = given * torch.rsqrt(given.pow(2).mean(-1, keepdim=True) + self.eps)
            normed = normed if self.weight is None else normed * (added + self.weight)
            return normed if self.bias is None else normed + self.bias

    return Norm()
