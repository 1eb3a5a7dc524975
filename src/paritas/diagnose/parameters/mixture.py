"""Mixtures of experts: the router's rule, how experts combine their projections, what they hold, the shared one."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx

from paritas.audit.view import View
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Difference
from paritas.diagnose.edit import Edit, RefusedError
from paritas.diagnose.expert_weights import Rows, Stacked, stacked
from paritas.diagnose.extract import taken_by
from paritas.diagnose.mixture_regions import Read, Region, read, region
from paritas.diagnose.mixtures import Gating, Mixture, mixtures
from paritas.diagnose.routing import Rule, rule_of
from paritas.diagnose.subgraphs import op

_FUSED = ("MoE", "QMoE")
_INTEGERS = ("Unique", "Shape", "Size", "NonZero", "Equal", "ArgMax", "OneHot")
_CLOSE = 1e-4
_LAST_BITS = 2.0**-22


def mixture_differences(case: Case) -> Iterator[Difference]:
    """Of every mixture that the reference and the graph both have."""
    for mixture in mixtures(case):
        found = region(case, mixture)
        if found is None:
            continue
        holders = tuple(stacked(case, mixture, found))
        got = {key: values for holder in holders for key, values in holder.read(case).items()}
        wrong = {key: values for key, values in got.items() if not _same(values, mixture.held[key])}
        if wrong:
            yield _weights(case, mixture, holders, wrong)
        made = read(case, mixture, found, {**mixture.held, **got})
        if made is not None:
            yield from _gating(case, mixture, found, holders, made)
            yield from _routing(case, mixture, found, made)
            yield from _share(case, mixture, found, made)


def _same(got: Rows, wanted: Rows) -> bool:
    apart = np.abs(got.reshape(-1) - wanted.reshape(-1)).max()
    return bool(apart <= _LAST_BITS * np.abs(wanted).max())


# What experts hold.


def _weights(
    case: Case, mixture: Mixture, holders: Sequence[Stacked], wrong: Mapping[tuple[int, str], Rows]
) -> Difference:
    words = {key: _likeness(mixture, key, values) for key, values in wrong.items()}
    (expert, part), likeness = next(iter(words.items()))

    def repairs(edit: Edit) -> None:
        for holder in holders:
            if any(key[1] in holder.parts for key in wrong):
                holder.write(edit, mixture.held, f"{holder.name}: the checkpoint's experts")

    return Difference(
        parameter="expert-weights",
        where=f"{mixture.path}.experts",
        layer=mixture.layer,
        package=wrong,
        reference=mixture.held,
        fact=f"{part} of expert {expert} {likeness[1]}",
        breaks=lambda: mixture.computing(held=wrong),
        repairs=repairs,
        facts={"origin": "", "likeness": {word for word, _ in words.values()}},
    )


def _likeness(mixture: Mixture, key: tuple[int, str], values: Rows) -> tuple[str, str]:
    """What a wrong expert's matrix is: another expert's, the other projection's, zeros."""
    if not values.any():
        return "zero", "holds zeros"
    for (expert, part), own in mixture.held.items():
        if own.size == values.size and _same(values, own):
            word = "expert" if part == key[1] else "part"
            return word, f"holds {part} of expert {expert}"
    return "unknown", "is not the checkpoint's"


# How they combine their projections.


def _gating(
    case: Case, mixture: Mixture, found: Region, holders: Sequence[Stacked], made: Read
) -> Iterator[Difference]:
    got, wanted = made.gating, mixture.gating
    if got == wanted:
        return
    fused = next((node for node in found.nodes if node.op_type in _FUSED), None)

    def repairs(edit: Edit) -> None:
        if got.exchanged and not wanted.exchanged:
            _exchange(edit, holders)
        elif fused is not None:
            _set_gating(edit, fused, got, wanted)
        else:
            _set_numbers(edit, case.view, found.nodes, got, wanted)

    yield Difference(
        parameter="expert-gating",
        where=f"{mixture.path}.experts",
        layer=mixture.layer,
        package=got,
        reference=wanted,
        fact=f"experts combine as {got}; in the reference as {wanted}",
        breaks=lambda: mixture.computing(gating=got),
        repairs=repairs,
    )


def _exchange(edit: Edit, holders: Sequence[Stacked]) -> None:
    """Gate and up of all experts give each other their values."""
    for kind in ("weight", "bias"):
        pair = [holder for holder in holders if holder.parts in ((f"gate_proj.{kind}",), (f"up_proj.{kind}",))]
        if kind == "weight" and len(pair) != 2:
            raise RefusedError("gate and up of the experts are not two initializers")
        values = [edit.values(holder.name) for holder in pair]
        for holder, new in zip(pair, values[::-1], strict=True):
            edit.set_initializer(holder.name, new, "gate and up of the experts exchanged")


