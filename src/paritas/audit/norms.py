"""Norms of a graph, fused or written out: whose weight they have, their epsilon, whether they subtract the mean."""

import math
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from paritas.audit.finding import Finding, layer_of, layers
from paritas.audit.identity import Provenance
from paritas.audit.sites import NORMS
from paritas.audit.told import UNKNOWN, Told, Unknown
from paritas.audit.view import PASSES, View, attributes, operand
from paritas.spec import QkNorm

_CLOSE = 1e-5  # relative; an epsilon is an fp32 number
_CLOSE_IN = {"fp16": 0.06, "bf16": 2**-8}  # 1e-6 has 4 bits in fp16
_HEADS = re.compile(r"[./]([qk]|query|key)_?(layer_?)?norm", re.IGNORECASE)
_INNER = re.compile(r"attn|attention[./]|mixer|conv|[./]([qkv]|query|key|value)_?(layer_?)?norm", re.IGNORECASE)
_CENTRED = frozenset({"LayerNormalization", "SkipLayerNormalization"})
_HALVES = frozenset({"Mul", "Div", "Cast", "Reshape", "Identity", "Unsqueeze", "Squeeze"})
_ROOTS = frozenset({"Sqrt", "Rsqrt", "Reciprocal", "Pow", *_HALVES})
_MEANS = frozenset({"ReduceMean", "ReduceSum"})
_NEAR = 24  # values between a weight and the epsilon of its norm


@dataclass(frozen=True)
class NormSite:
    """One norm.

    Attributes:
        tensor: the checkpoint's weight; of a norm without one, the node's name.
        eps: what is added to the mean of squares.
        centred: the mean is subtracted.
    """

    tensor: str
    eps: float
    centred: bool


def norm_sites(view: View, made: Mapping[str, Provenance]) -> Iterator[NormSite]:
    """Every norm of the graph: fused ones, those inside of attention operators, and those written out."""
    for node in view.nodes:
        if node.op_type in NORMS:
            yield _fused(view, made, node)
        elif node.op_type == "GroupQueryAttention" and len(node.input) > 15:
            yield from _inside(made, node)
        elif node.op_type == "Mul" and (found := _written(view, made, node)):
            yield found


def _fused(view: View, made: Mapping[str, Provenance], node: onnx.NodeProto) -> NormSite:
    names = [name for each in node.input[1:] if (name := _weight(view, made, each))]
    eps = attributes(node).get("epsilon", 1e-5)
    tensor = made[names[0]].tensors[0] if names else node.name or node.output[0]
    return NormSite(tensor, eps, node.op_type in _CENTRED)


def _inside(made: Mapping[str, Provenance], node: onnx.NodeProto) -> Iterator[NormSite]:
    values = attributes(node)
    for name, key in ((node.input[14], "q_norm_epsilon"), (node.input[15], "k_norm_epsilon")):
        if name in made:
            eps = values.get(key) or values.get("qk_norm_epsilon", 1e-6)
            yield NormSite(made[name].tensors[0], eps, False)


def _weight(view: View, made: Mapping[str, Provenance], name: str) -> str | None:
    """The vector of a known origin behind a value, also where the graph adds 1 to it."""
    for _ in range(4):
        if name in made and len([n for n in view.tensors[name].shape if n != 1]) == 1:
            return name
        node = view.maker.get(name)
        if node is None:
            return None
        if node.op_type == "Add" and (given := operand(view, node)):
            name = given[0]
        elif node.op_type in PASSES:
            name = node.input[0]
        else:
            return None
    return None


def _written(view: View, made: Mapping[str, Provenance], node: onnx.NodeProto) -> NormSite | None:
    """A product of a norm's weight and of what a mean of squares divides."""
    for one, other in ((0, 1), (1, 0)):
        weight = _weight(view, made, node.input[one])
        if weight is None or not made[weight].tensors[0].endswith("weight"):
            continue
        if (found := _mean(view, node.input[other])) is not None:
            eps, centred = found
            return NormSite(made[weight].tensors[0], eps, centred)
    return None


