"""Inside a fused operator: the reference, what the operator is documented to compute, and what its kernel computes.

All three are given the reference's own tensors. Where the kernel differs from the documentation, the runtime is wrong;
where the documentation, with the attributes and inputs that the graph gives it, differs from the reference, the
exporter is.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.diagnose.align import Alignment, Region
from paritas.diagnose.capture import Captured, Pass
from paritas.diagnose.extract import between
from paritas.diagnose.reset import FACTOR, Fed, fed
from paritas.diagnose.rounding import LAST_BIT, LAST_BIT_OF_FP16, Rows, distance
from paritas.diagnose.semantics import stated, statement
from paritas.diagnose.semantics.stating import NotStated
from paritas.runtime.package import Package


@dataclass(frozen=True)
class ThreeWay:
    """One fused operator.

    Attributes:
        region: the reference's word for the region it is in.
        node: its name, or its output's.
        operator: ONNX's word.
        kernel: relative difference (L2) of the kernel to the documentation, at the worst row.
        kernel_unit: what rounding of the documented arithmetic explains of it.
        documented: of the documentation to the reference; None where the operator's value is not the reference's.
        unit: what rounding of the reference's arithmetic explains of that.
        unstated: why there is no statement of this use of the operator; empty if there is.
    """

    region: str
    node: str
    operator: str
    kernel: float = 0.0
    kernel_unit: float = 0.0
    documented: float | None = None
    unit: float = 0.0
    unstated: str = ""

    @property
    def runtime_is_wrong(self) -> bool:
        """The kernel is not what it is documented to be."""
        return self.kernel > self.kernel_unit

    @property
    def exporter_is_wrong(self) -> bool:
        """The operator is asked for something else than the reference computes."""
        return self.documented is not None and self.documented > self.unit


def three_way(
    package: Package,
    alignment: Alignment,
    captured: Captured,
    rounded: Sequence[Mapping[str, Rows]],
    regions: Collection[str],
) -> tuple[ThreeWay, ...]:
    """Every fused operator of some regions, over all calls, at its worst row.

    Args:
        package: the package.
        alignment: with the reference.
        captured: the reference's tensors.
        rounded: what rounding does to each of them, of each pass.
        regions: names of regions, as :class:`~paritas.diagnose.align.Region` has them.

    Raises:
        Invalid: ``runtime-failed``.
    """
    chosen = [region for region in alignment.regions if set(region.names) & set(regions)]
    nodes = _fused(alignment, chosen)
    if not nodes:
        return ()
    values = list(dict.fromkeys(name for node in nodes.values() for name in (*node.input, node.output[0]) if name))
    calls = fed(package, alignment, captured, values)
    found: list[ThreeWay] = []
    for region in chosen:
        for name, node in nodes.items():
            if name[0] == region.cut.value:
                found.append(_compared(region, node, captured.passes, rounded, calls))
    return tuple(found)


def _fused(alignment: Alignment, regions: Sequence[Region]) -> dict[tuple[str, str], onnx.NodeProto]:
    """Cut's value and node's output -> each operator with a statement that lies in the cut's region."""
    makers = {name: node for node in alignment.proto.graph.node for name in node.output if name}
    cuts = {cut.value for cut in alignment.cuts}
    return {
        (region.cut.value, node.output[0]): node
        for region in regions
        for node in between(makers, cuts, region.cut.value)
        if statement(node) is not None
    }


def _compared(
    region: Region,
    node: onnx.NodeProto,
    passes: Sequence[Pass],
    rounded: Sequence[Mapping[str, Rows]],
    calls: Sequence[Fed],
) -> ThreeWay:
    told = ThreeWay(region.names[0], node.name or node.output[0], node.op_type)
    kernel: list[Rows] = []
    own: list[Rows] = []
    apart: list[Rows] = []
    unit: list[Rows] = []
    for one, rounds, call in zip(passes, rounded, calls, strict=True):
        inputs = [call.taken.get(name) if name else None for name in node.input]
        short = call.made[node.output[0]].dtype == np.float16
        try:
            wide, narrow = (stated(node, inputs, kind) for kind in (np.float64, np.float16 if short else np.float32))
        except NotStated as why:
            return ThreeWay(told.region, told.node, told.operator, unstated=str(why))
        rows = _flat(wide)
        kernel.append(distance(_flat(call.made[node.output[0]]), rows))
        own.append(np.maximum(distance(_flat(narrow), rows), LAST_BIT_OF_FP16 if short else LAST_BIT))
        if node.output[0] == region.cut.value:
            apart.append(distance(region.cut.layout.read(wide, len(one.ids)), region.cut.wanted(one)))
            unit.append(rounds.get(region.cut.pieces[0].point, np.full(len(one.ids), LAST_BIT)))
    worst, limit = _worst(kernel, own)
    documented, allowed = _worst(apart, unit) if apart else (None, 0.0)
    return ThreeWay(told.region, told.node, told.operator, worst, limit, documented, allowed)


def _flat(value: NDArray[Any]) -> NDArray[Any]:
    """A row for each place of the last axis but one, and of what lies before it."""
    return value.reshape(-1, value.shape[-1])


def _worst(errors: Sequence[Rows], units: Sequence[Rows]) -> tuple[float, float]:
    error, unit = np.concatenate(errors), np.concatenate(units)
    allowed = FACTOR * np.maximum(unit, np.quantile(unit, 0.9))
    place = int(np.argmax(error / allowed))
    return float(error[place]), float(allowed[place])
