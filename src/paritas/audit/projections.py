"""Products with weights of a known origin, as places where a graph can be cut: what follows is small."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from paritas.audit.finding import layer_of
from paritas.audit.identity import Identity, Provenance
from paritas.audit.sites import PROJECTIONS
from paritas.audit.view import View
from paritas.runtime.stored import Stored

_SHAPES = frozenset({"Shape", "Size"})
_FARTHEST = 400  # nodes between a value and the products behind it
_KINDS = {"fp16": np.float16, "fp64": np.float64}


@dataclass(frozen=True)
class Projection:
    """A product with a weight, bias included.

    Attributes:
        value: its name in the graph.
        record: where the weight comes from.
        width: numbers a token.
        flat: tokens have one axis, not two.
        kind: type of the numbers.
    """

    value: str
    record: Provenance
    width: int
    flat: bool
    kind: type[np.generic]

    @property
    def tensor(self) -> str:
        """The first checkpoint tensor that the weight is made of."""
        return self.record.tensors[0]

    @property
    def layer(self) -> int | None:
        """Its number."""
        return layer_of(self.tensor)

    def filled(self, rows: NDArray[np.floating]) -> NDArray[np.generic]:
        """``rows`` ``[tokens, width]`` in the value's own shape and type."""
        return (rows if self.flat else rows[None]).astype(self.kind)

    def start(self, ending: str) -> int | None:
        """The row at which the tensor with this ending begins, of a packed weight."""
        parts = (*self.record.parts, *self.record.near)
        return next((part.start for part in parts if part.tensor.endswith(ending)), None)


def made_of(identity: Identity) -> Mapping[str, Provenance]:
    """Initializer -> where it comes from, of those that come from one place or several."""
    return {record.name: record for record in identity.initializers if record.tensors}


def projections_behind(view: View, made: Mapping[str, Provenance], names: Sequence[str]) -> list[Projection]:
    """The products that values are made of, nearest first; what hangs on shapes alone is passed over."""
    waiting, seen, found = deque(names), set[str](), list[Projection]()
    while waiting and len(seen) < _FARTHEST:
        name = waiting.popleft()
        node = view.maker.get(name)
        if name in seen or node is None or node.op_type in _SHAPES:
            continue
        seen.add(name)
        if projection := projection_of(view, made, node):
            found.append(projection)
        elif not _is_product(view, node):
            waiting.extend(each for each in node.input if each)
    return found


def _is_product(view: View, node: onnx.NodeProto) -> bool:
    return node.op_type in PROJECTIONS and len(node.input) > 1 and view.initializer(node.input[1]) is not None


def projection_of(view: View, made: Mapping[str, Provenance], node: onnx.NodeProto) -> Projection | None:
    """The product that a node is, if the origin of its weight is known."""
    if not _is_product(view, node):
        return None
    stored = view.initializer(node.input[1])
    record = made.get(stored.name) if stored else None
    if record is None or stored is None:
        return None
    value = _after_bias(view, node.output[0])
    return Projection(
        value,
        record,
        _width(node, stored, record),
        node.op_type in ("Gemm", "FusedGemm"),
        _kind(view, node, stored.dtype),
    )


def _width(node: onnx.NodeProto, stored: Stored, record: Provenance) -> int:
    """Columns of the matrix that it multiplies by, where that lies as it is; else rows of the checkpoint's tensors."""
    if node.input[1] == stored.name and not record.quantized and len(stored.shape) == 2:
        return stored.shape[0 if any(a.name == "transB" and a.i for a in node.attribute) else 1]
    return max(part.stop for part in (*record.parts, *record.near))


def _kind(view: View, node: onnx.NodeProto, dtype: str) -> type[np.generic]:
    """Of a product with integers, the type of their scales."""
    names = [node.input[2]] if node.op_type == "MatMulNBits" else []
    maker = view.maker.get(node.input[1])
    if maker is not None and maker.op_type == "DequantizeLinear":
        names = [maker.input[1]]
    scales = [view.tensors[name].dtype for name in names if name in view.tensors]
    return _KINDS.get(scales[0] if scales else dtype, np.float32)


def _after_bias(view: View, name: str) -> str:
    """The value after a bias that is added to it, or the value itself."""
    takers = [node for node, _ in view.takers.get(name, [])]
    if len(takers) == 1 and takers[0].op_type == "Add":
        others = [view.tensors.get(each) for each in takers[0].input if each != name]
        if len(others) == 1 and others[0] is not None and others[0].size > 1:
            return takers[0].output[0]
    return name


def products(view: View, made: Mapping[str, Provenance]) -> Iterator[tuple[onnx.NodeProto, Projection]]:
    """Every product with a weight of a known origin, in the order of the graph."""
    for node in view.nodes:
        if projection := projection_of(view, made, node):
            yield node, projection