def _mean(view: View, name: str) -> tuple[float, bool] | None:
    """Epsilon and whether values are centred, of the root of a mean of squares near a value."""
    waiting, seen = deque([name]), set[str]()
    while waiting and len(seen) < _NEAR:
        name = waiting.popleft()
        node = view.maker.get(name)
        if name in seen or node is None:
            continue
        seen.add(name)
        if node.op_type == "Add" and (given := operand(view, node)):
            mean = _through(view, given[0])
            if mean is not None and mean.op_type in _MEANS:
                return given[1], _is_centred(view, mean)
        elif node.op_type in _ROOTS:
            waiting.extend(each for each in node.input if each)
    return None


def _through(view: View, name: str) -> onnx.NodeProto | None:
    node = view.maker.get(name)
    while node is not None and node.op_type in PASSES:
        node = view.maker.get(node.input[0])
    return node


def _is_centred(view: View, mean: onnx.NodeProto) -> bool:
    """Whether what is squared has had a mean subtracted from it."""
    node = _through(view, mean.input[0])
    if node is None or node.op_type not in ("Pow", "Mul"):
        return False
    inner = _through(view, node.input[0])
    if inner is None or inner.op_type != "Sub":
        return False
    taken = _through(view, inner.input[1])
    return taken is not None and taken.op_type in _MEANS


def norm_findings(
    found: Sequence[NormSite], made: Mapping[str, Provenance], told: Told, dtype: str
) -> Iterator[Finding]:
    """Epsilons that are not the checkpoint's, norms of another kind, and those that could not be read."""
    yield from _epsilons(found, told, _CLOSE_IN.get(dtype, _CLOSE))
    wrong = [site for site in found if not isinstance(told.centred, Unknown) and not _INNER.search(site.tensor)]
    wrong = [site for site in wrong if site.centred != told.centred]
    if wrong:
        kinds = ("do not subtract the mean (RMSNorm)", "subtract the mean (LayerNorm)")
        does = wrong[0].centred
        yield Finding(
            "norm-kind-wrong",
            "error",
            _where([site.tensor for site in wrong]),
            f"{len(wrong)} norms {kinds[does]}, {told.by} says that they {kinds[not does]}",
            "Write RMSNormalization or SimplifiedLayerNormalization." if does else "Write LayerNormalization.",
        )
    read = {site.tensor for site in found}
    held = {tensor for record in made.values() for tensor in record.tensors if tensor.endswith("norm.weight")}
    if unread := sorted(held - read):
        fact = f"the epsilon of {len(unread)} norms could not be read off the graph"
        yield Finding("norm-not-audited", "note", _where(unread), fact, "paritas verify compares what they compute.")


def _epsilons(found: Sequence[NormSite], told: Told, close: float) -> Iterator[Finding]:
    wrong: dict[tuple[float, float], list[str]] = defaultdict(list)
    for site in found:
        wanted = _epsilon(site.tensor, told)
        if isinstance(wanted, Unknown) or math.isclose(site.eps, wanted, rel_tol=close):
            continue
        wrong[float(f"{site.eps:.6g}"), wanted].append(site.tensor)
    for (got, wanted), tensors in wrong.items():
        yield Finding(
            "norm-epsilon-wrong",
            "error",
            _where(tensors),
            f"{len(tensors)} norms have epsilon {got:.6g}, {told.by} says {wanted:.6g}",
            f"Set epsilon to {wanted:g}.",
        )


def _epsilon(tensor: str, told: Told) -> float | Unknown:
    layer = layer_of(tensor)
    if layer is None or layer >= len(told.layers):  # some count the final norm as one more layer
        return told.eps
    known = told.layer(layer)
    if not _INNER.search(tensor):
        return known.eps
    return known.qk_norm.eps if isinstance(known.qk_norm, QkNorm) and _HEADS.search(tensor) else UNKNOWN


def _where(tensors: Sequence[str]) -> str:
    numbers = [n for tensor in tensors if (n := layer_of(tensor)) is not None]
    others = [tensor for tensor in tensors if layer_of(tensor) is None]
    return "; ".join([*([layers(numbers)] if numbers else []), *dict.fromkeys(others)])
