"""The MLP's activation as a function: the graph's evaluated on a line of numbers, and the reference's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paritas.audit.evaluate import evaluate
from paritas.audit.sites import PROJECTIONS
from paritas.audit.view import View
from paritas.diagnose.activations import applied, library, word_of
from paritas.diagnose.case import Case
from paritas.diagnose.difference import Break, Difference
from paritas.diagnose.edit import Edit
from paritas.diagnose.reading import activating, activation, activation_of
from paritas.diagnose.slots import Slot
from paritas.diagnose.xielu import Xielu, xielu_of
from paritas.verify.loading import require_torch

Line = NDArray[np.float32]
LINE: Line = np.linspace(-6, 6, 241, dtype=np.float32)
_HALF = 120
_CLOSE = 1e-5
_GATES = ("gate_proj", "gate_up_proj", "w1", "fc1", "c_fc", "dense_h_to_4h", "fc_in", "up_proj")
_INPUT_GATE = "per_layer_input_gate"
Told = str | Xielu | None
"""A word of the library, numbers of xIELU, or neither."""
_GELUS = {"gelu": "none", "gelu_tanh": "tanh"}


def activation_differences(case: Case) -> Iterator[Difference]:
    """The activation of each layer's MLP, and of its gate of per-layer inputs."""
    for layer, whole in enumerate(case.live.layers):
        yield from _differing(case, layer, place_of(case, layer), activation(case.live, layer), "mlp")
        if hasattr(whole, _INPUT_GATE):
            own = place_of(case, layer, (_INPUT_GATE,))
            yield from _differing(case, layer, own, activation_of(whole), _INPUT_GATE)


def _differing(
    case: Case,
    layer: int,
    place: tuple[str, str] | None,
    found: tuple[Any, str, Callable[[Any], Any]] | None,
    what: str,
) -> Iterator[Difference]:
    if found is None or place is None:
        return
    module, name, wanted = found
    start, end = place
    values = evaluate(case.view, [end], {start: LINE[None, None]})
    half = evaluate(case.view, [end], {start: LINE[None, None, :_HALF]})
    if values is None or values[0].size != LINE.size or half is None:
        return
    line, right = values[0].reshape(-1), applied(wanted, LINE)
    if not np.allclose(half[0].reshape(-1), line[:_HALF], atol=_CLOSE):
        return  # it looks at a token's other numbers too
    if np.abs(line - right).max() > _CLOSE:
        got, told = _told(line), _told(right)
        function = library()[got] if isinstance(got, str) else _own(case, *place)
        yield _difference(f"model.layers.{layer}.{what}", layer, place, got, told, _break(case, module, name, function))


def _told(line: Line) -> Told:
    """The activation that makes this of the numbers that are asked."""
    return word_of(LINE, line) or xielu_of(LINE, line)


def _break(case: Case, module: Any, name: str, function: Callable[[Any], Any]) -> Break:
    return lambda: activating(case.live, module, name, function)


def _own(case: Case, start: str, end: str) -> Callable[[Any], Any]:
    """The graph's own activation, as a function of torch values."""
    torch, _ = require_torch()

    def function(values: Any) -> Any:
        made = evaluate(case.view, [end], {start: values.reshape(1, 1, -1).numpy()})
        return values if made is None else torch.from_numpy(made[0].reshape(values.shape))

    return function


def _difference(where: str, layer: int, place: tuple[str, str], got: Told, wanted: Told, breaks: Break) -> Difference:
    start, end = place
    write = wanted.write if isinstance(wanted, Xielu) else WRITTEN.get(wanted or "")

    def repairs(edit: Edit) -> None:
        node = edit.node(end)
        if node.op_type == "Gelu" and isinstance(wanted, str) and wanted in _GELUS:
            edit.set_attribute(end, "approximate", _GELUS[wanted])
            return
        assert write is not None
        made = write(edit, start)
        edit.redirect(end, made, f"activation {end}: {wanted} in place of {got or 'what it was'}")

    return Difference(
        parameter="activation",
        where=where,
        layer=layer,
        package=got,
        reference=wanted,
        fact=f"the activation is {got or 'none that is known'}, the reference's {wanted or 'none that is known'}",
        breaks=breaks,
        repairs=None if write is None else repairs,
        facts={"origin": f"{_word(got)}, {_word(wanted)}"},
    )