def _set_gating(edit: Edit, node: onnx.NodeProto, got: Gating, wanted: Gating) -> None:
    output = node.output[0]
    if "clamped" not in (got.activation, wanted.activation):
        edit.set_attribute(output, "activation_type", wanted.activation)
        return
    if got.activation != wanted.activation:
        raise RefusedError(f"{node.op_type} combines experts in another form")
    edit.set_attribute(output, "activation_alpha", wanted.alpha)
    edit.set_attribute(output, "swiglu_limit", wanted.limit)


def _set_numbers(edit: Edit, view: View, nodes: Sequence[onnx.NodeProto], got: Gating, wanted: Gating) -> None:
    """Constants with the wrong number, or its negative, get the right one."""
    if got.activation != wanted.activation:
        raise RefusedError("the experts' activation is another function")
    for one, other in ((got.alpha, wanted.alpha), (got.limit, wanted.limit)):
        if one == other:
            continue
        names = dict.fromkeys(name for node in nodes for name in taken_by(node))
        for name in names:
            number = view.number(name)
            if number is not None and math.isclose(abs(number), one, rel_tol=1e-6):
                stored = edit.values(name)
                value = math.copysign(other, number)
                edit.set_initializer(name, np.full_like(stored, value), f"{number:g} -> {value:g}")


# The router.


def _routing(case: Case, mixture: Mixture, found: Region, made: Read) -> Iterator[Difference]:
    scores = mixture.scores.astype(np.float64)
    own = rule_of(scores, mixture.weights.astype(np.float64))
    if own is None:
        return
    wanted, right = own[0], getattr(case.live.layers[mixture.layer], "residual_multiplier", 1.0) * own[1]
    told = rule_of(scores, made.weights.astype(np.float64), (wanted,))
    if told is None or (told[0] == wanted and math.isclose(told[1], right, rel_tol=_CLOSE)):
        return
    got, factor = told
    if got == wanted:
        yield _factor(case, mixture, found, factor, right)
        return
    yield Difference(
        parameter="expert-routing",
        where=f"{mixture.path}.gate",
        layer=mixture.layer,
        package=got,
        reference=wanted,
        fact=f"experts are weighted by {got}; in the reference by {wanted}",
        breaks=lambda: mixture.routing(got),
        repairs=lambda edit: _route(edit, case.view, found, got, wanted),
    )


def _factor(case: Case, mixture: Mixture, found: Region, got: float, wanted: float) -> Difference:
    def repairs(edit: Edit) -> None:
        for output in found.outputs:
            number = edit.add_initializer("factor of the experts", np.array(wanted / got, np.float32))
            scaled = edit.insert_node("Mul", [output, number])
            edit.redirect(output, scaled, f"Mul by {wanted / got:.9g} after the experts: inserted")

    return Difference(
        parameter="expert-factor",
        where=mixture.path,
        layer=mixture.layer,
        package=got,
        reference=wanted,
        fact=f"what the experts give is multiplied by {got:.6g}, in the reference by {wanted:.6g}",
        breaks=lambda: case.live.changing(mixture.experts, lambda out: out * (got / wanted)),
        repairs=repairs if mixture.shared is None else None,
    )


def _route(edit: Edit, view: View, found: Region, got: Rule, wanted: Rule) -> None:
    fused = next((node for node in found.nodes if node.op_type in _FUSED), None)
    if fused is not None:
        if (got.scoring, wanted.scoring) != ("softmax", "softmax"):
            raise RefusedError(f"{fused.op_type} takes the softmax of its scores")
        edit.set_attribute(fused.output[0], "k", wanted.chosen)
        edit.set_attribute(fused.output[0], "normalize_routing_weights", int(wanted.normalized))
        return
    best = next((node for node in found.nodes if node.op_type == "TopK"), None)
    weights = _weights_of(view, found)
    if best is None or weights is None:
        raise RefusedError("the graph has no TopK of scores, or no weights of what it chose")
    scores = _scores_before(view, found, best)
    right, chosen = _written(edit, scores, wanted)
    edit.supersede(best.output[1], chosen, f"experts of {best.output[1]}: {wanted.chosen} of the best scores")
    edit.supersede(weights, right, f"weights of experts {weights}: {wanted}")


