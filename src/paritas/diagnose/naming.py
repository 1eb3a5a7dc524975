"""The reference's words for a region, and ONNX's."""

from collections.abc import Collection, Sequence

from paritas.audit.sites import NORMS, PROJECTIONS
from paritas.diagnose.capture import KEY, LOGITS, QUERY, Captured

_TELLING = (
    ("GroupQueryAttention", "Attention", "MultiHeadAttention", "PagedAttention"),
    ("Softmax",),
    ("RotaryEmbedding",),
    tuple(sorted(NORMS)),
    ("MoE", "QMoE", "Conv", "CausalConvWithState"),
    tuple(sorted(PROJECTIONS)),
    ("Gelu", "FastGelu", "QuickGelu", "BiasGelu", "Sigmoid", "Swish", "Silu", "Erf", "Relu", "Tanh"),
    ("ReduceMean", "Gather", "GatherBlockQuantized", "Mul", "Div", "Add"),
)


def named(point: str, captured: Captured, elsewhere: Collection[str] = (), unseen: Sequence[str] = ()) -> str:
    """The module that makes a tensor; where no module does, what its maker computes between its children.

    Args:
        point: of the tensor.
        captured: the reference's tensors.
        elsewhere: modules whose output is another value of the graph: what comes after it is named by who takes it.
        unseen: modules with weights whose own output is no value of the graph, and which lie before the tensor.
    """
    word = _named(point, captured, elsewhere)
    return unseen[-1] if unseen and "[residual" in word else word


def _named(point: str, captured: Captured, elsewhere: Collection[str]) -> str:
    path, _, way = point.partition(":")
    if f":{way}" in (QUERY, KEY):
        return f"{path}[rotation of {'queries' if f':{way}' == QUERY else 'keys'}]"
    names = captured.prefill.names[captured.prefill.first[point]]
    made = [name.partition(":")[0] for name in names if name.endswith(":out")]
    if way == "in" and set(made) & set(elsewhere):
        return f"{path.rpartition('.')[0]}[to {path.rpartition('.')[2]}]"
    for maker in made:
        if not any(other.startswith(f"{maker}.") for other in captured.modules):
            return maker
    if LOGITS in names:
        return "[logits]"
    if made:
        return f"{made[0]}[residual]" if captured.layer_of(made[0]) is not None else made[0]
    return _between(names[0].partition(":")[0], captured)


def _between(taker: str, captured: Captured) -> str:
    parent, _, child = taker.rpartition(".")
    if parent in captured.prefill.attention:
        return f"{parent}[attention]"
    if parent.rpartition(".")[0] == captured.layers:
        return f"{parent}[residual to {child}]"
    if captured.layer_of(taker) is None:
        return f"{parent or taker}[to {child}]"
    return f"{parent}[activation]" if _activates(parent, captured) else f"{parent}[to {child}]"


def _activates(parent: str, captured: Captured) -> bool:
    return any(path.startswith(f"{parent}.act") for path in captured.modules)


def telling(operators: Sequence[str]) -> str:
    """The operator that says most of what a region computes; the first if none does."""
    for words in _TELLING:
        for word in words:
            if word in operators:
                return word
    return operators[0] if operators else "Identity"