def _word(told: Told) -> str:
    return "xielu" if isinstance(told, Xielu) else told or "none that is known"


def place_of(case: Case, layer: int, gates: Sequence[str] = _GATES) -> tuple[str, str] | None:
    """The value that the activation behind the first of ``gates`` takes, and the one that it makes."""
    slots = [slot for slot in case.slots if slot.layer == layer and slot.tensor.endswith(".weight")]
    by_name: Mapping[str, Slot] = {slot.tensor.split(".")[-2]: slot for slot in slots}
    gate = next((by_name[name] for name in gates if name in by_name), None)
    if gate is None or gate.use.node.op_type not in PROJECTIONS:
        return None
    start = _after_bias(case, gate.use.node.output[0])
    end = _end(case, start)
    return None if end is None or end == start else (start, end)


def _after_bias(case: Case, name: str) -> str:
    view = case.view
    takers = [node for node, _ in view.takers.get(name, ())]
    if (
        len(takers) == 1
        and takers[0].op_type == "Add"
        and any(view.initializer(n) is not None for n in takers[0].input)
    ):
        return takers[0].output[0]
    return name


def _end(case: Case, start: str) -> str | None:
    """The last value that hangs on ``start`` alone: multiplied by the other half, or taken by the projection."""
    view, mine, last = case.view, {start}, start
    for node in view.nodes:
        taken = [n for n in node.input if n in mine]
        if not taken:
            continue
        own = all(n in mine or _is_constant(view, n) for n in node.input if n)
        if not own or node.op_type in PROJECTIONS:
            return last if node.op_type in ("Mul", *PROJECTIONS) else None
        is_stored = any(n in view.tensors and view.number(n) is None for n in node.input)
        if node.op_type == "Mul" and is_stored and len(taken) < 2:
            return None
        mine.update(node.output)
        last = node.output[0]
    return None


def _is_constant(view: View, name: str, deepest: int = 4) -> bool:
    """Whether a value hangs on nothing but what is stored."""
    if name in view.tensors or view.number(name) is not None:
        return True
    node = view.maker.get(name)
    return node is not None and deepest > 0 and all(_is_constant(view, each, deepest - 1) for each in node.input)


def _number(edit: Edit, value: float) -> str:
    return edit.once(f"number {value!r}", lambda: edit.add_initializer("number", np.array(value, np.float32)))


def _op(edit: Edit, operator: str, *inputs: str) -> str:
    return edit.insert_node(operator, list(inputs))


def _gelu(edit: Edit, x: str) -> str:
    erf = _op(edit, "Erf", _op(edit, "Div", x, _number(edit, 2**0.5)))
    return _op(edit, "Mul", _op(edit, "Mul", x, _op(edit, "Add", erf, _number(edit, 1.0))), _number(edit, 0.5))


def _gelu_tanh(edit: Edit, x: str) -> str:
    cube = _op(edit, "Mul", _op(edit, "Mul", x, x), x)
    inner = _op(edit, "Add", x, _op(edit, "Mul", cube, _number(edit, 0.044715)))
    tanh = _op(edit, "Tanh", _op(edit, "Mul", inner, _number(edit, (2 / np.pi) ** 0.5)))
    return _op(edit, "Mul", _op(edit, "Mul", x, _number(edit, 0.5)), _op(edit, "Add", tanh, _number(edit, 1.0)))


def _silu(edit: Edit, x: str) -> str:
    return _op(edit, "Mul", x, _op(edit, "Sigmoid", x))


def _quick_gelu(edit: Edit, x: str) -> str:
    return _op(edit, "Mul", x, _op(edit, "Sigmoid", _op(edit, "Mul", x, _number(edit, 1.702))))


def _relu(edit: Edit, x: str) -> str:
    return _op(edit, "Relu", x)


def _relu2(edit: Edit, x: str) -> str:
    relu = _relu(edit, x)
    return _op(edit, "Mul", relu, relu)


WRITTEN: Mapping[str, Callable[[Edit, str], str]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "quick_gelu": _quick_gelu,
    "relu": _relu,
    "relu2": _relu2,
}
