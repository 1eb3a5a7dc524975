"""How the error grows with depth: every layer's border, read through the final norm and the head.

The residual after layer k is given to the final norm, in the package and in the reference, and the logits that come
out are compared. A step in the error is a layer that is wrong, a slope is what earlier layers' errors become.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.diagnose.align import Alignment, Cut
from paritas.diagnose.capture import Array, Captured, call, floats
from paritas.diagnose.extract import extract
from paritas.diagnose.session import Session, feeds
from paritas.diagnose.skips import norms_alone
from paritas.diagnose.taps import Taps
from paritas.runtime.package import Package
from paritas.runtime.ports import read_ports
from paritas.runtime.rows import giving_all
from paritas.verify.loading import quiet, require_torch


@dataclass(frozen=True)
class Depth:
    """The error at one layer's border.

    Attributes:
        layer: its number; -1 for what goes into the first.
        error: largest difference of a logit, over all positions.
        positions: the same at each position.
    """

    layer: int
    error: float
    positions: tuple[float, ...]


def by_depth(package: Package, alignment: Alignment, captured: Captured, model: Any, taps: Taps) -> tuple[Depth, ...]:
    """Of each layer whose border is a cut; empty if the final norm's input is none.

    Args:
        package: the package.
        alignment: with the reference.
        captured: the reference's tensors; its prefill is what is compared.
        model: transformers' model.
        taps: the values of the cuts in the whole package (:func:`paritas.diagnose.reset.whole`).

    Raises:
        Invalid: ``runtime-failed``.
    """
    borders = _borders(alignment, captured)
    last = max(borders, default=-1)
    if last < 0:
        return ()
    ports = read_ports(package.model, package.head_size, package.rewritten)
    end = borders[last]
    taker = _taker(end, captured)
    if taker is None:
        return ()
    tail = _tail(alignment, end.value)
    if ports.kept is not None:
        tail = giving_all(tail, ports.kept, ports.logits)
    part = extract(tail, [end.value], [ports.logits], {end.value: end.declared})
    session = Session(part.proto, package.model)
    one = captured.prefill
    fed = feeds(ports, one.ids, 0, {})
    found: list[Depth] = []
    for layer, cut in sorted(borders.items()):
        rows = cut.layout.read(taps.passes[0][cut.value], len(one.ids))
        given = session.run(fed | {end.value: end.layout.written(rows)}, [part.outputs[ports.logits]])
        logits = given[part.outputs[ports.logits]].astype(np.float64)
        wanted = _lens(model, one.ids, cut.wanted(one), taker)
        apart = np.abs(logits.reshape(wanted.shape) - wanted).max(axis=1)
        found.append(Depth(layer, float(apart.max()), tuple(float(each) for each in apart)))
    return tuple(found)


def _tail(alignment: Alignment, border: str) -> onnx.ModelProto:
    """The graph, with a final norm that takes the sum itself where the operator adds as well."""
    proto = onnx.ModelProto()
    proto.CopyFrom(alignment.proto)
    if border in alignment.sums:
        norm = alignment.sums[border].output[0]
        alone = norms_alone(proto, alignment.sums, (border, norm))[norm]
        for node in proto.graph.node:
            for place, name in enumerate(node.input):
                if name == norm:
                    node.input[place] = alone
    return proto


def _borders(alignment: Alignment, captured: Captured) -> Mapping[int, Cut]:
    """Layer -> the cut of what it gives; -1 -> of what the first is given."""
    found: dict[int, Cut] = {}
    for cut in alignment.cuts:
        for name in captured.prefill.names[captured.prefill.first[cut.pieces[0].point]]:
            path, _, way = name.partition(":")
            layer = captured.layer_of(name)
            if len(cut.pieces) == 1 and layer is not None and path == f"{captured.layers}.{layer}":
                found.setdefault(layer if way == "out" else layer - 1, cut)
    return found


def _taker(end: Cut, captured: Captured) -> str | None:
    """The module that is given what the last layer gives; None if ``end`` is not that."""
    names = captured.prefill.names[captured.prefill.first[end.pieces[0].point]]
    taken = [name.partition(":")[0] for name in names if name.endswith(":in")]
    return next((path for path in taken if captured.layer_of(path) is None), None)


def _lens(model: Any, ids: Sequence[int], rows: Array, taker: str) -> NDArray[np.float64]:
    """The reference's logits if the final norm were given ``rows``."""
    torch, _ = require_torch()
    residual = torch.from_numpy(np.array(rows))[None]

    def replaced(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        first = next(iter(floats((*args, *kwargs.values()))))
        changed = {key: residual if value is first else value for key, value in kwargs.items()}
        return tuple(residual if value is first else value for value in args), changed

    with torch.inference_mode(), quiet(), ExitStack() as stack:
        handle = model.get_submodule(taker).register_forward_pre_hook(replaced, with_kwargs=True)
        stack.callback(handle.remove)
        logits = call(model, ids, None, keep=False).logits
    return logits.numpy()[0].astype(np.float64)