def _weights_of(view: View, found: Region) -> str | None:
    """The value that hangs on scores alone, holds numbers, and meets what does not."""
    mine, integers = {found.scores}, set[str]()
    frontier: dict[str, None] = {}
    for node in found.nodes:
        taken = [name for name in taken_by(node) if name not in view.tensors and view.number(name) is None]
        if taken and all(name in mine for name in taken):
            mine.update(node.output)
            is_whole = node.op_type in _INTEGERS or all(name in integers for name in taken)
            integers.update(node.output if is_whole else node.output[1:] if node.op_type == "TopK" else ())
        else:
            frontier |= dict.fromkeys(name for name in taken if name in mine - integers - {found.scores})
    return next(iter(frontier)) if len(frontier) == 1 else None


def _scores_before(view: View, found: Region, best: onnx.NodeProto) -> str:
    """The scores as rows ``[tokens, experts]``, before anything is done to them."""
    name = best.input[0]
    while (node := view.maker.get(name)) is not None and node.op_type not in ("Reshape", "Flatten", "Squeeze"):
        if name == found.scores:
            break
        name = node.input[0]
    return name


def _written(edit: Edit, scores: str, rule: Rule) -> tuple[str, str]:
    """Weights and numbers of the chosen experts, ``[tokens, chosen]`` both."""
    size = edit.add_initializer("experts a token", np.array([rule.chosen], np.int64))
    values = {"softmax": lambda: op(edit, "Softmax", scores, axis=-1), "sigmoid": lambda: op(edit, "Sigmoid", scores)}
    scored = values[rule.scoring]() if rule.scoring in values else scores
    best = edit.insert_node("TopK", [scores, size], outputs=2, attributes={"axis": -1})
    chosen = next(iter(edit.node(best).output[1:]))
    weights = op(edit, "GatherElements", scored, chosen, axis=-1)
    if rule.normalized:
        axis = edit.add_initializer("axis of experts", np.array([-1], np.int64))
        weights = op(edit, "Div", weights, op(edit, "ReduceSum", weights, axis, keepdims=1))
    return weights, chosen


# The shared expert.


def _share(case: Case, mixture: Mixture, found: Region, made: Read) -> Iterator[Difference]:
    if mixture.shared is None or made.share is None:
        return
    before = mixture.shared[1].astype(np.float64)
    wanted = 1 / (1 + np.exp(-before))
    if np.abs(made.share - wanted).max() <= _CLOSE * max(1.0, float(np.abs(made.share).max())):
        return
    known = {"the number itself, without the sigmoid": before, "1": np.ones_like(before)}
    close = {word: float(np.abs(values - made.share).max()) for word, values in known.items()}
    word = min(close, key=lambda each: close[each])
    if close[word] > _CLOSE * max(1.0, float(np.abs(before).max())):
        return
    is_raw = not word.startswith("1")
    parent = mixture.parent

    def times(module: object, args: tuple[object, ...], out: object) -> object:
        number = parent.shared_expert_gate(args[0])
        return out * ((number if is_raw else 1) / number.sigmoid())  # type: ignore[operator]

    def repairs(edit: Edit) -> None:
        if is_raw:
            number = _output(case, f"{mixture.path}.shared_expert_gate.weight")
            edit.redirect(number, op(edit, "Sigmoid", number), f"Sigmoid after {number}: inserted")
        else:
            _gate_shared(edit, case, mixture, found)

    yield Difference(
        parameter="expert-shared",
        where=f"{mixture.path}.shared_expert_gate",
        layer=mixture.layer,
        package=word,
        reference="sigmoid",
        fact=f"the shared expert is multiplied by {word}; in the reference by the sigmoid of its gate",
        breaks=lambda: case.live.calling(parent.shared_expert, times),
        repairs=repairs,
    )


def _gate_shared(edit: Edit, case: Case, mixture: Mixture, found: Region) -> None:
    """Multiply what the shared expert gives by the sigmoid of the number that its gate makes of what it takes."""
    given, name = _output(case, f"{mixture.path}.shared_expert.down_proj.weight"), "shared_expert_gate.weight"
    source = case.identity.sources[f"{mixture.path}.{name}"]
    weight = edit.add_initializer(name, np.asarray(source.values, np.float32).reshape(-1, 1))
    number = op(edit, "Sigmoid", op(edit, "MatMul", found.x, weight))
    edit.redirect(given, op(edit, "Mul", given, number), f"gate of the shared expert after {given}: inserted")


def _output(case: Case, tensor: str) -> str:
    """What the graph computes with a tensor.

    Raises:
        RefusedError: it has none.
    """
    slot = next((each for each in case.slots if each.tensor == tensor), None)
    if slot is None:
        raise RefusedError(f"the graph does not compute with {tensor}")
    return slot.use.node.output[0]
